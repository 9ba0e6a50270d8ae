"""Attention with hooks that need a whole row of scores: one strip of queries against all keys at a time."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import dense
from posx.attention.pieces import pad, round_up
from posx.encodings.base import Encoding


def head(encoding, scale, causal, window, size, p, joined):
  """Binds one head's parameters."""
  del joined
  how = {"scale": scale, "causal": causal, "window": window}

  def one(q, k, v, where):
    features = where.get("features")

    def strip(q, q_pos, q_segments, queries):
      given = p if features is None else encoding.join(p, queries, features["key"])
      return _dense(q[None], k[None], v[None], q_pos, q_segments, where, _OneHead(encoding), {"p": given}, how)[0]

    return _strips(strip, size, q, where)

  return one


def all_heads(encoding, p, size, how, q, k, v, where):
  """Hooks that mix heads: one strip of the queries of every head at a time; q [h t c], k and v [g u c]."""
  features = where.get("features")

  def strip(q, q_pos, q_segments, queries):
    both = None if features is None else {"query": queries, "key": features["key"]}
    return jnp.moveaxis(_dense(jnp.moveaxis(q, 0, 1), k, v, q_pos, q_segments, where, encoding, p, how, both), 0, 1)

  return jnp.moveaxis(_strips(strip, size, jnp.moveaxis(q, 1, 0), where), 1, 0)


def _dense(q, k, v, q_pos, q_segments, where, encoding, p, how, features=None):
  seg = (None, None) if q_segments is None else (q_segments[None], where["k_segments"][None])
  features = jax.tree.map(lambda x: x[None], features)
  return dense.attention(
    q[None],
    k[None],
    v[None],
    q_pos[None],
    where["k_pos"][None],
    encoding,
    p,
    q_segments=seg[0],
    k_segments=seg[1],
    features=features,
    **how,
  )[0]


def _strips(strip, size, q, where):
  """Applies `strip` to `size` queries at a time; whatever is of queries has them along its first axis."""
  t = q.shape[0]
  n = min(size, t)
  full = round_up(t, n)

  def cut(x, mode: Literal["constant", "edge"] = "edge"):
    return pad(x, full, mode=mode).reshape(-1, n, *x.shape[1:])

  queries = where["features"]["query"] if "features" in where else None
  of_queries = cut(q, "constant"), *jax.tree.map(cut, (where["q_pos"], where.get("q_segments"), queries))
  out = lax.map(jax.checkpoint(lambda args: strip(*args)), of_queries)
  return out.reshape(full, *out.shape[2:])[:t]


@dataclasses.dataclass(frozen=True)
class _OneHead(Encoding):
  """One head's prepared slice seen as an encoding whose parameters all heads share."""

  elementwise: ClassVar = False

  inner: Encoding

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    return self.inner.on_scores(p["p"], scores, q, k, q_pos, k_pos)

  def on_values(self, p, weights, q_pos, k_pos):
    return self.inner.on_values(p["p"], weights, q_pos, k_pos)

  def uses(self, hook: str) -> bool:
    return self.inner.uses(hook)
