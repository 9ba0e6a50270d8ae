"""The textbook: scores of all queries and keys at once. The oracle of the other plans; for tests and short sequences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from posx.attention.visibility import visible
from posx.encodings.base import Encoding, merge, over_heads

NEGATIVE = -1e30
"""Stands for minus infinity in scores; finite, so that a row that sees nothing has finite gradients."""


def attention(q, k, v, q_pos, k_pos, encoding: Encoding, p, *, scale: float, causal, window, q_segments, k_segments, features: Any = None):
  """softmax(hooks(q k^T scale)) v with every array of size t x u in memory.

  Args:
    q: [b h t c], after `on_query_key`.
    k: [b g u c], g divides h.
    v: [b g u c].
    q_pos, k_pos: int32 [b t], [b u].
    p: prepared parameters and constants.
    scale: what the products are multiplied by.
    features: {"query": ..., "key": ...}, [b t h ...] for those by head and [b t ...] for the others.

  Returns:
    [b h t c] in v's dtype; a query that sees no key gets 0.
  """
  rest = {"scale": scale, "causal": causal, "window": window, "q_segments": q_segments, "k_segments": k_segments}
  w = weights(q, k, q_pos, k_pos, encoding, p, **rest, features=features)
  v = jnp.repeat(v, q.shape[1] // v.shape[1], axis=1)

  def one_row(w, v, q_pos, k_pos, features):
    mine, shared = encoding.heads(joined(encoding, p, features))

    def one_head(mine, w, v):
      out = jnp.matmul(w.astype(v.dtype), v, preferred_element_type=w.dtype)
      if encoding.uses("on_values"):
        out = out + encoding.on_values(merge(mine, shared), w, q_pos, k_pos)
      return out.astype(v.dtype)

    return jax.vmap(one_head)(mine, w, v)

  return jax.vmap(one_row)(w, v, q_pos, k_pos, features)


def joined(encoding: Encoding, p, features):
  """`p` with the features of one row, heads first."""
  if features is None:
    return p
  split = {side: encoding.heads(tree) for side, tree in features.items()}
  first = {side: merge(jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), mine), shared) for side, (mine, shared) in split.items()}
  return encoding.join(p, first["query"], first["key"])


def weights(
  q, k, q_pos, k_pos, encoding: Encoding, p, *, scale: float, causal=True, window=None, q_segments=None, k_segments=None, features=None
):
  """softmax(hooks(q k^T scale)) [b h t u], at least float32; 0 for a query that sees no key. Arguments as of `attention`."""
  k = jnp.repeat(k, q.shape[1] // k.shape[1], axis=1)
  exact = jnp.promote_types(q.dtype, jnp.float32)
  hook = encoding.on_scores if encoding.mixes_heads else over_heads(encoding)

  def one_row(q, k, q_pos, k_pos, seen, features):
    scores = jnp.matmul(q, k.swapaxes(-1, -2), preferred_element_type=exact) * scale
    if not encoding.elementwise:  # a hook that sums over keys must not count those of other documents
      scores = jnp.where(seen, scores, NEGATIVE)
    scores = hook(joined(encoding, p, features), scores, q, k, q_pos, k_pos)
    scores = jnp.where(seen, scores, NEGATIVE)
    top = jnp.maximum(jax.lax.stop_gradient(scores.max(-1, keepdims=True)), NEGATIVE / 2)
    e = jnp.exp(scores - top)
    return e / jnp.maximum(e.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)

  seen = visible(q_pos, k_pos, causal=causal, window=window, q_segments=q_segments, k_segments=k_segments)
  return jax.vmap(one_row)(q, k, q_pos, k_pos, seen, features)
