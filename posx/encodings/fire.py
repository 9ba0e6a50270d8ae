"""FIRE: a small network of the distance over the query's position is added to the scores."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError


def normalized(
  q_pos: Num[Array, " t"], k_pos: Num[Array, " u"], c: Float[Array, ""], threshold: Float[Array, ""], eps: float = 1e-6
) -> Float[Array, "t u"]:
  """psi(|i - j|) / (psi(max(L, i)) + eps) with psi(x) = log(|c x| + 1): 0 here, 1 at the first token of a long context.

  Args:
    q_pos: i, tokens.
    k_pos: j, tokens.
    c: how strongly near distances are spread.
    threshold: L, in tokens; below it the denominator stands still.
    eps: keeps i = L = 0 finite, as in the paper's listing; its equation has none.
  """
  distance = jnp.abs(q_pos[:, None] - k_pos[None, :]).astype(jnp.float32)
  longest = jnp.maximum(q_pos.astype(jnp.float32), jnp.abs(threshold))[:, None]
  return jnp.log1p(jnp.abs(c * distance)) / (jnp.log1p(jnp.abs(c * longest)) + eps)


def bias(
  q_pos: Num[Array, " t"],
  k_pos: Num[Array, " u"],
  *,
  c: Float[Array, ""],
  threshold: Float[Array, ""],
  w1: Float[Array, " n"],
  b1: Float[Array, " n"],
  w2: Float[Array, " n"],
  b2: Float[Array, ""],
  eps: float = 1e-6,
) -> Float[Array, "t u"]:
  """The bias of one head: w2 . relu(w1 x + b1) + b2 of the normalised distance x.

  Args:
    q_pos: i, tokens.
    k_pos: j, tokens.
    c: how strongly near distances are spread.
    threshold: L, in tokens.
    w1: weights of the hidden layer, n units; shared by the heads.
    b1: biases of the hidden layer.
    w2: weights of this head.
    b2: bias of this head.
    eps: added to the denominator.

  Returns:
    float32 [t, u], in logits.

  Reference:
    Li et al., "Functional Interpolation for Relative Positions", 2024, equations 5 to 7 and its listing. arXiv:2310.04418
  """
  x = normalized(q_pos, k_pos, c, threshold, eps)
  # One unit after the other, made again for its gradient: [t, u, n] would be n times the memory of the scores.
  unit = jax.checkpoint(lambda x, w1, b1, w2: w2 * jax.nn.relu(w1 * x + b1), prevent_cse=False)
  total, _ = jax.lax.scan(lambda total, weights: (total + unit(x, *weights), None), jnp.zeros_like(x), (w1, b1, w2))
  return total + b2


@dataclasses.dataclass(frozen=True)
class FIRE(Encoding):
  """Adds f(psi(i - j) / psi(max(L, i))), f a network of one hidden layer and psi(x) = log(|c x| + 1).

  Acts on the scores. Parameters: c [], stretch [] (multiplies the threshold: L = |stretch| x threshold), w1 [n], b1 [n],
  w2 [h, n], b2 [h]. Depends on i itself, not on the distance alone: beyond L distances are squeezed as the context grows
  (progressive interpolation). Above the diagonal |i - j| is used.

  Attributes:
    width: n, units of the hidden layer.
    c: initial value of c.
    threshold: initial L, in tokens.
    eps: added to the denominator, as in the paper's listing.

  Reference:
    Li et al., "Functional Interpolation for Relative Positions Improves Long Context Transformers", 2024. arXiv:2310.04418
  """

  width: int = 32
  c: float = 0.1
  threshold: float = 512.0
  eps: float = 1e-6

  by_head: ClassVar = ("w2", "b2")
  relative: ClassVar = False

  def __post_init__(self):
    if self.width < 1 or not self.threshold >= 0 or not self.eps >= 0:
      raise UserError(f"FIRE needs width >= 1, threshold >= 0 and eps >= 0, got {self}")

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    n, h = self.width, dims.num_heads
    # Uniform within one over the square root of a layer's inputs, as the authors' framework starts linear layers.
    shapes = {"w1": ((n,), 1.0), "b1": ((n,), 1.0), "w2": ((h, n), n**-0.5), "b2": ((h,), n**-0.5)}
    keys = jax.random.split(key, len(shapes))
    layers = {name: jax.random.uniform(k, s, jnp.float32, -b, b) for k, (name, (s, b)) in zip(keys, shapes.items(), strict=True)}
    return {"c": jnp.float32(self.c), "stretch": jnp.float32(1.0), **layers}

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    del dims, length
    return {"threshold": np.float32(self.threshold)}

  def on_scores(self, p: Arrays, scores, q, k, q_pos, k_pos):
    del q, k
    layers = {name: p[name] for name in ("c", "w1", "b1", "w2", "b2")}
    return scores + bias(q_pos, k_pos, threshold=p["stretch"] * p["threshold"], eps=self.eps, **layers)

  def program(self) -> Encoding:
    return FIRE(width=self.width, eps=self.eps)
