"""The backward pass of the tiles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import toeplitz
from posx.attention.heads import varying
from posx.attention.tile import Head, Spec, cut, masked, products, sweep


def head_backward(spec: Spec, head: Head, wanted: list[int]):
  """Makes the tiles of one head again, query tile by query tile.

  Args:
    wanted: which leaves of `head.p` are being differentiated.

  Returns:
    gradients of q, k, v, of the wanted leaves by number, and of the features; all but that of q in float32.
  """
  q, out, lse, d_out = (head.queries[name] for name in ("q", "out", "lse", "d_out"))
  k, v, features, where = head.k, head.v, head.features, head.where
  n, m = spec.tiles
  rows, columns = q.shape[0] // n, k.shape[0] // m
  delta = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)
  v_t = v.reshape(columns, m, -1).swapaxes(1, 2)  # every product below is a plain one
  scaled, after = spec.scaled(q)
  leaves, tree = jax.tree.flatten(head.p)
  content = spec.hooked and not spec.encoding.content_free
  band, of_band = jax.vjp(lambda bias: toeplitz.band(bias, n), head.p["mine"]["bias"]) if spec.tabled else (None, None)

  def rebuild(moving):
    return jax.tree.unflatten(tree, [moving.get(i, x) for i, x in enumerate(leaves)])

  moving = {i: leaves[i] for i in wanted}

  def row(carry, a):
    d_k, d_v, d_p, d_keys = carry
    mine, mine_pos, left, mine_d = cut(q, a, n), cut(where["q_pos"], a, n), cut(scaled, a, n), cut(d_out, a, n)
    left_t, mine_d_t = left.T, mine_d.T
    query_features, mine_lse, mine_delta = cut(features["query"], a, n), cut(lse, a, n)[:, None], cut(delta, a, n)[:, None]

    def step(b, carry, whole):
      d_q, d_k, d_v, d_p, d_queries, d_keys = carry
      keys, keys_pos, values_t = cut(k, b, m), cut(where["k_pos"], b, m), v_t[b]
      key_features = cut(features["key"], b, m)
      logits = products(spec, left, keys)
      if band is not None:
        logits = logits + toeplitz.tile(band, b - a + rows - 1, n)
      elif spec.hooked:

        def hook(moving, raw, mine, keys, *tile_features):
          return spec.encoding.on_scores(spec.join(rebuild(moving), *tile_features), raw, mine, keys, mine_pos, keys_pos)

        logits, pull = jax.vjp(hook, moving, logits, mine, keys, query_features, key_features)
      if not whole:
        logits = masked(spec, logits, where, a, b)
      w = jnp.exp(logits - mine_lse)  # that of `numerics` XLA would make twice, once more for d_s, and lose what it gains
      more_v = jnp.matmul(mine_d_t, w.astype(v.dtype), preferred_element_type=jnp.float32)
      d_w = jnp.matmul(mine_d, values_t, preferred_element_type=jnp.float32)
      if spec.encoding.uses("on_values"):
        add = lambda moving, w, *of_tile: spec.encoding.on_values(spec.join(rebuild(moving), *of_tile), w, mine_pos, keys_pos)
        more_p, more_w, *more = jax.vjp(add, moving, w, query_features, key_features)[1](mine_d.astype(jnp.float32))
        d_w, d_p = d_w + more_w, jax.tree.map(jnp.add, d_p, more_p)
        d_queries, d_keys = jax.tree.map(jnp.add, d_queries, more[0]), jax.tree.map(_add_at(b, m), d_keys, more[1])
      d_s = w * (d_w - mine_delta)
      more_q, more_k = 0.0, 0.0
      if band is not None:
        if wanted:
          d_p = {i: toeplitz.add_tile(x, b - a + rows - 1, d_s) for i, x in d_p.items()}
      elif spec.hooked:
        more_p, d_s, more_q, more_k, *more = pull(d_s)
        d_p = jax.tree.map(jnp.add, d_p, more_p)
        d_queries, d_keys = jax.tree.map(jnp.add, d_queries, more[0]), jax.tree.map(_add_at(b, m), d_keys, more[1])
        more_q, more_k = (more_q, more_k.T) if content else (0.0, 0.0)
      if after == 1.0:
        d_s = d_s * spec.scale
      more_k = more_k + jnp.matmul(left_t, d_s.astype(q.dtype), preferred_element_type=jnp.float32)
      d_q = d_q + (more_q + after * jnp.matmul(d_s.astype(k.dtype), keys, preferred_element_type=jnp.float32))
      return d_q, d_k.at[b].add(more_k), d_v.at[b].add(more_v), d_p, d_queries, d_keys

    d_queries = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), query_features)
    start = varying((jnp.zeros(mine.shape, jnp.float32), d_queries), left)
    d_q, d_k, d_v, d_p, d_queries, d_keys = sweep(head.bounds, a, step, (start[0], d_k, d_v, d_p, start[1], d_keys))
    return (d_k, d_v, d_p, d_keys), (d_q.astype(q.dtype), d_queries)

  zeros = lambda x: jnp.zeros(x.shape, jnp.float32)
  turned = lambda x: jnp.zeros((columns, x.shape[1], m), jnp.float32)
  start = (turned(k), turned(v), {i: zeros(x if band is None else band) for i, x in moving.items()}, jax.tree.map(zeros, features["key"]))
  (d_k, d_v, d_p, d_keys), (d_q, d_queries) = lax.scan(row, varying(start, (q, k, v)), jnp.arange(rows))
  if of_band is not None:
    d_p = {i: of_band(x)[0] for i, x in d_p.items()}
  flat = lambda x: x.reshape(-1, *x.shape[2:])
  d_features = {"query": jax.tree.map(flat, d_queries), "key": d_keys}
  return flat(d_q), *(flat(x.swapaxes(1, 2)) for x in (d_k, d_v)), d_p, d_features


def _add_at(tile, size: int):
  """Adds to the rows of one tile."""
  return lambda x, more: lax.dynamic_update_slice_in_dim(x, cut(x, tile, size) + more, tile * size, 0)
