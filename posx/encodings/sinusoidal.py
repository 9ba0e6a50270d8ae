"""Sinusoidal positions: a fixed table of sines and cosines is added to the input."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.encodings.rope import angle_tables, cos_sin
from posx.errors import UserError, unknown

Layout = Literal["interleaved", "concat"]
Frequencies = Literal["paper", "tensor2tensor"]


def inverse_frequencies(dim: int, base: float = 10000.0, frequencies: Frequencies = "paper") -> np.ndarray:
  """Radians per token of each sine, float64 on the host.

  'paper': base^(-2i/d), i = 0 .. ceil(d/2) - 1. 'tensor2tensor': base^(-i/(d//2 - 1)), so that the slowest is exactly
  1/base; the rule of tensor2tensor, fairseq and Whisper.

  Args:
    dim: d, channels of the table.
    base: the longest wavelength over 2 pi, in tokens.
    frequencies: which rule.

  Raises:
    UserError: if `dim` is too small, `base` is not above 1, or the rule is unknown.
  """
  least = 4 if frequencies == "tensor2tensor" else 1
  if dim < least:
    raise UserError(f"a sinusoidal table with the frequencies of {frequencies!r} needs at least {least} channels, got dim={dim}")
  if not (base > 1 and np.isfinite(base)):
    raise UserError(f"a sinusoidal table needs a finite base above 1, got base={base}")
  if frequencies == "paper":
    return np.float64(base) ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
  if frequencies == "tensor2tensor":
    return np.float64(base) ** (-np.arange(dim // 2, dtype=np.float64) / (dim // 2 - 1))
  raise UserError(unknown("sinusoidal frequencies", frequencies, ("paper", "tensor2tensor")))


def arrange(cos: Float[Array, "*t n"], sin: Float[Array, "*t n"], dim: int, layout: Layout = "interleaved") -> Float[Array, "*t d"]:
  """Puts sines and cosines into `dim` channels: alternating, or all sines first.

  An odd `dim` ends with a sine ('paper': one more sine than cosines) or, where there are too few, with a zero column.
  """
  cos = cos[..., : dim // 2]
  if layout == "concat":
    columns = jnp.concatenate([sin, cos], axis=-1)
  elif layout == "interleaved":
    n = cos.shape[-1]
    columns = jnp.stack([sin[..., :n], cos], axis=-1).reshape(*cos.shape[:-1], 2 * n)
    columns = jnp.concatenate([columns, sin[..., n:]], axis=-1)
  else:
    raise UserError(unknown("sinusoidal layout", layout, ("interleaved", "concat")))
  missing = dim - columns.shape[-1]
  return jnp.pad(columns, [(0, 0)] * (columns.ndim - 1) + [(0, missing)])


def table(
  positions: Num[Array, "*t"], dim: int, *, base: float = 10000.0, layout: Layout = "interleaved", frequencies: Frequencies = "paper"
) -> Float[Array, "*t d"]:
  """The sinusoidal vectors of the given positions.

  PE[p, 2i] = sin(p / base^(2i/d)), PE[p, 2i+1] = cos(p / base^(2i/d)).

  Args:
    positions: tokens; int32 (exact to 3e-7 up to a million), or float32 for fractions.
    dim: d, channels; an odd one ends with a sine.
    base: the longest wavelength over 2 pi, in tokens.
    layout: 'interleaved' as in the paper, or 'concat' with all sines before all cosines.
    frequencies: 'paper', or 'tensor2tensor' for base^(-i/(d//2 - 1)) and a zero column if d is odd.

  Returns:
    float32 [*t, d], whatever the dtype of the positions.

  Raises:
    UserError: for an unknown layout or rule, or sizes that the rule cannot serve.

  Example:
    >>> table(np.array([0, 1]), 2)[1]
    Array([0.84147096, 0.5403023 ], dtype=float32)

  Reference:
    Vaswani et al., "Attention Is All You Need", 2017, section 3.5. arXiv:1706.03762
  """
  inv_freq = inverse_frequencies(dim, base, frequencies)
  cos, sin = cos_sin(jnp.asarray(positions), inv_freq.astype(np.float32), angle_tables(inv_freq))
  return arrange(cos, sin, dim, layout)


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Encoding):
  """Adds the sinusoidal vector of its position to every input vector: x_p + PE[p].

  Acts on the input; nothing is learned. PE(p + k) is a fixed linear map of PE(p), a rotation of each pair.

  Attributes:
    base: the longest wavelength over 2 pi, in tokens.
    layout: 'interleaved' as in the paper, or 'concat'.
    frequencies: 'paper' or 'tensor2tensor'.

  Reference:
    Vaswani et al., "Attention Is All You Need", 2017, section 3.5. arXiv:1706.03762
  """

  base: float = 10000.0
  layout: Layout = "interleaved"
  frequencies: Frequencies = "paper"

  by_head: ClassVar = ()
  relative: ClassVar = False
  linear_shift: ClassVar = True

  def __post_init__(self):
    inverse_frequencies(4, self.base, self.frequencies)
    if self.layout not in ("interleaved", "concat"):
      raise UserError(unknown("sinusoidal layout", self.layout, ("interleaved", "concat")))

  def check(self, dims: Dims, length: int) -> None:
    del length
    inverse_frequencies(dims.model_dim, self.base, self.frequencies)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    inv_freq = inverse_frequencies(dims.model_dim, self.base, self.frequencies)
    return {"inv_freq": inv_freq.astype(np.float32), **angle_tables(inv_freq, length)}

  def on_input(self, p: Arrays, x, positions):
    cos, sin = cos_sin(positions, p["inv_freq"], p)
    return (x.astype(jnp.float32) + arrange(cos, sin, x.shape[-1], self.layout)).astype(x.dtype)

  def program(self) -> Encoding:
    return dataclasses.replace(self, base=10000.0)
