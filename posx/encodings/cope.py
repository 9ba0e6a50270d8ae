"""CoPE: contextual positions, counted by gates that the content opens."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError


def positions(gate_logits: Float[Array, "t u"], q_pos: Num[Array, " t"], k_pos: Num[Array, " u"]) -> Float[Array, "t u"]:
  """p_ij = sum of the gates sigmoid(logit_it) over the keys t from j to i, itself included.

  Args:
    gate_logits: float32 [t, u], whole rows of keys; a masked key is one with a very negative logit.
    q_pos: i, tokens; a key behind it (t > i) has a closed gate.
    k_pos: t, tokens, in any order.

  Returns:
    float32 [t, u], gates counted.

  Reference:
    Golovneva et al., "Contextual Position Encoding", 2024, equations 3 and 4. arXiv:2405.18719
  """
  gates = jnp.where(k_pos[None, :] <= q_pos[:, None], jax.nn.sigmoid(gate_logits), 0.0)
  order = jnp.argsort(k_pos, stable=True)
  counted = jnp.cumsum(gates[:, order[::-1]], axis=1)[:, ::-1]
  return counted[:, jnp.argsort(order, stable=True)]


def between(by_row: Float[Array, "t n"], position: Float[Array, "t u"]) -> Float[Array, "t u"]:
  """Reads by_row at fractional positions, linearly between the two whole ones; beyond the last row, that row."""
  position = jnp.minimum(position, by_row.shape[1] - 1)
  part = position - jnp.floor(position)
  low, high = (jnp.take_along_axis(by_row, f(position).astype(jnp.int32), axis=1, mode="clip") for f in (jnp.floor, jnp.ceil))
  return (1 - part) * low + part * high


@dataclasses.dataclass(frozen=True)
class CoPE(Encoding):
  """Adds q_i e[p_ij], where p_ij counts the gates that the content opened from j to i.

  Acts on whole rows of scores. Parameters: table [max_position, c], shared by the heads, 0 at first as the authors start
  it. The addition is not scaled by 1/sqrt(c). Positions count only for the order of the keys.

  Attributes:
    max_position: rows; more open gates than that read the last one.
    scale_gates: gates from q.k/sqrt(c), as the authors' listing; False for q.k, as their equation.

  Reference:
    Golovneva et al., "Contextual Position Encoding: Learning to Count What's Important", 2024. arXiv:2405.18719
  """

  max_position: int = 64
  scale_gates: bool = True

  by_head: ClassVar = ()
  elementwise: ClassVar = False
  content_free: ClassVar = False
  interpolable: ClassVar = False

  def __post_init__(self):
    if self.max_position < 1:
      raise UserError(f"CoPE needs max_position >= 1, got {self.max_position}")

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    del key
    return {"table": jnp.zeros((self.max_position, dims.head_dim), jnp.float32)}

  def on_scores(self, p: Arrays, scores, q, k, q_pos, k_pos):
    del k
    c = p["table"].shape[1]
    counted = positions(scores if self.scale_gates else scores * c**0.5, q_pos, k_pos)
    by_row = jnp.einsum("tc,nc->tn", q[:, :c].astype(jnp.float32), p["table"], precision="highest")
    return scores + between(by_row, counted)
