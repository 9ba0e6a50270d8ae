"""The backward pass of the tiles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import toeplitz
from posx.attention.numerics import exp
from posx.attention.tile import Spec, cut, masked, products, sweep


def backward(spec: Spec, saved, d_out):
  """Makes the tiles again, key tile by key tile; the arguments are those of the rule of a custom derivative."""
  wanted, (q, k, v, p, features, arrays, bounds, out, lse) = saved
  n, m = spec.tiles
  rows, columns = q.shape[0] // n, k.shape[0] // m
  delta = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)
  turn = lambda x: jnp.swapaxes(x.reshape(rows, n, -1), 1, 2)  # [rows, c, n]: every product below is a plain one
  scaled, after = spec.scaled(q)
  left_t, d_out_t, v_t = turn(scaled), turn(d_out), v.reshape(columns, m, -1).swapaxes(1, 2)
  leaves, tree = jax.tree.flatten(p)
  content = spec.hooked and not spec.encoding.content_free

  def rebuild(moving):
    moving = iter(moving)
    return jax.tree.unflatten(tree, [next(moving) if i in wanted else x for i, x in enumerate(leaves)])

  moving = [leaves[i] for i in sorted(wanted)]

  def column(carry, b):
    d_q, d_p, d_queries = carry
    keys, keys_pos, values_t = cut(k, b, m), cut(arrays["k_pos"], b, m), v_t[b]
    key_features = cut(features["key"], b, m)

    def step(a, carry, whole):
      d_q, d_p, d_k, d_v, d_queries, d_keys = carry
      mine, mine_pos, mine_d = cut(q, a, n), cut(arrays["q_pos"], a, n), cut(d_out, a, n)
      query_features = cut(features["query"], a, n)
      raw = products(spec, cut(scaled, a, n), keys)
      if spec.hooked:

        def hook(moving, raw, mine, keys, *tile_features):
          return spec.encoding.on_scores(spec.join(rebuild(moving), *tile_features), raw, mine, keys, mine_pos, keys_pos)

        logits, pull = jax.vjp(hook, moving, raw, mine, keys, query_features, key_features)
      elif spec.tabled:
        logits = raw + toeplitz.tile(p["table"], b - a + rows - 1, n)
      else:
        logits = raw
      if not whole:
        logits = masked(spec, logits, arrays, a, b)
      w = exp(logits - cut(lse, a, n)[:, None], spec.cpu)
      d_w = jnp.matmul(mine_d, values_t, preferred_element_type=jnp.float32)
      if spec.encoding.uses("on_values"):
        add = lambda moving, w, *of_tile: spec.encoding.on_values(spec.join(rebuild(moving), *of_tile), w, mine_pos, keys_pos)
        more_p, more_w, *more = jax.vjp(add, moving, w, query_features, key_features)[1](mine_d.astype(jnp.float32))
        d_w, d_p = d_w + more_w, jax.tree.map(jnp.add, d_p, more_p)
        d_queries, d_keys = jax.tree.map(_add_at(a, n), d_queries, more[0]), jax.tree.map(jnp.add, d_keys, more[1])
      d_s = w * (d_w - cut(delta, a, n)[:, None])
      d_v = d_v + jnp.matmul(d_out_t[a], w.astype(v.dtype), preferred_element_type=jnp.float32)
      new_q = 0.0
      if spec.hooked:
        more_p, d_s, more_q, more_k, *more = pull(d_s)
        d_p = jax.tree.map(jnp.add, d_p, more_p)
        d_queries, d_keys = jax.tree.map(_add_at(a, n), d_queries, more[0]), jax.tree.map(jnp.add, d_keys, more[1])
        if content:
          new_q, d_k = more_q, d_k + more_k.T
      elif spec.tabled and wanted:
        d_p = [toeplitz.add_tile(d_p[0], b - a + rows - 1, d_s)]
      if after == 1.0:
        d_s = d_s * spec.scale
      d_k = d_k + jnp.matmul(left_t[a], d_s.astype(q.dtype), preferred_element_type=jnp.float32)
      new_q = new_q + after * jnp.matmul(d_s.astype(k.dtype), keys, preferred_element_type=jnp.float32)
      return _add_at(a, n)(d_q, new_q), d_p, d_k, d_v, d_queries, d_keys

    zeros = lambda x: jnp.zeros((x.shape[1], m), jnp.float32)
    d_keys = jax.tree.map(jnp.zeros_like, key_features)
    d_q, d_p, d_k, d_v, d_queries, d_keys = sweep(bounds[1], b, step, (d_q, d_p, zeros(k), zeros(v), d_queries, d_keys))
    return (d_q, d_p, d_queries), (d_k, d_v, d_keys)

  start = (
    jnp.zeros(q.shape, jnp.float32),
    [jnp.zeros(x.shape, jnp.float32) for x in moving],
    jax.tree.map(jnp.zeros_like, features["query"]),
  )
  (d_q, d_p, d_queries), (d_k, d_v, d_keys) = lax.scan(column, start, jnp.arange(columns))
  back = lambda x, like: x.swapaxes(1, 2).reshape(like.shape).astype(like.dtype)
  d_p = [g.astype(x.dtype) for g, x in zip(d_p, moving, strict=True)]
  given = iter(d_p)
  cotangents = jax.tree.unflatten(tree, [next(given) if i in wanted else None for i in range(len(leaves))])
  d_features = {"query": d_queries, "key": jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), d_keys)}
  return d_q.astype(q.dtype), back(d_k, k), back(d_v, v), cotangents, d_features, None, None


def _add_at(tile, size: int):
  """Adds to the rows of one tile."""
  return lambda x, more: lax.dynamic_update_slice_in_dim(x, cut(x, tile, size) + more, tile * size, 0)
