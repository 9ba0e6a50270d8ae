"""One tile of scores: what is static about it, which tiles are needed, what is seen in one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention.pieces import pad, round_up
from posx.attention.visibility import Bounds, Sight, tile_bounds, visible
from posx.encodings.base import Encoding


@dataclasses.dataclass(frozen=True)
class Spec:
  """What is static about one head's tiles."""

  encoding: Encoding
  tiles: tuple[int, int]
  scale: float
  causal: bool
  window: int | Sight | None
  keys: int  # real keys; the rest of the last tile is padding
  segmented: bool
  tabled: bool  # the bias comes as Toeplitz tiles
  cpu: bool

  def join(self, p, queries, keys):
    """`p` with the features of a tile, if there are any."""
    return self.encoding.join(p, queries, keys) if self.encoding.uses("features") else p

  @property
  def hooked(self) -> bool:
    """The score hook is called in the tile."""
    return self.encoding.form == "elementwise" or (self.encoding.form == "distance" and not self.tabled)


def bounds_of(spec: Spec, where) -> tuple[Bounds, Bounds]:
  """Tile bounds joined over the batch rows in `where` ([1 or b, t])."""

  def grow(x: Any) -> Any:
    return x if x is None or x.ndim == 2 else x[None]

  q_pos, k_pos, q_seg, k_seg = (grow(where.get(n)) for n in ("q_pos", "k_pos", "q_segments", "k_segments"))
  t, u = q_pos.shape[-1], k_pos.shape[-1]
  n, m = spec.tiles
  whole = lambda x, size: pad(x, round_up(x.shape[-1], size), axis=1, mode="edge") if x is not None else None
  return tile_bounds(
    whole(q_pos, n), whole(k_pos, m), spec.tiles, (t, u), causal=spec.causal, window=spec.window,
    q_segments=whole(q_seg, n), k_segments=whole(k_seg, m),
  )  # fmt: skip


def cut(x, index, size):
  """Tile number `index` of an array, or of every array of a tree."""
  return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, index * size, size, 0), x)


def scores(spec: Spec, p, q, k, q_pos, k_pos, a, b, rows: int):
  """Scores of tile (a, b), float32, before the mask; `p` with the features of the tile."""
  raw = jnp.matmul(q, k.T, preferred_element_type=jnp.float32)
  if spec.hooked:
    return spec.encoding.on_scores(p, raw * spec.scale, q, k, q_pos, k_pos)
  if spec.tabled:
    return raw * spec.scale + lax.dynamic_index_in_dim(p["table"], jnp.clip(b - a + rows - 1, 0, p["table"].shape[0] - 1), 0, False)
  return raw * spec.scale


def seen(spec: Spec, arrays, a, b):
  n, m = spec.tiles
  seg = (cut(arrays["q_segments"], a, n), cut(arrays["k_segments"], b, m)) if spec.segmented else (None, None)
  q_pos, k_pos = cut(arrays["q_pos"], a, n), cut(arrays["k_pos"], b, m)
  inside = visible(q_pos, k_pos, causal=spec.causal, window=spec.window, q_segments=seg[0], k_segments=seg[1])
  return inside & (b * m + jnp.arange(m) < spec.keys)[None, :]


def sweep(bounds: Bounds, i, step, carry):
  """Applies step(j, carry, masked) to the tiles that tile i needs: those visible as a whole first, then the others."""
  of_i = jax.tree.map(lambda x: jnp.asarray(x)[i], bounds)
  carry = lax.fori_loop(of_i.full_first, of_i.full_last, functools.partial(step, masked=False), carry)
  heads = of_i.head_last - of_i.head_first
  before = heads + of_i.full_first - of_i.first

  def masked(n, carry):
    after = of_i.full_last + n - before
    place = jnp.where(n < heads, of_i.head_first + n, jnp.where(n < before, of_i.first + n - heads, after))
    return step(place, carry, masked=True)

  return lax.fori_loop(0, before + of_i.last - of_i.full_last, masked, carry)
