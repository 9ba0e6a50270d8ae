"""Attention in O(t) memory, forward and backward, with the encoding's score hook applied inside the tile.

Nothing of size t x u exists in either pass. Scores are made tile by tile from queries, keys and positions; the backward
pass makes them again and returns gradients for q, k, v and for every parameter of the encoding that is being
differentiated. Tiles in which no key is visible are never computed.

Three plans, chosen by the form that the encoding claims for its score hook:

    strips   short sequences of consecutive positions, bias of distance alone: rows of a static triangle, unrolled
    tiles    online softmax over key tiles, any positions; a bias of distance alone is a Toeplitz tile made once
    rows     hooks that need whole rows of scores: one strip of queries against all keys at a time

Heads and batch rows are an outer loop on CPU, where a tile should stay in cache, and batched on accelerators.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posx.attention import dense, toeplitz
from posx.attention.dense import NEGATIVE
from posx.attention.numerics import exp
from posx.attention.visibility import Bounds, start_of_run, tile_bounds, visible
from posx.encodings.base import Encoding, merge

HIDDEN = -NEGATIVE
"""Log-sum-exp of a row that sees nothing: every weight exp(score - HIDDEN) is 0."""


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


def attention(
  q, k, v, q_pos, k_pos, encoding: Encoding, p, *, scale, causal, window, q_segments, k_segments, block: tuple[int, int] | None, cpu: bool
):
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
  short = consecutive and form in ("none", "distance") and q_segments is None and t <= 1024 and u <= 2048

  if form == "rows":
    run = functools.partial(_rows_head, encoding, scale, causal, window, block[0] if block else 128)
  elif short and block is None:
    plan = _strip_plan(t, u, offset, causal, window)
    fixed = None if encoding.uses("bias") else _strip_table(plan, None, causal, window)
    run = functools.partial(_strips_head, encoding, scale, causal, window, plan, fixed, cpu)
  else:
    tiles = block or (256, 256)
    tiles = min(tiles[0], _round_up(t, 8)), min(tiles[1], _round_up(u, 8))
    tabled = consecutive and form == "distance" and tiles[0] == tiles[1]
    spec = Spec(encoding, tiles, scale, causal, window, u, q_segments is not None, tabled, cpu)
    run = functools.partial(_tiles_head, spec, offset)

  each = _one_by_one if cpu else _batched
  mine, shared = encoding.heads(p)
  where = {"q_pos": q_pos, "k_pos": k_pos, "q_segments": q_segments, "k_segments": k_segments}
  common = {n: x[0] for n, x in where.items() if x is not None and x.shape[0] == 1}
  by_row = {n: x for n, x in where.items() if x is not None and x.shape[0] != 1}
  if not cpu and by_row and form != "rows":  # a batched loop has one set of bounds for all rows
    joined = _bounds(spec, where)
  else:
    joined = None

  def one_head(args):
    mine, q, k, v = args
    one = run(merge(mine, shared), joined)

    def one_row(args):
      q, k, v, rows = args
      return one(q, k, v, {**common, **rows})

    return each(one_row, (q, k, v, by_row))

  def one_group(args):
    mine, q, k, v = args
    return each(lambda args: one_head((*args, k, v)), (mine, q))

  split = lambda x: x.reshape(g, h // g, *x.shape[1:])
  q = split(jnp.moveaxis(q, 1, 0))
  k, v = jnp.moveaxis(k, 1, 0), jnp.moveaxis(v, 1, 0)
  out = each(one_group, (jax.tree.map(split, mine), q, k, v))  # [g, h / g, b, t, c]
  return jnp.moveaxis(out.reshape(h, b, t, -1), 0, 1).astype(dtype)


def _one_by_one(f, xs):
  n = jax.tree.leaves(xs)[0].shape[0]
  if n == 1:
    return f(jax.tree.map(lambda x: x[0], xs))[None]
  return lax.map(f, xs)


def _batched(f, xs):
  return jax.vmap(f)(xs)


def _round_up(n: int, to: int) -> int:
  return -(-n // to) * to


def _pad(x: Any, n: int, axis: int = 0, mode: Literal["constant", "edge"] = "constant") -> Any:
  """Appends rows up to n."""
  if x is None or x.shape[axis] == n:
    return x
  xp = np if isinstance(x, np.ndarray) else jnp
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, n - x.shape[axis])
  return xp.pad(x, widths, mode=mode)


# Rows: hooks that need a whole row of scores.


def _rows_head(encoding, scale, causal, window, size, p, joined):
  del joined

  def one(q, k, v, where):
    t = q.shape[0]
    n = min(size, t)
    padded = _round_up(t, n)

    @jax.checkpoint
    def strip(args):
      q, q_pos, q_segments = args
      seg = (None, None) if q_segments is None else (q_segments[None], where["k_segments"][None])
      return dense.attention(
        q[None, None], k[None, None], v[None, None], q_pos[None], where["k_pos"][None], _OneHead(encoding), {"p": p},
        scale=scale, causal=causal, window=window, q_segments=seg[0], k_segments=seg[1],
      )[0, 0]  # fmt: skip

    cut = lambda x, mode: None if x is None else _pad(x, padded, mode=mode).reshape(-1, n, *x.shape[1:])
    out = lax.map(strip, (cut(q, "constant"), cut(where["q_pos"], "edge"), cut(where.get("q_segments"), "edge")))
    return out.reshape(padded, -1)[:t]

  return one


@dataclasses.dataclass(frozen=True)
class _OneHead(Encoding):
  """One head's prepared slice seen as an encoding whose parameters all heads share."""

  elementwise: ClassVar = False

  inner: Encoding

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    return self.inner.on_scores(p["p"], scores, q, k, q_pos, k_pos)

  def on_values(self, p, weights, q_pos, k_pos):
    return self.inner.on_values(p["p"], weights, q_pos, k_pos)

  def uses(self, hook: str) -> bool:
    return self.inner.uses(hook)


