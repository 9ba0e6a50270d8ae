"""Attention by online softmax over key tiles, at any positions; a bias of distance alone is a Toeplitz tile made once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import toeplitz
from posx.attention.dense import NEGATIVE
from posx.attention.numerics import exp
from posx.attention.pieces import finish, pad, round_up
from posx.attention.tile import Spec, bounds_of, cut, masked, products, scores, sweep
from posx.attention.tiles_gradient import backward


def head(spec: Spec, offset: int, p, joined):
  """Binds one head's parameters; builds its Toeplitz tiles once for all batch rows."""

  def one(q, k, v, where):
    t, u = q.shape[0], k.shape[0]
    n, m = spec.tiles
    full_t, full_u = round_up(t, n), round_up(u, m)
    bounds = joined or bounds_of(spec, where)
    arrays = {
      "q_pos": jnp.asarray(pad(where["q_pos"], full_t, mode="edge")),
      "k_pos": jnp.asarray(pad(where["k_pos"], full_u, mode="edge")),
    }
    if spec.segmented:
      arrays["q_segments"] = jnp.asarray(pad(where["q_segments"], full_t, mode="edge"))
      arrays["k_segments"] = jnp.asarray(pad(where["k_segments"], full_u, mode="edge"))
    given = {"table": _table(spec, p, offset, full_t // n, full_u // m)} if spec.tabled else p
    features = where.get("features", {"query": {}, "key": {}})
    features = {side: jax.tree.map(lambda x, n=n: pad(x, n), features[side]) for side, n in (("query", full_t), ("key", full_u))}
    out = _tiles(spec, pad(q, full_t), pad(k, full_u), pad(v, full_u), given, features, arrays, bounds)
    return out[:t]  # pyright: ignore[reportIndexIssue]  # JAX's types lose what a custom_vjp returns under partial

  return one


def _table(spec: Spec, p, offset: int, rows: int, columns: int):
  """The bias as a band that Toeplitz tiles are cut from; tile (a, b) of the score matrix is number b - a + rows - 1."""
  n = spec.tiles[0]
  count = rows if spec.causal and offset <= 0 and columns == rows else rows + columns - 1
  distance = toeplitz.distances(offset + rows * n - 1, n + count * n - 1)
  hidden = distance < 0 if spec.causal else jnp.zeros(distance.shape, bool)
  if isinstance(spec.window, int):
    hidden |= jnp.abs(distance) >= spec.window
  return toeplitz.band(jnp.where(hidden, NEGATIVE, spec.encoding.bias(p, jnp.where(hidden, 0, distance))), n)


@jax.tree_util.register_static
class _Wanted(frozenset):
  """Which leaves of the hook's parameters are being differentiated."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiles(spec, q, k, v, p, features, arrays, bounds):
  return _tiles_forward(spec, q, k, v, p, features, arrays, bounds)[0]


def _tiles_forward(spec: Spec, q, k, v, p, features, arrays, bounds):
  n, m = spec.tiles
  rows, width = q.shape[0] // n, v.shape[1]
  scaled, _ = spec.scaled(q)

  def row(a):
    mine, left = cut(q, a, n), cut(scaled, a, n)
    mine_pos, query_features = cut(arrays["q_pos"], a, n), cut(features["query"], a, n)

    def step(b, carry, whole):
      acc, total, top = carry
      keys, keys_pos = cut(k, b, m), cut(arrays["k_pos"], b, m)
      given = spec.join(p, query_features, cut(features["key"], b, m))
      logits = scores(spec, given, products(spec, left, keys), mine, keys, mine_pos, keys_pos, b - a + rows - 1)
      if not whole:
        logits = masked(spec, logits, arrays, a, b)
      higher = jnp.maximum(top, logits.max(1))
      e = exp(logits - higher[:, None], spec.cpu)
      new = jnp.matmul(e.astype(v.dtype), cut(v, b, m), preferred_element_type=jnp.float32)
      if spec.encoding.uses("on_values"):
        new = new + spec.encoding.on_values(given, e, mine_pos, keys_pos)
      shrink = jnp.exp(top - higher)
      return acc * shrink[:, None] + new, total * shrink + e.sum(1), higher

    carry = (jnp.zeros((n, width), jnp.float32), jnp.zeros((n,), jnp.float32), jnp.full((n,), NEGATIVE / 2))
    return finish(*sweep(bounds[0], a, step, carry))

  out, lse = lax.map(row, jnp.arange(rows))
  out, lse = out.reshape(-1, width).astype(v.dtype), lse.reshape(-1)
  return out, (q, k, v, p, features, arrays, bounds, out, lse)


def _tiles_forward_rule(spec, q, k, v, p, features, arrays, bounds):
  """Notes which parameters are perturbed: constants cost no gradient work."""
  boxes = jax.tree.leaves(p, is_leaf=lambda x: isinstance(x, jax.custom_derivatives.CustomVJPPrimal))
  wanted = _Wanted(i for i, box in enumerate(boxes) if box.perturbed and jnp.issubdtype(box.value.dtype, jnp.floating))
  plain = jax.tree.map(
    lambda box: box.value, (q, k, v, p, features, arrays, bounds), is_leaf=lambda x: isinstance(x, jax.custom_derivatives.CustomVJPPrimal)
  )
  out, saved = _tiles_forward(spec, *plain)
  return out, (wanted, saved)


def _tiles_backward_rule(spec, saved, d_out):
  if isinstance(d_out, jax.custom_derivatives.SymbolicZero):
    like: Any = d_out.aval
    d_out = jnp.zeros(like.shape, like.dtype)
  return backward(spec, saved, d_out)


_tiles.defvjp(_tiles_forward_rule, _tiles_backward_rule, symbolic_zeros=True)
