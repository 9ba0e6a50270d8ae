"""Attention over a static triangle: short sequences of consecutive positions with a bias of the distance alone."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import toeplitz
from posx.attention.dense import NEGATIVE
from posx.attention.numerics import exp
from posx.attention.pieces import HIDDEN, finish, pad, round_up
from posx.encodings.base import Encoding, merge


class Plan(NamedTuple):
  rows: int  # queries of a strip
  ranges: tuple[tuple[int, int], ...]  # keys that each strip sees: first, last + 1
  top: int  # i - j of the last query of the last strip and key 0
  width: int  # columns of the table


def plan_of(t: int, u: int, offset: int, causal: bool, window: int | None) -> Plan:
  rows = 128 if t >= 256 else round_up(t, 8)
  count = -(-t // rows)
  ranges = []
  for a in range(count):
    oldest, newest = offset + a * rows, offset + min((a + 1) * rows, t) - 1
    last = newest + 1 if causal else u if window is None else newest + window
    last = max(0, min(u, last))
    first = 0 if window is None else max(0, oldest - window + 1) // 8 * 8
    ranges.append((min(first, last), last))
  # column z of the table serves key z - (count - 1 - a) * rows of strip a
  width = max(1, *(last + (count - 1 - a) * rows for a, (_, last) in enumerate(ranges)))
  return Plan(rows, tuple(ranges), offset + count * rows - 1, width)


def table_of(plan: Plan, bias, causal: bool, window: int | None):
  """Bias and mask of every strip as one Toeplitz array [rows, width]."""
  distance = toeplitz.distances(plan.top, plan.rows + plan.width - 1)
  hidden = distance < 0 if causal else jnp.zeros(distance.shape, bool)
  if window is not None:
    hidden |= jnp.abs(distance) >= window
  values = bias(jnp.where(hidden, 0, distance)) if bias else jnp.zeros(distance.shape, jnp.float32)
  return toeplitz.skew(jnp.where(hidden, NEGATIVE, values), plan.rows, plan.width)


class Spec(NamedTuple):
  """What is static about an attention."""

  plan: Plan
  scale: float
  biased: bool  # there is a table for each head, which has a gradient; else one mask for all
  cpu: bool


def attention(encoding: Encoding, p, q, k, v, *, scale, causal, window, offset: int, cpu: bool):
  """q [b t h c], k [b u g c], v [b u g e] -> [b t h e]; the queries stand `offset` behind the keys.

  What `Plan.rows` queries of a head see is one product; bias and mask are one table for all strips of a head.
  """
  plan = plan_of(q.shape[1], k.shape[1], offset, causal, window)
  biased = encoding.uses("bias")
  if biased:
    mine, shared = encoding.heads(p)
    table = lambda mine: table_of(plan, functools.partial(encoding.bias, merge(mine, shared)), causal, window)
    tables = jax.vmap(table, axis_size=q.shape[2])(mine)
  else:
    tables = table_of(plan, None, causal, window)
  out: Any = _attention(Spec(plan, scale, biased, cpu), *_varying((q, k, v, tables), (q, k, v, tables)))
  return out


# The loop over batch rows and heads is inside the rule. As a loop around a rule for one head it stacked what the gradient needs
# and cut it apart again.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(spec: Spec, q, k, v, tables):
  return _forward(spec, q, k, v, tables)[0]


def _forward(spec: Spec, q, k, v, tables):
  if not spec.cpu:
    out, lse = (_by_token(x) for x in _over_heads(spec, functools.partial(_head_forward, spec), (q,), k, v, tables))
    return out, (q, k, v, tables, out, lse)
  (b, t, h, _), (g, e) = q.shape, v.shape[2:]

  def one(n, done):
    i, j = n // h, n % h
    m = j // (h // g)
    mine = _head_forward(spec, (_cut(q, i, j),), _cut(k, i, m), _cut(v, i, m), _table(spec, tables, j))
    return tuple(_put(x, y, i, j) for x, y in zip(done, mine, strict=True))

  start = _varying((jnp.zeros((b, t, h, e), v.dtype), jnp.zeros((b, t, h), jnp.float32)), (q, k, v, tables))
  out, lse = lax.fori_loop(0, b * h, one, start)
  return out, (q, k, v, tables, out, lse)


def _backward(spec: Spec, saved, d_out):
  q, k, v, tables, out, lse = saved
  if not spec.cpu:
    d_q, d_k, d_v, d_tables = _over_heads(spec, functools.partial(_head_backward, spec), (q, out, lse, d_out), k, v, tables)
    d_k, d_v = (jnp.moveaxis(x.sum(2), 1, 2) for x in (d_k, d_v))
    return _by_token(d_q), d_k.astype(k.dtype), d_v.astype(v.dtype), d_tables.sum(0).reshape(tables.shape) if spec.biased else None
  (b, _, h, _), g = q.shape, v.shape[2]

  def one(n, done):
    i, j = n // h, n % h
    m = j // (h // g)
    d_q, d_k, d_v, d_tables = done
    queries = tuple(_cut(x, i, j) for x in (q, out, lse, d_out))
    mine = _head_backward(spec, queries, _cut(k, i, m), _cut(v, i, m), _table(spec, tables, j))
    if spec.biased:
      d_tables = lax.dynamic_update_index_in_dim(d_tables, _table(spec, d_tables, j) + mine[3], j, 0)
    return _put(d_q, mine[0], i, j), _put(d_k, _cut(d_k, i, m) + mine[1], i, m), _put(d_v, _cut(d_v, i, m) + mine[2], i, m), d_tables

  start = (jnp.zeros_like(q), jnp.zeros_like(k), jnp.zeros_like(v), jnp.zeros_like(tables) if spec.biased else None)
  return lax.fori_loop(0, b * h, one, _varying(start, (q, k, v, tables, d_out)))


def _varying(tree, of):
  """`tree`, tied to other arrays: `jax.shard_map` asks that what a loop or a rule takes and gives varies over the same axes."""
  first = sum(lax.index_in_dim(x.ravel(), 0, keepdims=False).astype(jnp.float32) for x in of)
  nothing = jnp.where(False, lax.stop_gradient(first), 0.0)
  return jax.tree.map(lambda x: x + nothing.astype(x.dtype), tree)


_attention.defvjp(_forward, _backward)


def _cut(x, i, j):
  """Row i of the batch, head j: [b t h ..] -> [t ..]."""
  size = (1, x.shape[1], 1, *x.shape[3:])
  return lax.dynamic_slice(x, (i, 0, j, 0)[: x.ndim], size).reshape(x.shape[1], *x.shape[3:])


def _table(spec: Spec, tables, j):
  return lax.dynamic_index_in_dim(tables, j, 0, keepdims=False) if spec.biased else tables


def _put(x, y, i, j):
  return lax.dynamic_update_slice(x, y.reshape(1, x.shape[1], 1, *x.shape[3:]), (i, 0, j, 0)[: x.ndim])


def _over_heads(spec: Spec, one, queries, k, v, tables):
  """one(...) of every row and head at once, outputs [b g h/g ..]; for accelerators."""
  (b, t, h), g = queries[0].shape[:3], k.shape[2]
  queries = tuple(jnp.moveaxis(x.reshape(b, t, g, h // g, *x.shape[3:]), 1, 3) for x in queries)
  tables, axis = (tables.reshape(g, h // g, *tables.shape[1:]), 0) if spec.biased else (tables, None)
  one = jax.vmap(one, (0, None, None, axis))
  return jax.vmap(jax.vmap(one, (0, 0, 0, axis)), (0, 0, 0, None))(queries, jnp.moveaxis(k, 1, 2), jnp.moveaxis(v, 1, 2), tables)


def _by_token(x):
  """[b g h/g t ..] -> [b t h ..]."""
  b, g, r, t = x.shape[:4]
  return jnp.moveaxis(x, 3, 1).reshape(b, t, g * r, *x.shape[4:])


def _strip_scores(plan: Plan, q, k, table, a):
  rows, ranges = plan.rows, plan.ranges
  first, last = ranges[a]
  shift = (len(ranges) - 1 - a) * rows
  scores = jnp.matmul(q[a * rows : (a + 1) * rows], k[first:last].T, preferred_element_type=jnp.float32)
  return scores + table[:, first + shift : last + shift]


def _head_forward(spec: Spec, queries, k, v, table):
  """One head: (output [t e], log-sum-exp [t])."""
  plan, (q,) = spec.plan, queries
  t = q.shape[0]
  q = pad(q * spec.scale, len(plan.ranges) * plan.rows)
  outs, tops = [], []
  for a, (first, last) in enumerate(plan.ranges):
    if last <= first:
      outs.append(jnp.zeros((plan.rows, v.shape[1]), v.dtype))
      tops.append(jnp.full((plan.rows,), HIDDEN))
      continue
    scores = _strip_scores(plan, q, k, table, a)
    top = jnp.maximum(scores.max(1), NEGATIVE / 2)
    e = exp(scores - top[:, None], spec.cpu)
    acc = jnp.matmul(e.astype(v.dtype), v[first:last], preferred_element_type=jnp.float32)
    out, lse = finish(acc, e.sum(1), top)
    outs.append(out.astype(v.dtype))
    tops.append(lse)
  return jnp.concatenate(outs)[:t], jnp.concatenate(tops)[:t]


def _head_backward(spec: Spec, queries, k, v, table):
  """One head: gradients of q, k, v and the table; those of k, v and the table in float32."""
  plan, t = spec.plan, queries[0].shape[0]
  n = len(plan.ranges) * plan.rows
  q, out, d_out = (pad(queries[m], n) for m in (0, 1, 3))
  q, lse = q * spec.scale, jnp.pad(queries[2], (0, n - t), constant_values=HIDDEN)
  delta = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)
  q_t, d_out_t, v_t = q.T, d_out.T, v.T
  d_q, d_table = [], jnp.zeros_like(table)
  d_k, d_v = jnp.zeros(k.shape[::-1], jnp.float32), jnp.zeros(v.shape[::-1], jnp.float32)
  for a, (first, last) in enumerate(plan.ranges):
    mine = slice(a * plan.rows, (a + 1) * plan.rows)
    if last <= first:
      d_q.append(jnp.zeros((plan.rows, q.shape[1]), jnp.float32))
      continue
    shift = (len(plan.ranges) - 1 - a) * plan.rows
    w = exp(_strip_scores(plan, q, k, table, a) - lse[mine, None], spec.cpu)
    d_w = jnp.matmul(d_out[mine], v_t[:, first:last], preferred_element_type=jnp.float32)
    d_s = w * (d_w - delta[mine, None])
    d_v = d_v.at[:, first:last].add(jnp.matmul(d_out_t[:, mine], w.astype(v.dtype), preferred_element_type=jnp.float32))
    d_k = d_k.at[:, first:last].add(jnp.matmul(q_t[:, mine], d_s.astype(q.dtype), preferred_element_type=jnp.float32))
    d_q.append(jnp.matmul(d_s.astype(k.dtype), k[first:last], preferred_element_type=jnp.float32))
    if spec.biased:
      d_table = d_table.at[:, first + shift : last + shift].add(d_s)
  return (jnp.concatenate(d_q)[:t] * spec.scale).astype(q.dtype), d_k.T, d_v.T, d_table
