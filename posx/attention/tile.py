"""One tile of scores: what is static about it, which tiles are needed, what is seen in one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention.dense import NEGATIVE
from posx.attention.heads import Parts
from posx.attention.pieces import HIDDEN, pad, round_up
from posx.attention.visibility import Bounds, Sight, tile_bounds, visible
from posx.encodings.base import Encoding, merge


@dataclasses.dataclass(frozen=True)
class Spec:
  """What is static about the tiles of an attention."""

  encoding: Encoding
  tiles: tuple[int, int]  # queries and keys of a tile
  scale: float
  causal: bool
  window: int | Sight | None
  offset: int  # the first query stands so far behind the first key, where positions are consecutive
  keys: int  # real keys; the rest of the last tile is padding
  segmented: bool
  tabled: bool  # the bias comes as Toeplitz tiles
  covered: bool  # and these hide all that is to be hidden
  fading: bool  # far tiles may weigh nothing (`fading`)
  cpu: bool

  def join(self, p, queries, keys):
    """What the hooks of one head take: its own numbers with those that heads share, and with the features of a tile."""
    p = merge(p["mine"], p["shared"])
    return self.encoding.join(p, merge(*queries), merge(*keys)) if self.encoding.uses("features") else p

  def scaled(self, q):
    """(queries that are multiplied with the keys, what a gradient by the product is still to be multiplied by for one by q).

    Float32 queries are scaled once instead of every tile of scores; narrower ones would be rounded once more.
    """
    return (q * self.scale, self.scale) if q.dtype == jnp.float32 else (q, 1.0)

  @property
  def hooked(self) -> bool:
    """The score hook is called in the tile."""
    return self.encoding.form == "elementwise" or (self.encoding.form == "distance" and not self.tabled)


def bounds_of(spec: Spec, where) -> Bounds:
  """The key tiles that each query tile needs, joined over the batch rows in `where` ([1 or b, t])."""

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


class Head(NamedTuple):
  """One head of one batch row; whatever is of tokens is padded to whole tiles."""

  queries: dict[str, Any]  # q, and in the backward pass out, lse, d_out
  k: Any
  v: Any
  p: dict[str, Any]  # what is the head's own, what heads share
  features: dict[str, Any]  # of queries and of keys: what is the head's own, what heads share
  where: dict[str, Any]
  bounds: Bounds


def head_of(spec: Spec, parts: Parts) -> Head:
  """The head that a loop over heads and batch rows is at."""
  where = {**parts.shared["where"], **parts.rows["where"]}
  bounds = parts.shared["bounds"] or bounds_of(spec, where)
  queries = dict(parts.queries)
  own, common = queries.pop("features"), parts.rows["features"]
  full = {"q": round_up(queries["q"].shape[0], spec.tiles[0]), "k": round_up(spec.keys, spec.tiles[1])}
  padded = {name: jnp.asarray(pad(x, full[name[0]], mode="edge")) for name, x in where.items()}
  if "lse" in queries:  # what a query beyond the last sees weighs nothing
    lse = queries.pop("lse")
    queries["lse"] = jnp.pad(lse, (0, full["q"] - lse.shape[0]), constant_values=HIDDEN)
  grown = lambda tree, n: jax.tree.map(lambda x: pad(x, n), tree)
  features = {side: grown((own[side], common[side]), full[side[0]]) for side in ("query", "key")}
  p = {"mine": parts.heads, "shared": parts.shared["p"]}
  keys = grown(parts.keys, full["k"])
  return Head(grown(queries, full["q"]), keys["k"], keys["v"], p, features, padded, bounds)


def cut(x, index, size):
  """Tile number `index` of an array, or of every array of a tree."""
  return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, index * size, size, 0), x)


def products(spec: Spec, left, keys):
  """Scaled products of queries and keys, float32; `left` are the queries as `Spec.scaled` gives them."""
  raw = jnp.matmul(left, keys.T, preferred_element_type=jnp.float32)
  return raw if left.dtype == jnp.float32 else raw * spec.scale


def masked(spec: Spec, logits, where, a, b):
  """Scores of a tile with those of unseen keys very negative."""
  return logits if spec.covered else jnp.where(_seen(spec, where, a, b), logits, NEGATIVE)


def _seen(spec: Spec, where, a, b):
  n, m = spec.tiles
  seg = (cut(where["q_segments"], a, n), cut(where["k_segments"], b, m)) if spec.segmented else (None, None)
  q_pos, k_pos = cut(where["q_pos"], a, n), cut(where["k_pos"], b, m)
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