# Strips: a static triangle for short sequences.


class _StripPlan(NamedTuple):
  rows: int  # queries of a strip
  ranges: tuple[tuple[int, int], ...]  # keys that each strip sees: first, last + 1
  top: int  # i - j of the last query of the last strip and key 0
  width: int  # columns of the table


def _strip_plan(t: int, u: int, offset: int, causal: bool, window: int | None) -> _StripPlan:
  rows = 128 if t >= 256 else _round_up(t, 8)
  count = -(-t // rows)
  ranges = []
  for a in range(count):
    oldest, newest = offset + a * rows, offset + min((a + 1) * rows, t) - 1
    last = newest + 1 if causal else u if window is None else newest + window
    last = max(0, min(u, last))
    first = 0 if window is None else max(0, oldest - window + 1) // 8 * 8
    ranges.append((min(first, last), last))
  # column z of the table serves key z - (count - 1 - a) * rows of strip a
  width = max(1, *(last + (count - 1 - a) * rows for a, (_, last) in enumerate(ranges)))
  return _StripPlan(rows, tuple(ranges), offset + count * rows - 1, width)


def _strip_table(plan: _StripPlan, bias, causal: bool, window: int | None):
  """Bias and mask of every strip as one Toeplitz array [rows, width]."""
  distance = toeplitz.distances(plan.top, plan.rows + plan.width - 1)
  hidden = distance < 0 if causal else jnp.zeros(distance.shape, bool)
  if window is not None:
    hidden |= jnp.abs(distance) >= window
  values = bias(jnp.where(hidden, 0, distance)) if bias else jnp.zeros(distance.shape, jnp.float32)
  return toeplitz.skew(jnp.where(hidden, NEGATIVE, values), plan.rows, plan.width)


def _strips_head(encoding, scale, causal, window, plan: _StripPlan, fixed, cpu, p, joined):
  """Everything visible to `plan.rows` queries is one product; the mask and the bias are one table for all strips."""
  del joined
  table = _strip_table(plan, functools.partial(encoding.bias, p), causal, window) if fixed is None else fixed

  def one(q, k, v, where):
    del where
    padded = len(plan.ranges) * plan.rows
    out = _strips((plan.rows, plan.ranges, cpu), _pad(q * scale, padded), k, v, table)
    return out[: q.shape[0]]  # pyright: ignore[reportIndexIssue]  # JAX's types lose what a custom_vjp returns under partial

  return one


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _strips(spec, q, k, v, table):
  return _strips_forward(spec, q, k, v, table)[0]


def _strip_scores(spec, q, k, table, a):
  rows, ranges, _ = spec
  first, last = ranges[a]
  shift = (len(ranges) - 1 - a) * rows
  scores = jnp.matmul(q[a * rows : (a + 1) * rows], k[first:last].T, preferred_element_type=jnp.float32)
  return scores + table[:, first + shift : last + shift]


def _strips_forward(spec, q, k, v, table):
  rows, ranges, cpu = spec
  outs, tops = [], []
  ones = jnp.concatenate([v, jnp.ones((v.shape[0], 1), v.dtype)], -1)
  for a, (first, last) in enumerate(ranges):
    if last <= first:
      outs.append(jnp.zeros((rows, v.shape[1]), v.dtype))
      tops.append(jnp.full((rows,), HIDDEN))
      continue
    scores = _strip_scores(spec, q, k, table, a)
    top = jnp.maximum(scores.max(1), NEGATIVE / 2)
    e = exp(scores - top[:, None], cpu)
    acc = jnp.matmul(e.astype(v.dtype), ones[first:last], preferred_element_type=jnp.float32)
    out, lse = _finish(acc, top)
    outs.append(out.astype(v.dtype))
    tops.append(lse)
  out, lse = jnp.concatenate(outs), jnp.concatenate(tops)
  return out, (q, k, v, table, out, lse)


def _finish(acc, top):
  """Output and log-sum-exp from the accumulator, whose last column holds the sum of weights."""
  total = acc[:, -1]
  seen = ~(total <= 0)
  safe = jnp.where(seen, total, 1.0)
  inverse = 1.0 / safe + 0.0 * top  # a NaN or infinite score shows in the output
  return acc[:, :-1] * inverse[:, None], jnp.where(seen, top + jnp.log(safe), HIDDEN)


def _strips_backward(spec, saved, d_out):
  rows, ranges, cpu = spec
  q, k, v, table, out, lse = saved
  delta = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)
  q_t, d_out_t, v_t = q.T, d_out.T, v.T
  d_q, d_table = [], jnp.zeros_like(table)
  d_k, d_v = jnp.zeros(k.shape[::-1], jnp.float32), jnp.zeros(v.shape[::-1], jnp.float32)
  for a, (first, last) in enumerate(ranges):
    mine = slice(a * rows, (a + 1) * rows)
    if last <= first:
      d_q.append(jnp.zeros((rows, q.shape[1]), jnp.float32))
      continue
    shift = (len(ranges) - 1 - a) * rows
    w = exp(_strip_scores(spec, q, k, table, a) - lse[mine, None], cpu)
    d_w = jnp.matmul(d_out[mine], v_t[:, first:last], preferred_element_type=jnp.float32)
    d_s = w * (d_w - delta[mine, None])
    d_v = d_v.at[:, first:last].add(jnp.matmul(d_out_t[:, mine], w.astype(v.dtype), preferred_element_type=jnp.float32))
    d_k = d_k.at[:, first:last].add(jnp.matmul(q_t[:, mine], d_s.astype(q.dtype), preferred_element_type=jnp.float32))
    d_q.append(jnp.matmul(d_s.astype(k.dtype), k[first:last], preferred_element_type=jnp.float32))
    d_table = d_table.at[:, first + shift : last + shift].add(d_s)
  return jnp.concatenate(d_q).astype(q.dtype), d_k.T.astype(k.dtype), d_v.T.astype(v.dtype), d_table


