"""KERPLE: conditionally positive definite kernels of the distance, with trained parameters, are added to the scores."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError, unknown

LEAST = 0.01
"""The authors keep every parameter at or above this."""


def log_kernel(distance: Num[Array, "*tu"], a: Float[Array, "*h"], p: Float[Array, "*h"]) -> Float[Array, "*tu"]:
  """Logarithmic kernel: -p log(1 + a |d|).

  The paper's r1 is `p` and its r2 is `a`, as the authors' code names them.

  Args:
    distance: i - j, in tokens.
    a: positive, one over the distance at which the logarithm sets in.
    p: positive, logits per natural log of distance.

  Returns:
    float32, at most 0, in logits.

  Example:
    >>> log_kernel(jnp.array([0, 1, 3, 7]), 1.0, 1.0)
    Array([-0.       , -0.6931472, -1.3862944, -2.0794415], dtype=float32)

  Reference:
    Chi et al., "KERPLE", 2022, equation 4. arXiv:2205.09921
  """
  return -p * jnp.log1p(a * jnp.abs(jnp.asarray(distance)).astype(jnp.float32))


def power_kernel(distance: Num[Array, "*tu"], a: Float[Array, "*h"], p: Float[Array, "*h"]) -> Float[Array, "*tu"]:
  """Power kernel: -a |d|^p; p = 1 is ALiBi with trained slopes.

  The paper's r1 is `a` and its r2 is `p`.

  Args:
    distance: i - j, in tokens.
    a: positive, in logits.
    p: the exponent, in (0, 2].

  Returns:
    float32, at most 0, in logits.

  Reference:
    Chi et al., "KERPLE", 2022, equation 3. arXiv:2205.09921
  """
  far = jnp.abs(jnp.asarray(distance)).astype(jnp.float32)
  # 0^p has no finite gradient in p: log 0. The inner where keeps it out of the derivative.
  raised = jnp.where(far > 0, jnp.where(far > 0, far, 1.0) ** p, 0.0)
  return -a * raised


def keep_within(x: Float[Array, "*h"], low: float, high: float = float("inf")) -> Float[Array, "*h"]:
  """x held between two bounds, whose gradient passes as if there were none.

  The authors clamp the stored parameters before each use, so a parameter at its bound still learns; a plain clip would
  leave it there for ever.
  """
  return jax.lax.stop_gradient(jnp.clip(x, low, high)) + (x - jax.lax.stop_gradient(x))


@dataclasses.dataclass(frozen=True)
class KERPLE(Encoding):
  """Subtracts a trained, concave or linear function of the distance: -p log(1 + a d), or -a d^p.

  Acts on the scores. Parameters: a [h], uniform in (0, 1), and p [h], uniform in (0, 2), as the authors start them. Both
  are used no smaller than 0.01, and the exponent no larger than 2, wherever the optimizer takes them.

  The authors share one pair per head over all layers (a field of the model here).

  Attributes:
    kernel: 'log' or 'power'.

  Reference:
    Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", 2022. arXiv:2205.09921
  """

  kernel: Literal["log", "power"] = "log"

  by_head: ClassVar = ("a", "p")

  def __post_init__(self):
    if self.kernel not in ("log", "power"):
      raise UserError(unknown("KERPLE kernel", self.kernel, ("log", "power")))

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    first, second = jax.random.split(key)
    h = (dims.num_heads,)
    return {"a": jax.random.uniform(first, h, jnp.float32), "p": 2 * jax.random.uniform(second, h, jnp.float32)}

  def bias(self, p: Arrays, distance: Num[Array, "*tu"]) -> Float[Array, "*tu"]:
    a = keep_within(p["a"], LEAST)
    if self.kernel == "log":
      return log_kernel(distance, a, keep_within(p["p"], LEAST))
    return power_kernel(distance, a, keep_within(p["p"], LEAST, 2.0))
