"""Random orders that are computed, not stored: keyed hashes and keyed permutations of 0 .. n - 1."""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6


def digest(*parts: object) -> str:
  """Hexadecimal blake2b (32 characters) of the parts' text, the same on every machine and in every process."""
  text = "\x1f".join(str(part) for part in parts)
  return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()


def key(*parts: object) -> int:
  """A 64-bit key from anything that has a text."""
  return int(digest(*parts)[:16], 16)


def mix(x: np.ndarray, seed: int) -> np.ndarray:
  """Maps integers to 64 well-mixed bits, as uint64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014)."""
  with np.errstate(over="ignore"):
    z = x.astype(np.uint64) * _GOLDEN + np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def permute(index: np.ndarray, n: int, seed: int) -> np.ndarray:
  """Where a keyed permutation of 0 .. n - 1 sends each index; memory grows with the indices asked for, never with n.

  A Feistel network permutes the next power of four at or above n; what lands outside is sent through again until it lands
  inside, which keeps the map one-to-one.

  Args:
    index: integers in 0 .. n - 1.
    n: size of the permuted range.
    seed: 64-bit key; every key is another permutation.

  Returns:
    int64 array like `index`.

  Raises:
    ValueError: if an index lies outside.

  Example:
    >>> sorted(permute(np.arange(5), 5, seed=1).tolist())
    [0, 1, 2, 3, 4]

  Reference:
    Black, Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, section 3 (cycle walking) and 4 (Feistel).
  """
  values = np.asarray(index, np.int64)
  if values.size and (values.min() < 0 or values.max() >= n):
    raise ValueError(f"indices must lie in 0 .. {n - 1}, got {values.min()} .. {values.max()}")
  half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
  out = _feistel(values.astype(np.uint64), half, seed)
  outside = out >= n
  while outside.any():
    out[outside] = _feistel(out[outside], half, seed)
    outside = out >= n
  return out.astype(np.int64)


def _feistel(x: np.ndarray, half: int, seed: int) -> np.ndarray:
  shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
  left, right = x >> shift, x & mask
  for i in range(_ROUNDS):
    left, right = right, left ^ (mix(right, seed + i * 0x632BE59BD9B4E019) & mask)
  return (left << shift) | right
