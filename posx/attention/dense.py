"""The textbook: scores of all queries and keys at once. The oracle of the other plans; for tests and short sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from posx.attention.visibility import visible
from posx.encodings.base import Encoding, merge

NEGATIVE = -1e30
"""Stands for minus infinity in scores; finite, so that a row that sees nothing has finite gradients."""


def attention(q, k, v, q_pos, k_pos, encoding: Encoding, p, *, scale: float, causal, window, q_segments, k_segments):
  """softmax(hooks(q k^T scale)) v with every array of size t x u in memory.

  Args:
    q: [b h t c], after `on_query_key`.
    k: [b g u c], g divides h.
    v: [b g u c].
    q_pos, k_pos: int32 [b t], [b u].
    p: prepared parameters and constants.
    scale: what the products are multiplied by.

  Returns:
    [b h t c] in v's dtype; a query that sees no key gets 0.
  """
  h = q.shape[1]
  k, v = (jnp.repeat(x, h // x.shape[1], axis=1) for x in (k, v))
  mine, shared = encoding.heads(p)
  exact = jnp.promote_types(q.dtype, jnp.float32)

  def one_head(mine, q, k, v, q_pos, k_pos, seen):
    p = merge(mine, shared)
    scores = jnp.matmul(q, k.T, preferred_element_type=exact) * scale
    if not encoding.elementwise:  # a hook that sums over keys must not count those of other documents
      scores = jnp.where(seen, scores, NEGATIVE)
    scores = encoding.on_scores(p, scores, q, k, q_pos, k_pos)
    scores = jnp.where(seen, scores, NEGATIVE)
    top = jnp.maximum(jax.lax.stop_gradient(scores.max(-1, keepdims=True)), NEGATIVE / 2)
    e = jnp.exp(scores - top)
    weights = e / jnp.maximum(e.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)
    out = jnp.matmul(weights.astype(v.dtype), v, preferred_element_type=exact)
    if encoding.uses("on_values"):
      out = out + encoding.on_values(p, weights, q_pos, k_pos)
    return out.astype(v.dtype)

  seen = visible(q_pos, k_pos, causal=causal, window=window, q_segments=q_segments, k_segments=k_segments)
  over_heads = jax.vmap(one_head, in_axes=(0, 0, 0, 0, None, None, None))
  return jax.vmap(over_heads, in_axes=(None, 0, 0, 0, 0, 0, 0))(mine, q, k, v, q_pos, k_pos, seen)
