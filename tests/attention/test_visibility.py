"""Who sees whom, and which tiles that needs, against every pair looked at one by one."""

import numpy as np
import pytest

from posx.attention.visibility import Sight, narrowed, tile_bounds, visible


def seen_by_definition(q, k, causal, window):
  width, sinks = window if isinstance(window, Sight) else (window, 0)
  pairs = [[(not causal or i >= j) and (width is None or abs(i - j) < width or j < sinks) for j in k] for i in q]
  return np.array(pairs, bool).reshape(len(q), len(k))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3, Sight(3, 2)])
def test_visible(causal, window):
  q, k = np.array([0, 1, 5, 9, 30]), np.array([4, 0, 1, 2, 29, 9, 31])
  np.testing.assert_array_equal(visible(q, k, causal=causal, window=window), seen_by_definition(q, k, causal, window))


def test_a_caller_and_an_encoding_agree_on_what_is_seen():
  assert narrowed(None, (None, 0)) is None
  assert narrowed(8, (None, 0)) == narrowed(None, (8, 0)) == narrowed(9, (8, 0)) == 8
  assert narrowed(6, (8, 2)) == Sight(6, 2) and narrowed(None, (8, 2)) == Sight(8, 2)


def padded(x, size):
  return np.pad(x, (0, -len(x) % size), mode="edge")[None].astype(np.int32)


@pytest.mark.parametrize("seed", range(120))
def test_needed_tiles_are_visited_once_and_hidden_ones_of_consecutive_positions_never(seed):
  rng = np.random.default_rng(seed)
  (t, u), (n, m) = rng.integers(1, 60, 2), rng.choice([4, 8, 16], 2)
  causal, window = bool(rng.integers(2)), [None, 1, 9, Sight(1, 1), Sight(5, 3), Sight(9, 12)][rng.integers(6)]
  consecutive = bool(rng.integers(2))
  if consecutive:
    q, k = np.arange(t) + int(rng.integers(0, 20)), np.arange(u)
  else:
    q, k = rng.integers(0, 40, t), rng.integers(0, 40, u)
  bounds = tile_bounds(padded(q, n), padded(k, m), (n, m), (t, u), causal=causal, window=window, q_segments=None, k_segments=None)
  seen = seen_by_definition(q, k, causal, window)
  for a in range(-(-t // n)):
    at = {name: int(getattr(bounds, name)[a]) for name in ("first", "last", "full_first", "full_last", "head_first", "head_last")}
    visited = [*range(at["head_first"], at["head_last"]), *range(at["first"], at["last"])]
    assert len(set(visited)) == len(visited)
    assert at["first"] <= at["full_first"] <= at["full_last"] <= max(at["first"], at["last"])
    for b in range(-(-u // m)):
      tile = seen[a * n : (a + 1) * n, b * m : (b + 1) * m]
      assert b in visited or not tile.any()
      assert tile.all() or not at["full_first"] <= b < at["full_last"]
      assert tile.any() or not consecutive or b not in visited


def test_far_from_the_start_only_the_sinks_and_the_window_are_computed():
  at = np.arange(4096, dtype=np.int32)[None]
  bounds = tile_bounds(at, at, (64, 64), (4096, 4096), causal=True, window=Sight(128, 4), q_segments=None, k_segments=None)
  count = (bounds.last - bounds.first) + (bounds.head_last - bounds.head_first)
  assert count.max() == 4 and (count[4:] == 4).all()
