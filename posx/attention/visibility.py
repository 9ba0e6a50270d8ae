"""Who may see whom: from positions and segments, never from array indices."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np


def visible(q_pos, k_pos, *, causal: bool = True, window: int | None = None, q_segments: Any = None, k_segments: Any = None):
  """Boolean [..., t, u]: may query i see key j?

  Args:
    q_pos: int32 [..., t], tokens.
    k_pos: int32 [..., u], tokens.
    causal: only keys at or before the query.
    window: how many tokens are visible, the query itself included; None for all.
    q_segments: int32 [..., t]; only keys of the same segment are visible. None for one segment.
    k_segments: int32 [..., u].
  """
  distance = q_pos[..., :, None] - k_pos[..., None, :]
  seen = distance >= 0 if causal else jnp.ones(distance.shape, bool)
  if window is not None:
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
  """Which tiles of the other axis each tile needs: int32 arrays over tiles.

  Tiles first .. last - 1 are needed; of these, full_first .. full_last - 1 are visible as a whole and need no mask.
  """

  first: Any
  last: Any
  full_first: Any
  full_last: Any


jax.tree_util.register_dataclass(Bounds, ["first", "last", "full_first", "full_last"], [])


def tile_bounds(
  q_pos, k_pos, tiles: tuple[int, int], valid: tuple[int, int], *, causal, window, q_segments, k_segments
) -> tuple[Bounds, Bounds]:
  """Bounds of key tiles for each query tile and of query tiles for each key tile, for any positions.

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
    need = need & (nearest < window) & (farthest > -window)
    full = full & (farthest < window) & (nearest > -window)
  if q_segments is not None:
    qs_low, qs_high, _ = ends(q_segments, tiles[0], valid[0])
    ks_low, ks_high, _ = ends(k_segments, tiles[1], valid[1])
    need = need & (qs_low[..., :, None] <= ks_high[..., None, :]) & (qs_high[..., :, None] >= ks_low[..., None, :])
    one = (qs_low == qs_high)[..., :, None] & (ks_low == ks_high)[..., None, :]
    full = full & one & (qs_low[..., :, None] == ks_low[..., None, :])
  need, full = need.any(0), full.all(0)
  full = full & need
  return _runs(xp, need, full), _runs(xp, need.T, full.T)


def _runs(xp, need, full) -> Bounds:
  """First and last needed column of every row, and the first unbroken run of full ones."""
  n = need.shape[1]
  some, some_full = need.any(1), full.any(1)
  first = xp.where(some, need.argmax(1), 0)
  last = xp.where(some, n - need[:, ::-1].argmax(1), 0)
  full_first = xp.where(some_full, full.argmax(1), first)
  after = (~full) & (xp.arange(n)[None, :] >= full_first[:, None])
  full_last = xp.where(some_full, xp.where(after.any(1), after.argmax(1), n), full_first)
  return Bounds(*(a.astype(np.int32) for a in (first, last, full_first, full_last)))
