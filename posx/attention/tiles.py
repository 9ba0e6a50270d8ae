"""Attention by online softmax over key tiles, at any positions; a bias of distance alone is a Toeplitz tile made once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import fading, toeplitz
from posx.attention.dense import NEGATIVE
from posx.attention.heads import Parts, each, varying
from posx.attention.numerics import exp
from posx.attention.pieces import finish, round_up
from posx.attention.tile import Head, Spec, bounds_of, cut, head_of, masked, products, sweep
from posx.attention.tiles_gradient import head_backward
from posx.encodings.base import merge


def attention(spec: Spec, p, q, k, v, where, features):
  """q [b t h c], k [b u g c], v [b u g e] -> [b t h e].

  Args:
    p: what the encoding prepared.
    where: positions and segments, [1 or b, t]; NumPy where they are known.
    features: of queries and keys, or None.
  """
  split = spec.encoding.heads
  mine, shared = split(p)
  if spec.tabled:
    vector = lambda mine: _vector(spec, merge(mine, shared), q.shape[1], k.shape[1])
    mine, shared = {"bias": jax.vmap(vector, axis_size=q.shape[2])(mine)}, {}
  sides = {side: split(tree) for side, tree in (features or {"query": {}, "key": {}}).items()}
  by_row = {n: x for n, x in where.items() if x is not None and x.shape[0] != 1}
  common = {n: x[0] for n, x in where.items() if x is not None and x.shape[0] == 1}
  # A batched loop has one set of bounds for all rows; rows that take turns may each have their own.
  bounds = None if by_row and spec.cpu else bounds_of(spec, where)
  moving = q, k, v, {"mine": mine, "shared": shared}, sides
  return _attention(spec, *varying(moving, moving), {"rows": by_row, "all": common}, bounds)


def _vector(spec: Spec, p, t: int, u: int):
  """The bias of one head over falling distances, from that of the last query to the first key on; what nobody sees is very negative."""
  n = spec.tiles[0]
  rows, columns = (round_up(x, n) // n for x in (t, u))
  count = rows if spec.causal and spec.offset <= 0 and columns == rows else rows + columns - 1
  distance = toeplitz.distances(spec.offset + rows * n - 1, n + count * n - 1)
  hidden = distance < 0 if spec.causal else jnp.zeros(distance.shape, bool)
  if isinstance(spec.window, int):
    hidden |= jnp.abs(distance) >= spec.window
  return jnp.where(hidden, NEGATIVE, spec.encoding.bias(p, jnp.where(hidden, 0, distance)))


@jax.tree_util.register_static
class _Wanted(frozenset):
  """Which leaves of the hook's parameters are being differentiated."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(spec: Spec, q, k, v, p, sides, where, bounds):
  return _forward(spec, q, k, v, p, sides, where, bounds)[0]


def _over_heads(spec: Spec, one, queries, k, v, p, sides, where, bounds) -> Parts:
  """one(head) of every head of every batch row."""
  own, common = ({side: parts[n] for side, parts in sides.items()} for n in (0, 1))
  given = Parts(
    queries={**queries, "features": own},
    keys={"k": k, "v": v},
    heads=p["mine"],
    rows={"where": where["rows"], "features": common},
    shared={"p": p["shared"], "where": where["all"], "bounds": bounds},
  )

  def seen(parts: Parts) -> Head:
    head = head_of(spec, parts)
    return fading.without(spec, head) if spec.fading else head

  return each(spec.cpu, (k.shape[0], queries["q"].shape[2], k.shape[2]), lambda parts: one(seen(parts)), given)


def _forward(spec: Spec, q, k, v, p, sides, where, bounds):
  one = lambda head: Parts(queries=_head_forward(spec, head))
  out, lse = _over_heads(spec, one, {"q": q}, k, v, p, sides, where, bounds).queries
  return out[:, : q.shape[1]], lse[:, : q.shape[1]]


