"""Rotary position embedding (RoPE): queries and keys are turned by angles proportional to their positions."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError, unknown

Layout = Literal["half", "interleaved"]
LAYOUTS = ("half", "interleaved")

_LOW = 2048
"""Positions are written hi * 2048 + lo; the low table has that many rows."""


class Scaling(Protocol):
  """What RoPE asks of a context extension: other inverse frequencies and a gain (see `posx.extensions.frequencies`)."""

  @property
  def length_dependent(self) -> bool: ...

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]: ...

  def score_gain(self, length: int, train_length: int) -> float: ...


def inverse_frequencies(rotary_dim: int, base: float = 10000.0) -> np.ndarray:
  """Inverse frequencies of RoPE, radians per token: base^(-2i/r), i = 0 .. r/2 - 1.

  Args:
    rotary_dim: r, the number of rotated channels of a head; even.
    base: theta; larger is slower.

  Returns:
    float64 NumPy array [r // 2], so that tables built from it on the host are exact.

  Raises:
    UserError: if `rotary_dim` is odd or not positive, or `base` is not above 1 and finite.

  Example:
    >>> inverse_frequencies(4)
    array([1.  , 0.01])

  Reference:
    Su et al., "RoFormer", 2021, section 3.2.2. arXiv:2104.09864
  """
  if rotary_dim < 2 or rotary_dim % 2:
    raise UserError(f"RoPE rotates pairs of channels: rotary_dim must be even and at least 2, got {rotary_dim}")
  if not (base > 1 and np.isfinite(base)):
    raise UserError(f"RoPE needs a finite base above 1, got base={base}")
  return np.float64(base) ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)


def proportional_frequencies(rotary_dim: int, base: float = 10000.0, partial: float = 1.0) -> np.ndarray:
  """Inverse frequencies of RoPE in which only the fastest share turns: 0 from index int(partial r // 2) on.

  The exponents and the pairs stay those of the full width, unlike in partial rotary with a smaller `rotary_dim`.

  Args:
    rotary_dim: r, channels of a head that form pairs; even.
    base: theta; larger is slower.
    partial: share of the pairs that turn, the fastest ones.

  Returns:
    float64 NumPy array [r // 2], radians per token.

  Example:
    >>> proportional_frequencies(8, partial=0.5)
    array([1. , 0.1, 0. , 0. ])

  Reference:
    Barbero et al., "Round and Round We Go! What makes Rotary Positional Encodings useful?", 2024, section 6 and its
    listing (p-RoPE). arXiv:2410.06205
  """
  inv_freq = inverse_frequencies(rotary_dim, base)
  inv_freq[int(partial * rotary_dim // 2) :] = 0.0
  return inv_freq


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


def cos_sin(
  positions: Num[Array, "*t"], inv_freq: Float[Array, " n"] | np.ndarray, tables: Arrays | None = None
) -> tuple[Float[Array, "*t n"], Float[Array, "*t n"]]:
  """Cosine and sine of position x frequency, float32.

  Integer positions inside `tables` (of `angle_tables`) are exact to 1e-7; fractional positions, positions outside
  the tables and frequencies without tables take the plain way, whose error grows as position x 6e-8.

  Args:
    positions: tokens; int32, or float32 for fractions.
    inv_freq: radians per token.
    tables: from `angle_tables`, for the same frequencies.

  Raises:
    UserError: for positions in half precision, which cannot count past 256 (bfloat16) or 2,048 (float16).
  """
  if jnp.issubdtype(positions.dtype, jnp.floating) and jnp.finfo(positions.dtype).bits < 32:
    raise UserError(f"positions must be int32 or float32, got {positions.dtype}, which cannot count that far")
  if jnp.issubdtype(positions.dtype, jnp.integer):
    positions = positions.astype(jnp.int32)
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
    raise UserError(unknown("RoPE layout", layout, LAYOUTS))
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
    UserError: if x has fewer than 2n channels, or the layout is unknown.

  Reference:
    Su et al., "RoFormer", 2021, equation 34. arXiv:2104.09864
  """
  n = inv_freq.shape[-1]
  if 2 * n > x.shape[-1]:
    raise UserError(f"{n} frequencies rotate {2 * n} channels, but a head has {x.shape[-1]}; give at most {x.shape[-1] // 2} frequencies")
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
    partial: share of the pairs that turn, the fastest ones; the others stand still, so that slow channels can carry
      meaning alone (p-RoPE). 1 is RoPE, 0 is NoPE. Partial rotary is another thing: a smaller `rotary_dim`.
    scaling: a context extension of the RoPE family, or None; set it with `posx.extensions.apply`.

  Reference:
    Su et al., "RoFormer", 2021. arXiv:2104.09864. `partial`: Barbero et al., "Round and Round We Go", 2024. arXiv:2410.06205
  """

  base: float = 10000.0
  rotary_dim: int = 0
  layout: Layout = "half"
  partial: float = 1.0
  scaling: Scaling | None = None

  by_head: ClassVar = ()

  @property
  def norm_preserving(self) -> bool:  # type: ignore[override]
    # The extensions with a gain have a field of that name (YaRN, LongRoPE).
    return not hasattr(self.scaling, "gain")

  def __post_init__(self):
    inverse_frequencies(self.rotary_dim or 2, self.base)
    if self.layout not in LAYOUTS:
      raise UserError(unknown("RoPE layout", self.layout, LAYOUTS))
    if not 0 <= self.partial <= 1:
      raise UserError(f"RoPE turns a share of its pairs, 0 <= partial <= 1, got partial={self.partial}")

  def _rotary_dim(self, dims: Dims) -> int:
    return self.rotary_dim or dims.head_dim

  def check(self, dims: Dims, length: int) -> None:
    del length
    r = self._rotary_dim(dims)
    if r % 2 or r < 2:
      raise UserError(f"RoPE rotates pairs of channels: rotary_dim must be even and at least 2, got {r}")
    if r > dims.head_dim:
      raise UserError(f"rotary_dim={r} exceeds head_dim={dims.head_dim}; give an even number up to that, or 0 for all channels")

  def frequencies(self, dims: Dims, length: int) -> tuple[np.ndarray, float]:
    """(inverse frequencies float64 [r // 2], gain) in force for `length` positions."""
    r = self._rotary_dim(dims)
    if self.scaling is None:
      return proportional_frequencies(r, self.base, self.partial), 1.0
    inv_freq, gain = self.scaling.frequencies64(r, self.base, length, dims.train_length)
    return np.where(proportional_frequencies(r, self.base, self.partial) > 0, inv_freq, 0.0), gain

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    self.check(dims, length)
    inv_freq, gain = self.frequencies(dims, length)
    score_gain = 1.0 if self.scaling is None else self.scaling.score_gain(length, dims.train_length)
    numbers = {"inv_freq": inv_freq.astype(np.float32), "gain": np.float32(gain), "score_gain": np.float32(score_gain)}
    return {**numbers, **angle_tables(inv_freq, length)}

  def on_query_key(self, p, q, k, q_pos, k_pos):
    def turned(x, positions):
      cos, sin = cos_sin(positions, p["inv_freq"], p)
      return turn(x, cos * p["gain"], sin * p["gain"], self.layout)

    # The score gain reaches the channels that are not rotated too.
    return (turned(q, q_pos) * p["score_gain"]).astype(q.dtype), turned(k, k_pos)

  @property
  def length_dependent(self) -> bool:
    return self.scaling is not None and self.scaling.length_dependent

  def program(self) -> Encoding:
    return dataclasses.replace(self, base=10000.0, partial=1.0, scaling=None)
