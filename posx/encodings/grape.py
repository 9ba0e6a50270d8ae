"""GRAPE, additive form: ALiBi whose slopes the content scales, through gates of queries and keys."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from posx.encodings.alibi import slopes64
from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError, unknown

GATES = ("query", "key", "both")


def rate(x: Float[Array, "t c"], direction: Float[Array, " c"]) -> Float[Array, " t"]:
  """softplus(x . u / (|u| sqrt(c))), float32: how fast a token's scores fall with distance.

  Args:
    x: queries or keys of one head.
    direction: u, of any length.
  """
  unit = direction / jnp.maximum(jnp.linalg.norm(direction), 1e-6)
  return jax.nn.softplus(jnp.matmul(x.astype(jnp.float32), unit, precision="highest") * x.shape[1] ** -0.5)


@dataclasses.dataclass(frozen=True)
class GRAPE(Encoding):
  """Subtracts |i - j| m w (softplus(v . q_i / sqrt(c)) + softplus(u . k_j / sqrt(c))), m the head's slope of ALiBi.

  In the paper a position n acts on queries and keys, made homogeneous by one more channel, as exp(n w A) = I + n w A with
  A A = 0 (a unipotent group): what that adds to a score is linear in i - j. With both gates constant it is ALiBi exactly. The
  paper's path-integral form sums a gate of every token in between instead, and is FoX (`forgetting`) where that gate looks at
  its own token alone; its pairwise form and the multiplicative one (rotations, RoPE among them) are not here.

  Acts on the scores. Parameters: w [h] (used as softplus(w), 1 at first), and v, u [h, c] (used with unit length, normal of
  deviation c^-1/2 at first). Behind a rotary encoding of a chain the gates see turned queries and keys.

  Attributes:
    gates: 'both', or those of the 'query' or the 'key' alone.

  Reference:
    Zhang et al., "Group Representational Position Encoding", 2025. arXiv:2512.07805,
    github.com/model-architectures/GRAPE (key gated, query gated and both)
  """

  gates: Literal["both", "query", "key"] = "both"

  by_head: ClassVar = ("w", "v", "u", "slope")
  content_free: ClassVar = False

  def __post_init__(self):
    if self.gates not in GATES:
      raise UserError(unknown("gates of GRAPE", self.gates, GATES))

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    h, c = dims.num_heads, dims.head_dim
    names = {"query": ("v",), "key": ("u",), "both": ("v", "u")}[self.gates]
    keys = jax.random.split(key, len(names))
    made = {name: c**-0.5 * jax.random.normal(k, (h, c), jnp.float32) for name, k in zip(names, keys, strict=True)}
    return {"w": jnp.full(h, np.log(np.expm1(1.0)), jnp.float32), **made}

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    del length
    return {"slope": slopes64(dims.num_heads).astype(np.float32)}

  def on_scores(self, p: Arrays, scores, q, k, q_pos, k_pos):
    c = p["v" if "v" in p else "u"].shape[0]
    total = jnp.zeros((), jnp.float32)
    if "v" in p:
      total = total + rate(q[:, :c], p["v"])[:, None]
    if "u" in p:
      total = total + rate(k[:, :c], p["u"])[None, :]
    distance = jnp.abs(q_pos[:, None] - k_pos[None, :]).astype(jnp.float32)
    return scores - distance * (p["slope"] * jax.nn.softplus(p["w"])) * total
