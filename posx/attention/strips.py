"""Attention over a static triangle: short sequences of consecutive positions with a bias of the distance alone."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from posx.attention import toeplitz
from posx.attention.dense import NEGATIVE
from posx.attention.numerics import exp
from posx.attention.pieces import HIDDEN, finish, pad, round_up


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


def head(encoding, scale, causal, window, plan: Plan, fixed, cpu, p, joined):
  """Everything visible to `plan.rows` queries is one product; the mask and the bias are one table for all strips."""
  del joined
  table = table_of(plan, functools.partial(encoding.bias, p), causal, window) if fixed is None else fixed

  def one(q, k, v, where):
    del where
    padded = len(plan.ranges) * plan.rows
    out = _strips((plan.rows, plan.ranges, cpu), pad(q * scale, padded), k, v, table)
    return out[: q.shape[0]]  # pyright: ignore[reportIndexIssue]  # JAX's types lose what a custom_vjp returns under partial

  return one


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _strips(spec, q, k, v, table):
  return _strips_forward(spec, q, k, v, table)[0]


def _strip_scores(spec, q, k, table, a):
  rows, ranges, _ = spec
  first, last = ranges[a]
  shift = (len(ranges) - 1 - a) * rows
  scores = jnp.matmul(q[a * rows : (a + 1) * rows], k[first:last].T, preferred_element_type=jnp.float32)
  return scores + table[:, first + shift : last + shift]


def _strips_forward(spec, q, k, v, table):
  rows, ranges, cpu = spec
  outs, tops = [], []
  ones = jnp.concatenate([v, jnp.ones((v.shape[0], 1), v.dtype)], -1)
  for a, (first, last) in enumerate(ranges):
    if last <= first:
      outs.append(jnp.zeros((rows, v.shape[1]), v.dtype))
      tops.append(jnp.full((rows,), HIDDEN))
      continue
    scores = _strip_scores(spec, q, k, table, a)
    top = jnp.maximum(scores.max(1), NEGATIVE / 2)
    e = exp(scores - top[:, None], cpu)
    acc = jnp.matmul(e.astype(v.dtype), ones[first:last], preferred_element_type=jnp.float32)
    out, lse = finish(acc[:, :-1], acc[:, -1], top)
    outs.append(out.astype(v.dtype))
    tops.append(lse)
  out, lse = jnp.concatenate(outs), jnp.concatenate(tops)
  return out, (q, k, v, table, out, lse)


def _strips_backward(spec, saved, d_out):
  rows, ranges, cpu = spec
  q, k, v, table, out, lse = saved
  delta = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)
  q_t, d_out_t, v_t = q.T, d_out.T, v.T
  d_q, d_table = [], jnp.zeros_like(table)
  d_k, d_v = jnp.zeros(k.shape[::-1], jnp.float32), jnp.zeros(v.shape[::-1], jnp.float32)
  for a, (first, last) in enumerate(ranges):
    mine = slice(a * rows, (a + 1) * rows)
    if last <= first:
      d_q.append(jnp.zeros((rows, q.shape[1]), jnp.float32))
      continue
    shift = (len(ranges) - 1 - a) * rows
    w = exp(_strip_scores(spec, q, k, table, a) - lse[mine, None], cpu)
    d_w = jnp.matmul(d_out[mine], v_t[:, first:last], preferred_element_type=jnp.float32)
    d_s = w * (d_w - delta[mine, None])
    d_v = d_v.at[:, first:last].add(jnp.matmul(d_out_t[:, mine], w.astype(v.dtype), preferred_element_type=jnp.float32))
    d_k = d_k.at[:, first:last].add(jnp.matmul(q_t[:, mine], d_s.astype(q.dtype), preferred_element_type=jnp.float32))
    d_q.append(jnp.matmul(d_s.astype(k.dtype), k[first:last], preferred_element_type=jnp.float32))
    d_table = d_table.at[:, first + shift : last + shift].add(d_s)
  return jnp.concatenate(d_q).astype(q.dtype), d_k.T.astype(k.dtype), d_v.T.astype(v.dtype), d_table


_strips.defvjp(_strips_forward, _strips_backward)
