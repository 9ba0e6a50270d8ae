"""Attention in O(t) memory, forward and backward, with the encoding's score hook applied inside the tile.

Nothing of size t x u exists in either pass. Scores are made tile by tile from queries, keys and positions; the backward
pass makes them again and returns gradients for q, k, v and for every parameter of the encoding that is being
differentiated. Tiles in which no key is visible are never computed.

Three plans, chosen by the form that the encoding claims for its score hook:

    strips   short sequences of consecutive positions, bias of distance alone: rows of a static triangle, unrolled
    tiles    online softmax over key tiles, any positions; a bias of distance alone is a Toeplitz tile made once
    rows     hooks that need whole rows of scores, or all heads: one strip of queries against all keys at a time

Heads and batch rows are an outer loop on CPU, where a tile should stay in cache, and batched on accelerators.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import rows, strips, tiles
from posx.attention.pieces import round_up
from posx.attention.tile import Spec, bounds_of
from posx.attention.visibility import Sight, start_of_run
from posx.encodings.base import Encoding, merge

_ROWS_TIMES_KEYS = 1 << 19
"""Hooks that mix heads hold several arrays of heads x rows x keys; rows become fewer as keys become more."""


def attention(
  q, k, v, q_pos, k_pos, encoding: Encoding, p, *, scale, causal, window, q_segments, k_segments, features: Any = None,
  block: tuple[int, int] | None, cpu: bool,
):  # fmt: skip
  """The same as `dense.attention`, without its memory. q [b h t c], k and v [b g u c], positions and segments [1 or b, t]."""
  b, h, t, _ = q.shape
  g, u = k.shape[1], k.shape[2]
  dtype = v.dtype
  if cpu:
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
  q_start, k_start = start_of_run(q_pos), start_of_run(k_pos)
  consecutive = q_start is not None and k_start is not None
  offset = 0 if q_start is None or k_start is None else q_start - k_start
  form = (
    encoding.form
    if not encoding.uses("on_values")
    else max(encoding.form, "elementwise", key=("none", "distance", "elementwise", "rows").index)
  )
  narrow = None if isinstance(window, Sight) else window
  distant = form in ("none", "distance") and not isinstance(window, Sight)  # mask and bias are of distances alone
  short = consecutive and distant and q_segments is None and t <= 1024 and u <= 2048 and not encoding.mixes_heads

  if short and block is None:
    by_token = (jnp.moveaxis(x, 1, 2) for x in (q, k, v))
    out = strips.attention(encoding, p, *by_token, scale=scale, causal=causal, window=narrow, offset=offset, cpu=cpu)
    return jnp.moveaxis(out, 2, 1).astype(dtype)

  each = _one_by_one if cpu else _batched
  where = {"q_pos": q_pos, "k_pos": k_pos, "q_segments": q_segments, "k_segments": k_segments}
  common = {n: x[0] for n, x in where.items() if x is not None and x.shape[0] == 1}
  by_row = {n: x for n, x in where.items() if x is not None and x.shape[0] != 1}
  if encoding.mixes_heads:
    size = block[0] if block else min(128, max(8, _ROWS_TIMES_KEYS // u))
    given = by_row if features is None else by_row | {"features": features}
    strips_of = functools.partial(rows.all_heads, encoding, p, size, {"scale": scale, "causal": causal, "window": window})
    return each(lambda args: strips_of(args[0], args[1], args[2], {**common, **args[3]}), (q, k, v, given)).astype(dtype)
  if form == "rows":
    run = functools.partial(rows.head, encoding, scale, causal, window, block[0] if block else 128)
  else:
    size = block or (256, 256)
    size = min(size[0], round_up(t, 8)), min(size[1], round_up(u, 8))
    # A bias that is a product of a number of the query and one of the key is made faster than it is read.
    tabled = consecutive and form == "distance" and size[0] == size[1] and not encoding.uses("separable")
    inside = u % size[1] == 0 or (causal and offset + t <= u)  # no query comes after the padding of the last tile
    covered = tabled and inside and q_segments is None and not isinstance(window, Sight)
    spec = Spec(encoding, size, scale, causal, window, u, q_segments is not None, tabled, covered, cpu)
    run = functools.partial(tiles.head, spec, offset)

  mine, shared = encoding.heads(p)
  if not cpu and by_row and form != "rows":  # a batched loop has one set of bounds for all rows
    joined = bounds_of(spec, where)
  else:
    joined = None

  sides = {} if features is None else {side: encoding.heads(tree) for side, tree in features.items()}
  features_of_all = {side: shared for side, (_, shared) in sides.items()}
  features_by_head = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), {side: mine for side, (mine, _) in sides.items()})

  def one_head(args):
    (mine, of_head), q, k, v = args
    one = run(merge(mine, shared), joined)

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
  return jnp.moveaxis(out.reshape(h, b, t, -1), 0, 1).astype(dtype)


def _one_by_one(f, xs):
  n = jax.tree.leaves(xs)[0].shape[0]
  if n == 1:
    return f(jax.tree.map(lambda x: x[0], xs))[None]
  return lax.map(f, xs)


def _batched(f, xs):
  return jax.vmap(f)(xs)
