"""Attention with hooks that need a whole row of scores: one strip of queries against all keys at a time."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import dense
from posx.attention.pieces import pad, round_up
from posx.encodings.base import Encoding, merge

_ROWS_TIMES_KEYS = 1 << 19
"""Hooks that mix heads hold several arrays of heads x rows x keys; rows become fewer as keys become more."""


def attention(encoding: Encoding, p, q, k, v, where, features, how, size: int | None, cpu: bool):
  """q [b h t c], k and v [b g u c], positions and segments [1 or b, t] -> [b h t e].

  Args:
    how: scale, causal, window.
    size: queries of a strip; None chooses.
    cpu: rows and heads take turns.
  """
  (b, h, t, _), (_, g, u, _) = q.shape, k.shape
  each = _one_by_one if cpu else _batched
  common = {n: x[0] for n, x in where.items() if x is not None and x.shape[0] == 1}
  by_row = {n: x for n, x in where.items() if x is not None and x.shape[0] != 1}
  if encoding.mixes_heads:
    size = size or min(128, max(8, _ROWS_TIMES_KEYS // u))
    given = by_row if features is None else by_row | {"features": features}
    return each(lambda args: _all_heads(encoding, p, size, how, args[0], args[1], args[2], {**common, **args[3]}), (q, k, v, given))
  mine, shared = encoding.heads(p)
  sides = {} if features is None else {side: encoding.heads(tree) for side, tree in features.items()}
  features_of_all = {side: shared for side, (_, shared) in sides.items()}
  features_by_head = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), {side: mine for side, (mine, _) in sides.items()})

  def one_head(args):
    (mine, of_head), q, k, v = args
    one = _head(encoding, how, size or 128, merge(mine, shared))

    def one_row(args):
      q, k, v, rows, of_head, of_all = args
      return one(q, k, v, {**common, **rows} | ({"features": merge(of_head, of_all)} if sides else {}))

    return each(one_row, (q, k, v, by_row, of_head, features_of_all))

  def one_group(args):
    by_head, q, k, v = args
    return each(lambda args: one_head((*args, k, v)), (by_head, q))

  split = lambda x: x.reshape(g, h // g, *x.shape[1:])
  q = split(jnp.moveaxis(q, 1, 0))
  k, v = jnp.moveaxis(k, 1, 0), jnp.moveaxis(v, 1, 0)
  out = each(one_group, (jax.tree.map(split, (mine, features_by_head)), q, k, v))  # [g, h / g, b, t, c]
  return jnp.moveaxis(out.reshape(h, b, t, -1), 0, 1)


def _one_by_one(f, xs):
  """Unlike `heads.each` a loop that JAX differentiates: it stacks what f gives, where sums in its carry would be kept for every turn."""
  n = jax.tree.leaves(xs)[0].shape[0]
  if n == 1:
    return f(jax.tree.map(lambda x: x[0], xs))[None]
  return lax.map(f, xs)


def _batched(f, xs):
  return jax.vmap(f)(xs)


def _head(encoding, how, size, p):
  """Binds one head's parameters."""

  def one(q, k, v, where):
    features = where.get("features")

    def strip(q, q_pos, q_segments, queries):
      given = p if features is None else encoding.join(p, queries, features["key"])
      return _dense(q[None], k[None], v[None], q_pos, q_segments, where, _OneHead(encoding), {"p": given}, how)[0]

    return _strips(strip, size, q, where)

  return one


def _all_heads(encoding, p, size, how, q, k, v, where):
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