_strips.defvjp(_strips_forward, _strips_backward)


# Tiles: online softmax over key tiles.


def _bounds(spec, where) -> tuple[Bounds, Bounds]:
  """Tile bounds joined over the batch rows in `where` ([1 or b, t])."""

  def grow(x: Any) -> Any:
    return x if x is None or x.ndim == 2 else x[None]

  q_pos, k_pos, q_seg, k_seg = (grow(where.get(n)) for n in ("q_pos", "k_pos", "q_segments", "k_segments"))
  t, u = q_pos.shape[-1], k_pos.shape[-1]
  n, m = spec.tiles
  pad = lambda x, size: _pad(x, _round_up(x.shape[-1], size), axis=1, mode="edge") if x is not None else None
  return tile_bounds(
    pad(q_pos, n), pad(k_pos, m), spec.tiles, (t, u), causal=spec.causal, window=spec.window,
    q_segments=pad(q_seg, n), k_segments=pad(k_seg, m),
  )  # fmt: skip


def _tiles_head(spec: Spec, offset: int, p, joined):
  """Binds one head's parameters; builds its Toeplitz tiles once for all batch rows."""

  def one(q, k, v, where):
    t, u = q.shape[0], k.shape[0]
    n, m = spec.tiles
    full_t, full_u = _round_up(t, n), _round_up(u, m)
    bounds = joined or _bounds(spec, where)
    arrays = {
      "q_pos": jnp.asarray(_pad(where["q_pos"], full_t, mode="edge")),
      "k_pos": jnp.asarray(_pad(where["k_pos"], full_u, mode="edge")),
    }
    if spec.segmented:
      arrays["q_segments"] = jnp.asarray(_pad(where["q_segments"], full_t, mode="edge"))
      arrays["k_segments"] = jnp.asarray(_pad(where["k_segments"], full_u, mode="edge"))
    given = {"table": _table(spec, p, offset, full_t // n, full_u // m)} if spec.tabled else p
    out = _tiles(spec, _pad(q, full_t), _pad(k, full_u), _pad(v, full_u), given, arrays, bounds)
    return out[:t]  # pyright: ignore[reportIndexIssue]  # lost as in _strips_head

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
    return _finish(*_sweep(bounds[0], a, step, carry))

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