def _head_forward(spec: Spec, head: Head):
  """One head: (output [t e], log-sum-exp [t]), t rounded up to whole tiles."""
  q, k, v, where = head.queries["q"], head.k, head.v, head.where
  n, m = spec.tiles
  rows, width = q.shape[0] // n, v.shape[1]
  scaled, _ = spec.scaled(q)
  band = toeplitz.band(head.p["mine"]["bias"], n) if spec.tabled else None

  def row(a):
    mine, left = cut(q, a, n), cut(scaled, a, n)
    mine_pos, query_features = cut(where["q_pos"], a, n), cut(head.features["query"], a, n)

    def step(b, carry, whole):
      acc, total, top = carry
      keys, keys_pos = cut(k, b, m), cut(where["k_pos"], b, m)
      logits = products(spec, left, keys)
      if band is not None:
        logits = logits + toeplitz.tile(band, b - a + rows - 1, n)
      given = {} if spec.tabled else spec.join(head.p, query_features, cut(head.features["key"], b, m))
      if spec.hooked:
        logits = spec.encoding.on_scores(given, logits, mine, keys, mine_pos, keys_pos)
      if not whole:
        logits = masked(spec, logits, where, a, b)
      higher = jnp.maximum(top, logits.max(1))
      e = exp(logits - higher[:, None], spec.cpu)
      new = jnp.matmul(e.astype(v.dtype), cut(v, b, m), preferred_element_type=jnp.float32)
      if spec.encoding.uses("on_values"):
        new = new + spec.encoding.on_values(given, e, mine_pos, keys_pos)
      shrink = jnp.exp(top - higher)
      return acc * shrink[:, None] + new, total * shrink + e.sum(1), higher

    carry = (jnp.zeros((n, width), jnp.float32), jnp.zeros((n,), jnp.float32), jnp.full((n,), NEGATIVE / 2))
    out, lse = finish(*sweep(head.bounds, a, step, varying(carry, left)))
    return out.astype(v.dtype), lse

  out, lse = lax.map(row, jnp.arange(rows))
  return out.reshape(-1, width), lse.reshape(-1)


def _forward_rule(spec: Spec, *args):
  """Notes which parameters are perturbed: constants cost no gradient work."""
  is_box = lambda x: isinstance(x, jax.custom_derivatives.CustomVJPPrimal)
  boxes = jax.tree.leaves(args[3], is_leaf=is_box)
  wanted = _Wanted(i for i, box in enumerate(boxes) if box.perturbed and jnp.issubdtype(box.value.dtype, jnp.floating))
  plain = jax.tree.map(lambda box: box.value, args, is_leaf=is_box)
  out, lse = _forward(spec, *plain)
  return out, (wanted, plain, out, lse)


def _backward_rule(spec: Spec, saved, d_out):
  wanted, (q, k, v, p, sides, where, bounds), out, lse = saved
  if isinstance(d_out, jax.custom_derivatives.SymbolicZero):
    like: Any = d_out.aval
    d_out = jnp.zeros(like.shape, like.dtype)
  leaves, tree = jax.tree.flatten(p)
  own = len(jax.tree.leaves(p["mine"]))

  def one(head: Head) -> Parts:
    d_q, d_k, d_v, d_p, d_features = head_backward(spec, head, sorted(wanted))
    own_features, common = ({side: parts[n] for side, parts in d_features.items()} for n in (0, 1))
    mine = {i: x for i, x in d_p.items() if i < own}
    return Parts((d_q, own_features), (d_k, d_v), mine, common, {i: x for i, x in d_p.items() if i >= own})

  queries = {"q": q, "out": out, "lse": lse, "d_out": d_out}
  found = _over_heads(spec, one, queries, k, v, p, sides, where, bounds)
  d_q, own_features = found.queries
  narrow = lambda found, like: jax.tree.map(lambda x, y: x[:, : y.shape[1]].astype(y.dtype), found, like)
  d_p = {**found.heads, **found.shared}
  d_sides = {side: narrow((own_features[side], found.rows[side]), sides[side]) for side in sides}
  cotangents = jax.tree.unflatten(tree, [d_p[i].astype(x.dtype) if i in wanted else None for i, x in enumerate(leaves)])
  return narrow(d_q, q), *narrow(found.keys, (k, v)), cotangents, d_sides, None, None


_attention.defvjp(_forward_rule, _backward_rule, symbolic_zeros=True)
