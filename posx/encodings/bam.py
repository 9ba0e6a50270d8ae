"""BAM: a generalised Gaussian prior over distances is added to the scores, in logarithms."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.alibi import slopes64
from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError


def log_prior(
  distance: Num[Array, "*tu"], shape: Float[Array, ""], scale: Float[Array, ""], location: Float[Array, ""], eps: float = 1e-5
) -> Float[Array, "*tu"]:
  """Logarithm of a generalised Gaussian, without its constant: -(|location - scale d| + eps)^shape.

  Args:
    distance: i - j, in tokens.
    shape: 1 is ALiBi's Laplace, 2 a Gaussian, 0 flat.
    scale: one over the width, per token.
    location: moves the peak; in units of the width.
    eps: keeps the derivative by `shape` finite at the peak.

  Returns:
    float32, in logits.

  Reference:
    Bianchessi et al., "Bayesian Attention Mechanism", 2025, section 2.3. arXiv:2505.22842
  """
  z = location - scale * jnp.asarray(distance).astype(jnp.float32)
  return -((jnp.abs(z) + eps) ** shape)


@dataclasses.dataclass(frozen=True)
class BAM(Encoding):
  """Adds the logarithm of a prior over distances: -(|location - scale (i - j)| + eps)^shape.

  Acts on the scores. Parameters: shape [h], location [h] and scale [h], each only if it is learned; the scales are
  ALiBi's slopes at first, so shape 1 is ALiBi to within eps. The published models train the shape, and use it with a
  scalable softmax, which is another matter than positions.

  Attributes:
    shape: initial exponent.
    learn_shape: whether the exponents are learned.
    learn_scale: whether the scales are learned.
    learn_location: whether the peaks are learned.
    eps: added to the distance in units of the width.

  Reference:
    Bianchessi et al., "Bayesian Attention Mechanism", 2025, and the authors' repository. arXiv:2505.22842
  """

  shape: float = 1.0
  learn_shape: bool = True
  learn_scale: bool = False
  learn_location: bool = False
  eps: float = 1e-5

  by_head: ClassVar = ("shape", "scale", "location")

  def __post_init__(self):
    if not self.eps > 0:
      raise UserError(f"BAM needs eps > 0, got {self.eps}")

  def _start(self, dims: Dims) -> dict[str, np.ndarray]:
    h = dims.num_heads
    return {"shape": np.full(h, self.shape, np.float32), "scale": slopes64(h).astype(np.float32), "location": np.zeros(h, np.float32)}

  def _learned(self) -> set[str]:
    return {name for name in ("shape", "scale", "location") if getattr(self, f"learn_{name}")}

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    del key
    return {name: jnp.asarray(value) for name, value in self._start(dims).items() if name in self._learned()}

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    del length
    fixed = {name: value for name, value in self._start(dims).items() if name not in self._learned()}
    return {**fixed, "eps": np.float32(self.eps)}

  def bias(self, p: Arrays, distance: Num[Array, "*tu"]) -> Float[Array, "*tu"]:
    return log_prior(distance, p["shape"], p["scale"], p["location"], p["eps"])

  def program(self) -> Encoding:
    return dataclasses.replace(self, shape=1.0, eps=1e-5)
