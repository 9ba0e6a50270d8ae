"""Attention by online softmax over key tiles, at any positions; a bias of distance alone is a Toeplitz tile made once."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention import toeplitz
from posx.attention.dense import NEGATIVE
from posx.attention.numerics import exp
from posx.attention.pieces import finish, pad, round_up
from posx.attention.visibility import Bounds, tile_bounds, visible
from posx.encodings.base import Encoding


@dataclasses.dataclass(frozen=True)
class Spec:
  """What is static about one head's tiles."""

  encoding: Encoding
  tiles: tuple[int, int]
  scale: float
  causal: bool
  window: int | None
  keys: int  # real keys; the rest of the last tile is padding
  segmented: bool
  tabled: bool  # the bias comes as Toeplitz tiles
  cpu: bool

  @property
  def hooked(self) -> bool:
    """The score hook is called in the tile."""
    return self.encoding.form == "elementwise" or (self.encoding.form == "distance" and not self.tabled)


def bounds_of(spec, where) -> tuple[Bounds, Bounds]:
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
    out = _tiles(spec, pad(q, full_t), pad(k, full_u), pad(v, full_u), given, arrays, bounds)
    return out[:t]  # pyright: ignore[reportIndexIssue]  # JAX's types lose what a custom_vjp returns under partial

  return one


def _table(spec: Spec, p, offset: int, rows: int, columns: int):
  """Toeplitz tiles [d, n, n]; tile (a, b) of the score matrix is number b - a + rows - 1."""
  n = spec.tiles[0]
  count = rows if spec.causal and offset <= 0 and columns == rows else rows + columns - 1
  distance = toeplitz.distances(offset + rows * n - 1, n + count * n - 1)
  if spec.causal:
    distance = jnp.maximum(distance, 0)
  return toeplitz.blocks(spec.encoding.bias(p, distance), (n, n), count, n)


