"""KERPLE: conditionally positive definite kernels of the distance, with trained parameters, are added to the scores."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError, unknown

Kernel = Literal["log", "power", "three_parameter_log"]
KERNELS = ("log", "power", "three_parameter_log")

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


def three_parameter_log_kernel(
  distance: Num[Array, "*tu"], a: Float[Array, "*h"], p: Float[Array, "*h"], e: Float[Array, "*h"]
) -> Float[Array, "*tu"]:
  """Logarithmic kernel with a trained exponent: -p log(1 + a |d|^e); e = 1 is `log_kernel`.

  The paper's r1, r2, r3 are `p`, `a`, `e`.

  Args:
    distance: i - j, in tokens.
    a: positive, one over |d|^e at which the logarithm sets in.
    p: positive, logits per natural log of distance.
    e: the exponent, in (0, 2].

  Returns:
    float32, at most 0, in logits.

  Reference:
    Chi et al., "KERPLE", 2022, corollary 1(b) and section 5.3 ("3-para-log"). arXiv:2205.09921
  """
  return -p * jnp.log1p(-power_kernel(distance, a, e))


def weight_kernel(distance: Num[Array, "*tu"], a: Float[Array, "*h"], p: Float[Array, "*h"]) -> Float[Array, "*tu"]:
  """What the product q.k is multiplied by: exp(-a |d|^p), positive definite like the product itself.

  Args:
    distance: i - j, in tokens.
    a: positive.
    p: the exponent, in (0, 2].

  Returns:
    float32, in (0, 1].

  Reference:
    Chi et al., "KERPLE", 2022, section 5.3 ("bias+wht"); `ParallelKerplePower` of the authors' code. arXiv:2205.09921
  """
  return jnp.exp(power_kernel(distance, a, p))


def keep_within(x: Float[Array, "*h"], low: float, high: float = float("inf")) -> Float[Array, "*h"]:
  """x held between two bounds, whose gradient passes as if there were none.

  The authors clamp the stored parameters before each use, so a parameter at its bound still learns; a plain clip would
  leave it there for ever.
  """
  return jax.lax.stop_gradient(jnp.clip(x, low, high)) + (x - jax.lax.stop_gradient(x))


@dataclasses.dataclass(frozen=True)
class KERPLE(Encoding):
  """Subtracts a trained, concave or linear function of the distance: -p log(1 + a d), -a d^p, or -p log(1 + a d^e).

  Acts on the scores. Parameters: a [h], uniform in (0, 1), and p [h], uniform in (0, 2), as the authors start them;
  e [h], uniform in (0, 2), for 'three_parameter_log'; weight_a [h] and weight_p [h], started as a and p, with `weight`.
  All are used no smaller than 0.01, and exponents no larger than 2, wherever the optimizer takes them.

  With `weight` the scaled product is multiplied by exp(-weight_a d^weight_p) before the bias is added, as the authors'
  code does; the paper tries it with the power kernel only. Their released code has no three-parameter logarithm: its
  form is the paper's, its start that of the other exponents.

  The authors share one set per head over all layers (a field of the model here).

  Attributes:
    kernel: 'log', 'power' or 'three_parameter_log'.
    weight: multiply the product by a kernel of its own.

  Reference:
    Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", 2022. arXiv:2205.09921;
    github.com/chijames/KERPLE
  """

  kernel: Kernel = "log"
  weight: bool = False

  by_head: ClassVar = ("a", "p", "e", "weight_a", "weight_p")

  def __post_init__(self):
    if self.kernel not in KERNELS:
      raise UserError(unknown("KERPLE kernel", self.kernel, KERNELS))

  @property
  def content_free(self) -> bool:  # type: ignore[override]
    return not self.weight

  def uses(self, hook: str) -> bool:
    return super().uses(hook) and (hook != "on_scores" or self.weight)

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    tops = {"a": 1.0, "p": 2.0}
    if self.kernel == "three_parameter_log":
      tops["e"] = 2.0
    if self.weight:
      tops |= {"weight_a": 1.0, "weight_p": 2.0}
    # The first two keys stay what they are without the others.
    keys = [*jax.random.split(key), *(jax.random.fold_in(key, n) for n in range(2, len(tops)))]
    h = (dims.num_heads,)
    return {name: top * jax.random.uniform(each, h, jnp.float32) for each, (name, top) in zip(keys, tops.items(), strict=True)}

  def bias(self, p: Arrays, distance: Num[Array, "*tu"]) -> Float[Array, "*tu"]:
    a = keep_within(p["a"], LEAST)
    if self.kernel == "power":
      return power_kernel(distance, a, keep_within(p["p"], LEAST, 2.0))
    if self.kernel == "log":
      return log_kernel(distance, a, keep_within(p["p"], LEAST))
    return three_parameter_log_kernel(distance, a, keep_within(p["p"], LEAST), keep_within(p["e"], LEAST, 2.0))

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    if self.weight:
      a, exponent = keep_within(p["weight_a"], LEAST), keep_within(p["weight_p"], LEAST, 2.0)
      scores = scores * weight_kernel(q_pos[:, None] - k_pos[None, :], a, exponent)
    return super().on_scores(p, scores, q, k, q_pos, k_pos)
