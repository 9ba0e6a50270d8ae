"""Which positions the tokens of a window get: one after the other, or drawn from a longer range, in training and in evaluation.

An encoding sees positions as arguments, so all of these serve every encoding. Each sampler is a pure function of a key: the
same (seed, step, row) gives the same positions in every process, and a resumed run continues bit for bit.

    consecutive  0, 1, 2, ...
    randomized   a sorted random subset of 0 .. span - 1 (Ruoss et al.)
    shifted      one random offset a window (SHAPE)
    skipwise     chunks of consecutive positions with random skips between them (PoSE)
    scaled       one random stretch and offset a window (the global part of CAPE)

Positions rise strictly: the causal mask is made of positions, and of two tokens at one position each would see the other. That and
int32 positions leave out what CAPE does with fractions of a token (local jitter, shrinking).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from posx.data.shuffle import key, mix, permute

CONSECUTIVE = "consecutive"

Draw = Callable[[int, int, int, int], Int[np.ndarray, " t"]]


def _uniform(count: int, seed: int) -> np.ndarray:
  """float64 [count] in [0, 1)."""
  return (mix(np.arange(count), seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _below(n: int, share: float) -> int:
  """An integer of 0 .. n - 1 from a number in [0, 1)."""
  return int(share * n)


def randomized(length: int, span: int, seed: int, chunks: int = 0) -> Int[np.ndarray, " t"]:
  """A sorted subset of 0 .. span - 1; all subsets are alike.

  Args:
    length: t, tokens.
    span: positions to choose from, at least t.
    seed: 64-bit key of this window.
    chunks: unused.

  Example:
    >>> randomized(4, 4, seed=1).tolist()
    [0, 1, 2, 3]

  Reference:
    Ruoss et al., "Randomized Positional Encodings Boost Length Generalization of Transformers", 2023, section 3.
    arXiv:2305.16843, github.com/google-deepmind/randomized_positional_encodings. The authors draw once for all rows of a batch,
    here every document draws.
  """
  del chunks
  return np.sort(permute(np.arange(length), span, seed)).astype(np.int32)


def shifted(length: int, span: int, seed: int, chunks: int = 0) -> Int[np.ndarray, " t"]:
  """k, k + 1, ..., with k uniform in 0 .. span - t; arguments as for `randomized`.

  Reference:
    Kiyono et al., "SHAPE: Shifted Absolute Position Embedding for Transformers", 2021, section 3.2. arXiv:2109.05644,
    github.com/butsugiri/shape. `span` is t + K in the symbols of the paper, whose code evaluates at the offset K, here 0.
  """
  del chunks
  return (_below(span - length + 1, _uniform(1, seed)[0]) + np.arange(length)).astype(np.int32)


def skipwise(length: int, span: int, seed: int, chunks: int = 2) -> Int[np.ndarray, " t"]:
  """Chunks of consecutive positions; the first starts at 0, each later one is moved on by a skip that never falls.

  Position of token i in chunk n: u_n + i, with u_0 = 0 and u_n uniform in u_(n-1) .. span - t. The chunks' lengths are random.

  Args:
    length: t, tokens.
    span: the context to be simulated, at least t.
    seed: 64-bit key of this window.
    chunks: how many (fewer where there are fewer tokens).

  Reference:
    Zhu et al., "PoSE: Efficient Context Window Extension of LLMs via Positional Skip-wise Training", 2023, section 3.2.
    arXiv:2309.10400, github.com/dwzhu-pku/PoSE. Here the text of a window stays in one piece (v_i = 0 in the paper).
  """
  chunks = min(chunks, length)
  cuts = np.sort(permute(np.arange(chunks - 1), max(length - 1, 1), seed)) + 1
  skips, shares = [0], _uniform(chunks, seed ^ 0x5DEECE66D)
  for share in shares[1:]:
    skips.append(skips[-1] + _below(span - length - skips[-1] + 1, share))
  chunk = np.searchsorted(cuts, np.arange(length), side="right")
  return (np.arange(length) + np.asarray(skips)[chunk]).astype(np.int32)


def scaled(length: int, span: int, seed: int, chunks: int = 0) -> Int[np.ndarray, " t"]:
  """floor(s i) + k: a stretch s, log-uniform in [1, span / t], then an offset k, uniform in what is left of the span.

  Arguments as for `randomized`.

  Reference:
    Likhomanenko et al., "CAPE: Encoding Relative Positions with Continuous Augmented Positional Embeddings", 2021, section 3.1
    (global shift and global scaling). arXiv:2106.03143
  """
  del chunks
  stretch, offset = _uniform(2, seed)
  places = np.floor(np.arange(length) * (span / length) ** stretch).astype(np.int64)
  return (places + _below(span - int(places[-1]), offset)).astype(np.int32)


SAMPLERS: dict[str, Draw] = {"randomized": randomized, "shifted": shifted, "skipwise": skipwise, "scaled": scaled}
"""Samplers by name; each takes (length, span, seed, chunks)."""

GAPLESS = (CONSECUTIVE, "shifted")
"""Where neighbouring tokens have neighbouring positions, so that a window of positions is a window of tokens."""


def in_evaluation(settings: Any) -> str:
  """The sampler of evaluations; 'auto' draws where the authors do: randomized positions at test time too, all others consecutive."""
  if settings.eval != "auto":
    return settings.eval
  return "randomized" if settings.train == "randomized" else CONSECUTIVE


def reach(settings: Any) -> int:
  """How many positions are in play where some are drawn; 0 where none are."""
  return settings.range if {settings.train, in_evaluation(settings)} != {CONSECUTIVE} else 0


def window(name: str, settings: Any, length: int, *place: object) -> Int[np.ndarray, " t"]:
  """Positions of one window.

  Args:
    name: the sampler, of `SAMPLERS`.
    settings: the section `positions` of a configuration.
    length: t, tokens.
    place: what names the window, e.g. ('train', seed, number).
  """
  return SAMPLERS[name](length, settings.range, key("positions", name, *place), settings.chunks)


def in_batch(batch: Mapping[str, np.ndarray], name: str, settings: Any, *, seed: int, first: int) -> dict[str, np.ndarray]:
  """A training batch with positions that are drawn anew for every window and, in packed windows, for every document.

  Args:
    batch: of `posx.data.batch`.
    name: the sampler; 'consecutive' leaves the batch as it is.
    settings: the section `positions` of a configuration.
    seed: names the draws.
    first: number of the batch's first row among all rows of the run.
  """
  if name == CONSECUTIVE:
    return dict(batch)
  positions = np.zeros(batch["tokens"].shape, np.int32)
  for row, drawn in enumerate(positions):
    for start, stop in _documents(batch["segments"][row]) if "segments" in batch else [(0, len(drawn))]:
      drawn[start:stop] = window(name, settings, stop - start, "train", seed, first + row, start)
  return {**batch, "positions": positions}


def _documents(segments: np.ndarray) -> list[tuple[int, int]]:
  """(first token, end) of every document in a packed row; padding is none."""
  edges = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(segments)]
  return [(a, b) for a, b in itertools.pairwise(edges) if segments[a] > 0]
