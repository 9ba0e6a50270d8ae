"""Sandwich: the inner product of two sinusoidal vectors, compressed per head, is added to the scores."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.encodings.rope import angle_tables, cos_sin
from posx.errors import UserError


def inverse_frequencies(dim: int = 128, base: float = 10000.0, first: int = 1) -> np.ndarray:
  """Frequencies of the sum: base^(-2i/d), i = first .. first + d/2 - 1; float64."""
  if dim < 2 or dim % 2:
    raise UserError(f"Sandwich sums over pairs: dim must be even and at least 2, got {dim}")
  if first not in (0, 1):
    raise UserError(f"Sandwich's sum starts at first=1 (the equation) or 0 (the product of sinusoidal vectors), got {first}")
  if not (base > 1 and np.isfinite(base)):
    raise UserError(f"Sandwich needs a finite base above 1, got base={base}")
  return np.float64(base) ** (-2.0 * (np.arange(dim // 2) + first) / dim)


def scales(num_heads: int) -> np.ndarray:
  """What each head's sum is multiplied by: H / (8h), h = 1 .. H; float64."""
  return num_heads / (8.0 * np.arange(1, num_heads + 1))


def bias(distance: Num[Array, "*tu"], num_heads: int, dim: int = 128, *, base: float = 10000.0, first: int = 1) -> Float[Array, "h ..."]:
  """The bias of every head: H / (8h) sum_i cos((i - j) / base^(2i/d)).

  Args:
    distance: i - j, in tokens; integers are exact far out.
    num_heads: H.
    dim: d, twice the number of cosines.
    base: the longest wavelength over 2 pi, in tokens.
    first: where the sum starts: 1 as the equation, 0 as the product of two sinusoidal vectors.

  Returns:
    float32 [h, ...], the shape of `distance` behind the heads, in logits.

  Reference:
    Chi et al., "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis", 2022, section 5.
    arXiv:2212.10356
  """
  inv_freq = inverse_frequencies(dim, base, first)
  cos, _ = cos_sin(jnp.asarray(distance), inv_freq.astype(np.float32), angle_tables(inv_freq))
  total = cos.sum(-1)
  return jnp.asarray(scales(num_heads), jnp.float32).reshape(-1, *[1] * total.ndim) * total


@dataclasses.dataclass(frozen=True)
class Sandwich(Encoding):
  """Adds the compressed inner product of two sinusoidal vectors: b(i, j) = H / (8h) sum_i cos((i - j) w_i).

  Acts on the scores; nothing is learned. Falls about as the logarithm of the distance.

  Attributes:
    dim: d, twice the number of cosines; the authors' best is 128, whatever the model's width.
    base: the longest wavelength over 2 pi, in tokens.
    first: where the sum starts: 1 as the equation, 0 as the product of two sinusoidal vectors.

  Reference:
    Chi et al., "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis", 2022, section 5.
    arXiv:2212.10356
  """

  dim: int = 128
  base: float = 10000.0
  first: int = 1

  by_head: ClassVar = ("scale",)

  def __post_init__(self):
    inverse_frequencies(self.dim, self.base, self.first)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    inv_freq = inverse_frequencies(self.dim, self.base, self.first)
    return {"scale": scales(dims.num_heads).astype(np.float32), "inv_freq": inv_freq.astype(np.float32), **angle_tables(inv_freq, length)}

  def bias(self, p: Arrays, distance: Num[Array, "*tu"]) -> Float[Array, "*tu"]:
    cos, _ = cos_sin(jnp.asarray(distance), p["inv_freq"], p)
    return p["scale"] * cos.sum(-1)

  def program(self) -> Encoding:
    return Sandwich()
