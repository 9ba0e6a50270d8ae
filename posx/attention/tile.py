"""One tile of scores: what is static about it, which tiles are needed, what is seen in one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import toeplitz
from posx.attention.dense import NEGATIVE
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
  covered: bool  # and these hide all that is to be hidden
  cpu: bool

  def join(self, p, queries, keys):
    """`p` with the features of a tile, if there are any."""
    return self.encoding.join(p, queries, keys) if self.encoding.uses("features") else p

  def scaled(self, q):
    """(queries that are multiplied with the keys, what a gradient by the product is still to be multiplied by for one by q).

    Float32 queries are scaled once instead of every tile of scores; narrower ones would be rounded once more.
    """
    return (q * self.scale, self.scale) if q.dtype == jnp.float32 else (q, 1.0)

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


def products(spec: Spec, left, keys):
  """Scaled products of queries and keys, float32; `left` are the queries as `Spec.scaled` gives them."""
  raw = jnp.matmul(left, keys.T, preferred_element_type=jnp.float32)
  return raw if left.dtype == jnp.float32 else raw * spec.scale


def scores(spec: Spec, p, raw, q, k, q_pos, k_pos, place):
  """Scores of a tile before the mask, from the scaled products; `p` with the features of the tile, `place` that of its Toeplitz tile."""
  if spec.hooked:
    return spec.encoding.on_scores(p, raw, q, k, q_pos, k_pos)
  if spec.tabled:
    return raw + toeplitz.tile(p["table"], place, spec.tiles[0])
  return raw


def masked(spec: Spec, logits, arrays, a, b):
  """Scores of a tile with those of unseen keys very negative."""
  return logits if spec.covered else jnp.where(_seen(spec, arrays, a, b), logits, NEGATIVE)


def _seen(spec: Spec, arrays, a, b):
  n, m = spec.tiles
  seg = (cut(arrays["q_segments"], a, n), cut(arrays["k_segments"], b, m)) if spec.segmented else (None, None)
  q_pos, k_pos = cut(arrays["q_pos"], a, n), cut(arrays["k_pos"], b, m)
  inside = visible(q_pos, k_pos, causal=spec.causal, window=spec.window, q_segments=seg[0], k_segments=seg[1])
  return inside & (b * m + jnp.arange(m) < spec.keys)[None, :]


def sweep(bounds: Bounds, i, step, carry):
  """Applies step(j, carry, whole) to the tiles that tile i needs: those visible as a whole first, then the others."""
  of_i = jax.tree.map(lambda x: jnp.asarray(x)[i], bounds)
  carry = lax.fori_loop(of_i.full_first, of_i.full_last, functools.partial(step, whole=True), carry)
  heads = of_i.head_last - of_i.head_first
  before = heads + of_i.full_first - of_i.first

  def partly(n, carry):
    after = of_i.full_last + n - before
    place = jnp.where(n < heads, of_i.head_first + n, jnp.where(n < before, of_i.first + n - heads, after))
    return step(place, carry, whole=False)

  return lax.fori_loop(0, before + of_i.last - of_i.full_last, partly, carry)
