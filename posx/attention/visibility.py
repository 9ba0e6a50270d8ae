"""Who may see whom: from positions and segments, never from array indices."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np


class Sight(NamedTuple):
  """A window of the last tokens, and first ones that stay visible beside it.

  Attributes:
    window: tokens of the window, the query itself included.
    sinks: keys at positions below it are visible too; at least 1.
  """

  window: int
  sinks: int


def narrowed(window: int | None, own: tuple[int | None, int]) -> int | Sight | None:
  """The caller's window joined with what an encoding says of itself (see `Encoding.visibility`)."""
  widths = [w for w in (window, own[0]) if w is not None]
  if not widths:
    return None
  return Sight(min(widths), own[1]) if own[1] else min(widths)


def visible(q_pos, k_pos, *, causal: bool = True, window: int | Sight | None = None, q_segments: Any = None, k_segments: Any = None):
  """Boolean [..., t, u]: may query i see key j?

  Args:
    q_pos: int32 [..., t], tokens.
    k_pos: int32 [..., u], tokens.
    causal: only keys at or before the query.
    window: how many tokens are visible, the query itself included, or a `Sight`; None for all.
    q_segments: int32 [..., t]; only keys of the same segment are visible. None for one segment.
    k_segments: int32 [..., u].
  """
  distance = q_pos[..., :, None] - k_pos[..., None, :]
  seen = distance >= 0 if causal else jnp.ones(distance.shape, bool)
  if isinstance(window, Sight):
    seen &= (jnp.abs(distance) < window.window) | (k_pos < window.sinks)[..., None, :]
  elif window is not None:
    seen &= jnp.abs(distance) < window
  if q_segments is not None:
    seen &= q_segments[..., :, None] == k_segments[..., None, :]
  return seen


def concrete(x: Any) -> np.ndarray | None:
  """x as a NumPy array if its values are known while tracing, else None."""
  return None if isinstance(x, jax.core.Tracer) else np.asarray(x)


def start_of_run(positions: Any) -> int | None:
  """p if the positions are known to be p, p + 1, p + 2, ... (in every row), else None."""
  known = concrete(positions)
  if known is None or known.size == 0:
    return None
  rows = known.reshape(-1, known.shape[-1])
  expected = rows[0, 0] + np.arange(rows.shape[1])
  return int(rows[0, 0]) if np.array_equal(rows, np.broadcast_to(expected, rows.shape)) else None


@dataclasses.dataclass(frozen=True)
class Bounds:
  """Which key tiles each query tile needs: int32 arrays over query tiles.

  Tiles first .. last - 1 are needed; of these, full_first .. full_last - 1 are visible as a whole and need no mask. Tiles
  head_first .. head_last - 1 are needed too, before a gap: those of sinks.
  """

  first: Any
  last: Any
  full_first: Any
  full_last: Any
  head_first: Any
  head_last: Any


jax.tree_util.register_dataclass(Bounds, ["first", "last", "full_first", "full_last", "head_first", "head_last"], [])


def tile_bounds(q_pos, k_pos, tiles: tuple[int, int], valid: tuple[int, int], *, causal, window, q_segments, k_segments) -> Bounds:
  """Bounds of the key tiles that each query tile needs, for any positions.

  A tile is skipped only if no pair in it can be visible, judged by the smallest and largest position and segment in it.

  Args:
    q_pos, k_pos: int32 [rows, t], [rows, u], padded to whole tiles; needs are joined over the rows.
    tiles: tokens of a query tile and of a key tile.
    valid: how many queries and keys are real; the rest is padding.
  """
  xp = np if all(isinstance(a, np.ndarray) for a in (q_pos, k_pos, q_segments, k_segments) if a is not None) else jnp

  def ends(x, size, real):
    inside = (xp.arange(x.shape[-1]) < real).reshape(-1, size)
    x = x.reshape(*x.shape[:-1], -1, size)
    big = np.iinfo(np.int32).max
    low = xp.where(inside, x, big).min(-1)
    high = xp.where(inside, x, -big).max(-1)
    return low, high, inside.all(-1)

  q_low, q_high, q_whole = ends(q_pos, tiles[0], valid[0])
  k_low, k_high, k_whole = ends(k_pos, tiles[1], valid[1])
  nearest = q_low[..., :, None] - k_high[..., None, :]  # smallest i - j in the tile
  farthest = q_high[..., :, None] - k_low[..., None, :]  # largest i - j
  need = xp.ones(nearest.shape, bool)
  full = xp.broadcast_to(k_whole[None, :], nearest.shape) & q_whole[:, None]
  if causal:
    need = need & (farthest >= 0)
    full = full & (nearest >= 0)
  if window is not None:
    width, sinks = window if isinstance(window, Sight) else (window, None)
    near, inside = (nearest < width) & (farthest > -width), (farthest < width) & (nearest > -width)
    if sinks is not None:
      near, inside = near | (k_low < sinks)[..., None, :], inside | (k_high < sinks)[..., None, :]
    need, full = need & near, full & inside
  if q_segments is not None:
    qs_low, qs_high, _ = ends(q_segments, tiles[0], valid[0])
    ks_low, ks_high, _ = ends(k_segments, tiles[1], valid[1])
    need = need & (qs_low[..., :, None] <= ks_high[..., None, :]) & (qs_high[..., :, None] >= ks_low[..., None, :])
    one = (qs_low == qs_high)[..., :, None] & (ks_low == ks_high)[..., None, :]
    full = full & one & (qs_low[..., :, None] == ks_low[..., None, :])
  need, full = need.any(0), full.all(0)
  full = full & need
  return _runs(xp, need, full)


def _runs(xp, need, full) -> Bounds:
  """The columns that every row needs: up to the first gap, from there to the last, and in these the first unbroken run of full ones."""
  n = need.shape[1]
  columns = xp.arange(n)[None, :]
  last = xp.where(need.any(1), n - need[:, ::-1].argmax(1), 0)

  def run(of, start):
    """(first, one after the last) of the first unbroken run in a row; empty at `start` if there is none."""
    some = of.any(1)
    first = xp.where(some, of.argmax(1), start)
    after = (~of) & (columns >= first[:, None])
    return first, xp.where(some, xp.where(after.any(1), after.argmax(1), n), first)

  head_first, head_last = run(need, 0)
  rest = need & (columns >= head_last[:, None])
  gap = rest.any(1)
  first = xp.where(gap, rest.argmax(1), head_first)
  head_first = xp.where(gap, head_first, first)
  head_last = xp.where(gap, head_last, first)
  full_first, full_last = run(full & (columns >= first[:, None]), first)
  return Bounds(*(a.astype(np.int32) for a in (first, last, full_first, full_last, head_first, head_last)))