@jax.tree_util.register_static
class _Wanted(frozenset):
  """Which leaves of the hook's parameters are being differentiated."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiles(spec, q, k, v, p, arrays, bounds):
  return _tiles_forward(spec, q, k, v, p, arrays, bounds)[0]


def _cut(x, index, size):
  return lax.dynamic_slice_in_dim(x, index * size, size, 0)


def _scores(spec: Spec, p, q, k, q_pos, k_pos, a, b, rows: int):
  """Scores of tile (a, b), float32, before the mask."""
  raw = jnp.matmul(q, k.T, preferred_element_type=jnp.float32)
  if spec.hooked:
    return spec.encoding.on_scores(p, raw * spec.scale, q, k, q_pos, k_pos)
  if spec.tabled:
    return raw * spec.scale + lax.dynamic_index_in_dim(p["table"], jnp.clip(b - a + rows - 1, 0, p["table"].shape[0] - 1), 0, False)
  return raw * spec.scale


def _seen(spec: Spec, arrays, a, b):
  n, m = spec.tiles
  seg = (_cut(arrays["q_segments"], a, n), _cut(arrays["k_segments"], b, m)) if spec.segmented else (None, None)
  q_pos, k_pos = _cut(arrays["q_pos"], a, n), _cut(arrays["k_pos"], b, m)
  seen = visible(q_pos, k_pos, causal=spec.causal, window=spec.window, q_segments=seg[0], k_segments=seg[1])
  return seen & (b * m + jnp.arange(m) < spec.keys)[None, :]


def _sweep(bounds: Bounds, i, step, carry):
  """Applies step(j, carry, masked) to the tiles that tile i needs: those visible as a whole first, then the others."""
  first, last, full_first, full_last = (jnp.asarray(x)[i] for x in (bounds.first, bounds.last, bounds.full_first, bounds.full_last))
  carry = lax.fori_loop(full_first, full_last, functools.partial(step, masked=False), carry)
  before = full_first - first

  def masked(n, carry):
    return step(jnp.where(n < before, first + n, full_last + n - before), carry, masked=True)

  return lax.fori_loop(0, before + last - full_last, masked, carry)


def _tiles_forward(spec: Spec, q, k, v, p, arrays, bounds):
  n, m = spec.tiles
  rows, width = q.shape[0] // n, v.shape[1]
  ones = jnp.concatenate([v, jnp.ones((v.shape[0], 1), v.dtype)], -1)

  def row(a):
    mine, mine_pos = _cut(q, a, n), _cut(arrays["q_pos"], a, n)

    def step(b, carry, masked):
      acc, top = carry
      keys, keys_pos = _cut(k, b, m), _cut(arrays["k_pos"], b, m)
      scores = _scores(spec, p, mine, keys, mine_pos, keys_pos, a, b, rows)
      if masked:
        scores = jnp.where(_seen(spec, arrays, a, b), scores, NEGATIVE)
      higher = jnp.maximum(top, scores.max(1))
      e = exp(scores - higher[:, None], spec.cpu)
      new = jnp.matmul(e.astype(v.dtype), _cut(ones, b, m), preferred_element_type=jnp.float32)
      if spec.encoding.uses("on_values"):
        new = new.at[:, :width].add(spec.encoding.on_values(p, e, mine_pos, keys_pos))
      return acc * jnp.exp(top - higher)[:, None] + new, higher

    carry = (jnp.zeros((n, width + 1), jnp.float32), jnp.full((n,), NEGATIVE / 2))
    return finish(*_sweep(bounds[0], a, step, carry))

  out, lse = lax.map(row, jnp.arange(rows))
  out, lse = out.reshape(-1, width).astype(v.dtype), lse.reshape(-1)
  return out, (q, k, v, p, arrays, bounds, out, lse)


def _tiles_backward(spec: Spec, saved, d_out):
  wanted, (q, k, v, p, arrays, bounds, out, lse) = saved
  n, m = spec.tiles
  rows, columns = q.shape[0] // n, k.shape[0] // m
  delta = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)
  turn = lambda x: jnp.swapaxes(x.reshape(rows, n, -1), 1, 2)  # [rows, c, n]: every product below is a plain one
  q_t, d_out_t, v_t = turn(q), turn(d_out), v.reshape(columns, m, -1).swapaxes(1, 2)
  leaves, tree = jax.tree.flatten(p)
  content = spec.hooked and not spec.encoding.content_free

  def rebuild(moving):
    moving = iter(moving)
    return jax.tree.unflatten(tree, [next(moving) if i in wanted else x for i, x in enumerate(leaves)])

  moving = [leaves[i] for i in sorted(wanted)]

  def column(carry, b):
    d_q, d_p = carry
    keys, keys_pos, values_t = _cut(k, b, m), _cut(arrays["k_pos"], b, m), v_t[b]

    def step(a, carry, masked):
      d_q, d_p, d_k, d_v = carry
      mine, mine_pos, mine_d = _cut(q, a, n), _cut(arrays["q_pos"], a, n), _cut(d_out, a, n)
      raw = jnp.matmul(mine, keys.T, preferred_element_type=jnp.float32) * spec.scale
      if spec.hooked:

        def hook(moving, raw, mine, keys):
          return spec.encoding.on_scores(rebuild(moving), raw, mine, keys, mine_pos, keys_pos)

        scores, pull = jax.vjp(hook, moving, raw, mine, keys)
      elif spec.tabled:
        place = jnp.clip(b - a + rows - 1, 0, p["table"].shape[0] - 1)
        scores = raw + lax.dynamic_index_in_dim(p["table"], place, 0, False)
      else:
        scores = raw
      if masked:
        scores = jnp.where(_seen(spec, arrays, a, b), scores, NEGATIVE)
      w = exp(scores - _cut(lse, a, n)[:, None], spec.cpu)
      d_w = jnp.matmul(mine_d, values_t, preferred_element_type=jnp.float32)
      if spec.encoding.uses("on_values"):
        add = lambda moving, w: spec.encoding.on_values(rebuild(moving), w, mine_pos, keys_pos)
        more_p, more_w = jax.vjp(add, moving, w)[1](mine_d.astype(jnp.float32))
        d_w, d_p = d_w + more_w, jax.tree.map(jnp.add, d_p, more_p)
      d_s = w * (d_w - _cut(delta, a, n)[:, None])
      d_v = d_v + jnp.matmul(d_out_t[a], w.astype(v.dtype), preferred_element_type=jnp.float32)
      new_q = 0.0
      if spec.hooked:
        more_p, d_s, more_q, more_k = pull(d_s)
        d_p = jax.tree.map(jnp.add, d_p, more_p)
        if content:
          new_q, d_k = more_q, d_k + more_k.T
      elif spec.tabled and wanted:
        old = lax.dynamic_index_in_dim(d_p[0], place, 0, False)
        d_p = [lax.dynamic_update_index_in_dim(d_p[0], old + d_s, place, 0)]
      d_s = d_s * spec.scale
      d_k = d_k + jnp.matmul(q_t[a], d_s.astype(q.dtype), preferred_element_type=jnp.float32)
      new_q = new_q + jnp.matmul(d_s.astype(k.dtype), keys, preferred_element_type=jnp.float32)
      return lax.dynamic_update_slice_in_dim(d_q, _cut(d_q, a, n) + new_q, a * n, 0), d_p, d_k, d_v

    zeros = lambda x: jnp.zeros((x.shape[1], m), jnp.float32)
    d_q, d_p, d_k, d_v = _sweep(bounds[1], b, step, (d_q, d_p, zeros(k), zeros(v)))
    return (d_q, d_p), (d_k, d_v)

  start = jnp.zeros(q.shape, jnp.float32), [jnp.zeros(x.shape, jnp.float32) for x in moving]
  (d_q, d_p), (d_k, d_v) = lax.scan(column, start, jnp.arange(columns))
  back = lambda x, like: x.swapaxes(1, 2).reshape(like.shape).astype(like.dtype)
  d_p = [g.astype(x.dtype) for g, x in zip(d_p, moving, strict=True)]
  given = iter(d_p)
  cotangents = jax.tree.unflatten(tree, [next(given) if i in wanted else None for i in range(len(leaves))])
  return d_q.astype(q.dtype), back(d_k, k), back(d_v, v), cotangents, None, None


def _tiles_forward_rule(spec, q, k, v, p, arrays, bounds):
  """Notes which parameters are perturbed: constants cost no gradient work."""
  boxes = jax.tree.leaves(p, is_leaf=lambda x: isinstance(x, jax.custom_derivatives.CustomVJPPrimal))
  wanted = _Wanted(i for i, box in enumerate(boxes) if box.perturbed and jnp.issubdtype(box.value.dtype, jnp.floating))
  plain = jax.tree.map(
    lambda box: box.value, (q, k, v, p, arrays, bounds), is_leaf=lambda x: isinstance(x, jax.custom_derivatives.CustomVJPPrimal)
  )
  out, saved = _tiles_forward(spec, *plain)
  return out, (wanted, saved)


def _tiles_backward_rule(spec, saved, d_out):
  if isinstance(d_out, jax.custom_derivatives.SymbolicZero):
    like: Any = d_out.aval
    d_out = jnp.zeros(like.shape, like.dtype)
  return _tiles_backward(spec, saved, d_out)


_tiles.defvjp(_tiles_forward_rule, _tiles_backward_rule, symbolic_zeros=True)
