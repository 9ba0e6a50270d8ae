"""Attention in O(t) memory, forward and backward, with the encoding's score hook applied inside the tile.

Nothing of size t x u exists in either pass. Scores are made tile by tile from queries, keys and positions; the backward
pass makes them again and returns gradients for q, k, v and for every parameter of the encoding that is being
differentiated. Tiles in which no key is visible are never computed, nor on a CPU those in which every weight is 0 (`fading`).

Three plans, chosen by the form that the encoding claims for its score hook:

    strips   short sequences of consecutive positions, bias of distance alone: rows of a static triangle, unrolled;
             taken where it was measured to be faster than tiles (`measured`)
    tiles    online softmax over key tiles, any positions; a bias of distance alone is a Toeplitz tile made once
    rows     hooks that need whole rows of scores, or all heads: one strip of queries against all keys at a time

Heads and batch rows are an outer loop on CPU, where a tile should stay in cache, and batched on accelerators.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from posx.attention import measured, rows, strips, tiles
from posx.attention.pieces import round_up
from posx.attention.tile import Spec
from posx.attention.visibility import Sight, start_of_run
from posx.encodings.base import Encoding


def fits_strips(queries: int, keys: int) -> bool:
  """Whether strips may be taken: they are unrolled, so programs grow with them, and hold rows of all keys."""
  return queries <= 1024 and keys <= 2048


def attention(
  q, k, v, q_pos, k_pos, encoding: Encoding, p, *, scale, causal, window, q_segments, k_segments, features: Any = None,
  block: tuple[int, int] | None, cpu: bool,
):  # fmt: skip
  """The same as `dense.attention`, without its memory. q [b h t c], k and v [b g u c], positions and segments [1 or b, t]."""
  t, u = q.shape[2], k.shape[2]
  dtype = v.dtype
  if cpu:
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
  p, features = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, (p, features))  # sums are float32
  q_start, k_start = start_of_run(q_pos), start_of_run(k_pos)
  consecutive = q_start is not None and k_start is not None
  offset = 0 if q_start is None or k_start is None else q_start - k_start
  hook = measured.hook_of(encoding)
  narrow = None if isinstance(window, Sight) else window
  distant = hook in ("none", "separable", "distance") and not isinstance(window, Sight)  # mask and bias are of distances alone
  short = consecutive and distant and q_segments is None and fits_strips(t, u)
  times = measured.milliseconds(jax.default_backend(), hook, t, u)

  fast = not times or ("strips" in times and times["strips"] <= measured.TIE * times.get("tiles", math.inf))

  if short and block is None and fast:
    by_token = (jnp.moveaxis(x, 1, 2) for x in (q, k, v))
    out = strips.attention(encoding, p, *by_token, scale=scale, causal=causal, window=narrow, offset=offset, cpu=cpu)
    return jnp.moveaxis(out, 2, 1).astype(dtype)

  where = {"q_pos": q_pos, "k_pos": k_pos, "q_segments": q_segments, "k_segments": k_segments}
  if hook == "rows":
    how = {"scale": scale, "causal": causal, "window": window}
    return rows.attention(encoding, p, q, k, v, where, features, how, block[0] if block else None, cpu).astype(dtype)
  size = block or (256, 256)
  size = min(size[0], round_up(t, 8)), min(size[1], round_up(u, 8))
  # A bias that is a product of a number of the query and one of the key is made faster than it is read.
  tabled = consecutive and hook == "distance" and size[0] == size[1]
  inside = u % size[1] == 0 or (causal and offset + t <= u)  # no query comes after the padding of the last tile
  covered = tabled and inside and q_segments is None and not isinstance(window, Sight)
  # Heads that take turns may each have their own tiles; every query must see its own key, which the largest score is at least.
  low = encoding.form == "distance" or encoding.uses("separable")
  fading = cpu and low and consecutive and causal and 0 <= offset <= u - t and not isinstance(window, Sight)
  spec = Spec(encoding, size, scale, causal, window, offset, u, q_segments is not None, tabled, covered, fading, cpu)
  q, k, v = (jnp.moveaxis(x, 1, 2) for x in (q, k, v))
  out: Any = tiles.attention(spec, p, q, k, v, where, features)
  return jnp.moveaxis(out, 2, 1).astype(dtype)
