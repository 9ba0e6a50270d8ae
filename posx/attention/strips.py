"""Attention over a static triangle: short sequences of consecutive positions with a bias of the distance alone."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from posx.attention import toeplitz
from posx.attention.dense import NEGATIVE
from posx.attention.heads import Parts, each, varying
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
  out: Any = _attention(Spec(plan, scale, biased, cpu), *varying((q, k, v, tables), (q, k, v, tables)))
  return out


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(spec: Spec, q, k, v, tables):
  return _forward(spec, q, k, v, tables)[0]


def _given(spec: Spec, queries, k, v, tables) -> Parts:
  return Parts(queries=queries, keys=(k, v), **{"heads" if spec.biased else "shared": tables})


def _forward(spec: Spec, q, k, v, tables):
  def one(mine: Parts) -> Parts:
    k, v = mine.keys
    return Parts(queries=_head_forward(spec, mine.queries, k, v, mine.heads if spec.biased else mine.shared))

  (b, _, h, _), g = q.shape, k.shape[2]
  out, lse = each(spec.cpu, (b, h, g), one, _given(spec, (q,), k, v, tables)).queries
  return out, (q, k, v, tables, out, lse)


def _backward(spec: Spec, saved, d_out):
  q, k, v, tables, out, lse = saved

  def one(mine: Parts) -> Parts:
    k, v = mine.keys
    d_q, d_k, d_v, d_table = _head_backward(spec, mine.queries, k, v, mine.heads if spec.biased else mine.shared)
    return Parts(queries=d_q, keys=(d_k, d_v), heads=d_table if spec.biased else ())

  (b, _, h, _), g = q.shape, k.shape[2]
  found = each(spec.cpu, (b, h, g), one, _given(spec, (q, out, lse, d_out), k, v, tables))
  d_k, d_v = found.keys
  return found.queries, d_k.astype(k.dtype), d_v.astype(v.dtype), found.heads if spec.biased else None


_attention.defvjp(_forward, _backward)


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
