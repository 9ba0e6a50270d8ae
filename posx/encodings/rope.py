"""Rotary position embedding (RoPE): queries and keys are turned by angles proportional to their positions."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding

Layout = Literal["half", "interleaved"]

_LOW = 2048
"""Positions are written hi * 2048 + lo; the low table has that many rows."""


class Scaling(Protocol):
  """What RoPE asks of a context extension: other inverse frequencies and a gain (see `posx.extensions.frequencies`)."""

  length_dependent: ClassVar[bool]

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]: ...


def inverse_frequencies(rotary_dim: int, base: float = 10000.0) -> np.ndarray:
  """Inverse frequencies of RoPE, radians per token: base^(-2i/r), i = 0 .. r/2 - 1.

  Args:
    rotary_dim: r, the number of rotated channels of a head; even.
    base: theta; larger is slower.

  Returns:
    float64 NumPy array [r // 2], so that tables built from it on the host are exact.

  Raises:
    ValueError: if `rotary_dim` is odd or not positive, or `base` is not above 1.

  Example:
    >>> inverse_frequencies(4)
    array([1.  , 0.01])

  Reference:
    Su et al., "RoFormer", 2021, section 3.2.2. arXiv:2104.09864
  """
  if rotary_dim < 2 or rotary_dim % 2:
    raise ValueError(f"RoPE rotates pairs of channels: rotary_dim must be even and at least 2, got {rotary_dim}")
  if not base > 1:
    raise ValueError(f"RoPE needs a base above 1, got base={base}")
  return np.float64(base) ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)


def angle_tables(inv_freq: np.ndarray, length: int = 1 << 20) -> dict[str, np.ndarray]:
  """Two small tables from which cos and sin of position x frequency follow to 1e-7 for every integer position.

  position = 2048 hi + lo, and the addition theorem joins cos/sin(2048 hi w) and cos/sin(lo w), both made here in
  float64. Multiplying position by frequency in float32 instead is off by 5e-3 at position 131,071.

  Args:
    inv_freq: float64 [n], radians per token.
    length: positions 0 .. length - 1 are covered (rounded up to at least 1,048,576).

  Returns:
    float32 arrays 'low' [2, 2048, n] and 'high' [2, rows, n]: cosines, then sines.
  """
  rows = max(-(-int(length) // _LOW), 512)
  low = np.arange(_LOW, dtype=np.float64)[:, None] * inv_freq
  high = np.arange(rows, dtype=np.float64)[:, None] * (_LOW * np.asarray(inv_freq, np.float64))
  return {name: np.stack([np.cos(a), np.sin(a)]).astype(np.float32) for name, a in (("low", low), ("high", high))}


def cos_sin(positions: Num[Array, "*t"], inv_freq: Float[Array, " n"], tables: Arrays | None = None) -> tuple[Float[Array, "*t n"], Float[Array, "*t n"]]:
  """Cosine and sine of position x frequency, float32.

  Integer positions inside `tables` (of `angle_tables`) are exact to 1e-7; fractional positions, positions outside
  the tables and frequencies without tables take the plain way, whose error grows as position x 6e-8.

  Args:
    positions: tokens; int32, or float32 for fractions.
    inv_freq: radians per token.
    tables: from `angle_tables`, for the same frequencies.
  """
  angles = positions.astype(jnp.float32)[..., None] * jnp.asarray(inv_freq, jnp.float32)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  if tables is None or not jnp.issubdtype(positions.dtype, jnp.integer):
    return cos, sin
  place = jnp.abs(positions)
  rows = tables["high"].shape[1]
  inside = (place < rows * _LOW)[..., None]
  low = jnp.take(tables["low"], place % _LOW, axis=1, mode="clip")
  high = jnp.take(tables["high"], place // _LOW, axis=1, mode="clip")
  exact_cos = high[0] * low[0] - high[1] * low[1]
  exact_sin = (high[1] * low[0] + high[0] * low[1]) * jnp.sign(positions).astype(jnp.float32)[..., None]
  return jnp.where(inside, exact_cos, cos), jnp.where(inside, exact_sin, sin)


def turn(x: Float[Array, "*t c"], cos: Float[Array, "*t n"], sin: Float[Array, "*t n"], layout: Layout = "half") -> Float[Array, "*t c"]:
  """Turns the first 2n channels of x by the angles given; computed in float32, returned in x's dtype."""
  n = cos.shape[-1]
  turned, rest = x[..., : 2 * n].astype(jnp.float32), x[..., 2 * n :]
  if layout == "half":
    a, b = turned[..., :n], turned[..., n:]
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  elif layout == "interleaved":
    a, b = turned[..., ::2], turned[..., 1::2]
    turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(turned.shape)
  else:
    raise ValueError(f"unknown RoPE layout {layout!r}; known: 'half' (pairs i, i + r/2), 'interleaved' (pairs 2i, 2i + 1)")
  turned = turned.astype(x.dtype)
  return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned


def rotate(
  x: Float[Array, "*b t h c"],
  positions: Num[Array, "*b t"],
  inv_freq: Float[Array, " n"] | np.ndarray,
  *,
  gain: float | Float[Array, ""] = 1.0,
  layout: Layout = "half",
) -> Float[Array, "*b t h c"]:
  """Rotates the first 2n channels of every head by position x frequency.

  (x_a, x_b) -> gain (x_a cos - x_b sin, x_b cos + x_a sin), with angle position * inv_freq[i].

  Args:
    x: queries or keys.
    positions: tokens; integers are exact up to a million if `inv_freq` is a NumPy array.
    inv_freq: n inverse frequencies, radians per token. Channels from 2n on are left alone (partial rotary).
    gain: multiplies cos and sin (YaRN's attention factor), so the scores get its square.
    layout: 'half' pairs channel i with i + n (Llama, NeoX), 'interleaved' 2i with 2i + 1 (RoFormer, GPT-J).

  Returns:
    The rotated array, in x's dtype.

  Raises:
    ValueError: if x has fewer than 2n channels, or the layout is unknown.

  Reference:
    Su et al., "RoFormer", 2021, equation 34. arXiv:2104.09864
  """
  n = inv_freq.shape[-1]
  if 2 * n > x.shape[-1]:
    raise ValueError(f"{n} frequencies rotate {2 * n} channels, but a head has {x.shape[-1]}; give at most {x.shape[-1] // 2} frequencies")
  tables = None if isinstance(inv_freq, jax.Array) else angle_tables(np.asarray(inv_freq, np.float64))
  cos, sin = cos_sin(jnp.asarray(positions), jnp.asarray(inv_freq, jnp.float32), tables)
  return turn(x, (cos * gain)[..., None, :], (sin * gain)[..., None, :], layout)


@dataclasses.dataclass(frozen=True)
class RoPE(Encoding):
  """Turns queries and keys by position x frequency, so that their product depends on i - j alone.

  Acts on queries and keys; nothing is learned.

  Attributes:
    base: theta; larger is slower.
    rotary_dim: channels of a head that are rotated; 0 for all of them.
    layout: 'half' or 'interleaved' pairs of channels.
    scaling: a context extension of the RoPE family, or None; set it with `posx.extensions.apply`.

  Reference:
    Su et al., "RoFormer", 2021. arXiv:2104.09864
  """

  base: float = 10000.0
  rotary_dim: int = 0
  layout: Layout = "half"
  scaling: Scaling | None = None

  by_head: ClassVar = ()

  def _rotary_dim(self, dims: Dims) -> int:
    return self.rotary_dim or dims.head_dim

  def check(self, dims: Dims, length: int) -> None:
    del length
    r = self._rotary_dim(dims)
    if r % 2 or r < 2:
      raise ValueError(f"RoPE rotates pairs of channels: rotary_dim must be even and at least 2, got {r}")
    if r > dims.head_dim:
      raise ValueError(f"rotary_dim={r} exceeds head_dim={dims.head_dim}")

  def frequencies(self, dims: Dims, length: int) -> tuple[np.ndarray, float]:
    """(inverse frequencies float64 [r // 2], gain) in force for `length` positions."""
    r = self._rotary_dim(dims)
    if self.scaling is None:
      return inverse_frequencies(r, self.base), 1.0
    return self.scaling.frequencies64(r, self.base, length, dims.train_length)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    self.check(dims, length)
    inv_freq, gain = self.frequencies(dims, length)
    return {"inv_freq": inv_freq.astype(np.float32), "gain": np.float32(gain), **angle_tables(inv_freq, length)}

  def on_query_key(self, p, q, k, q_pos, k_pos):
    def turned(x, positions):
      cos, sin = cos_sin(positions, p["inv_freq"], p)
      return turn(x, cos * p["gain"], sin * p["gain"], self.layout)

    return turned(q, q_pos), turned(k, k_pos)

  @property
  def length_dependent(self) -> bool:
    return self.scaling is not None and self.scaling.length_dependent

  def program(self) -> Encoding:
    return dataclasses.replace(self, base=10000.0, scaling=None, rotary_dim=self.rotary_dim)
