"""The exponential of softmax, the bounds of tiles and the Toeplitz layout, each against its definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posx.attention import numerics, toeplitz, visibility
from posx.attention.dense import NEGATIVE

SMALLEST = float(np.finfo(np.float32).tiny)
"""The smallest normal float32, 2^-126; e^x reaches it at x = -87.34."""


def test_exponential_is_accurate_wherever_it_is_a_normal_number():
  x = np.concatenate([-np.logspace(-8, np.log10(87.33), 400_000), np.linspace(-87.33, 0, 1_600_001), [0.0]]).astype(np.float32)
  found = np.asarray(numerics.exp(jnp.asarray(x), cpu=True), np.float64)
  exact = np.exp(x.astype(np.float64))
  assert found[-1] == 1.0
  relative = np.abs(found / exact - 1)
  assert np.abs(found - exact).max() < 1.5e-7
  assert relative[x >= -4].max() < 4e-7 and relative.max() < 4.5e-6


def test_exponential_goes_to_0_without_sign_or_nan():
  x = np.concatenate([np.linspace(-90, -87, 100_001), -np.logspace(2, 38, 2001), [NEGATIVE, 2 * NEGATIVE, -np.inf]]).astype(np.float32)
  found = np.asarray(numerics.exp(jnp.asarray(x), cpu=True), np.float64)
  assert np.isfinite(found).all() and (found >= 0).all() and not np.signbit(found).any()
  assert np.abs(found - np.exp(x.astype(np.float64))).max() < SMALLEST
  assert not found[x < -88.03].any()
  assert float(numerics.exp(jnp.float32(-1e30), cpu=True)) == 0.0


def test_exponential_takes_a_step_of_rounding_above_0():
  """In the backward pass a score may exceed the log-sum-exp by its rounding."""
  np.testing.assert_allclose(numerics.exp(jnp.array([1e-6, 1e-5], jnp.float32), cpu=True), np.exp([1e-6, 1e-5]), rtol=4e-7)


def test_exponential_elsewhere_is_the_librarys():
  x = jnp.linspace(-5, 0, 11)
  np.testing.assert_array_equal(numerics.exp(x, cpu=False), jnp.exp(x))
  half = numerics.exp(x.astype(jnp.bfloat16), cpu=True)
  assert half.dtype == jnp.bfloat16


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 7), (5, 1), (4, 4), (3, 8), (8, 3)])
def test_skew_is_its_definition(rows, width):
  vector = np.random.default_rng(0).normal(size=rows + width - 1).astype(np.float32)
  expected = [[vector[rows - 1 - x + z] for z in range(width)] for x in range(rows)]
  np.testing.assert_array_equal(toeplitz.skew(jnp.asarray(vector), rows, width), expected)


@pytest.mark.parametrize(("n", "count"), [(4, 3), (3, 4), (8, 1), (48, 3), (64, 2)])
def test_tiles_of_a_band_are_their_definition(n, count):
  vector = np.arange((count + 1) * n - 1, dtype=np.float32)
  band = toeplitz.band(jnp.asarray(vector), n)
  assert band.shape[0] == min(32, n & -n)  # the largest power of two that divides n, 32 at most
  for place in range(count):
    expected = [[vector[(place + 1) * n - 1 - x + z] for z in range(n)] for x in range(n)]
    np.testing.assert_array_equal(toeplitz.tile(band, place, n), expected)


def test_tiles_of_falling_distances_are_distances():
  band = toeplitz.band(toeplitz.distances(7, 4 + 2 * 4 - 1).astype(jnp.float32), 4)
  i, j = np.arange(4, 8), np.arange(8)
  np.testing.assert_array_equal(np.concatenate([toeplitz.tile(band, d, 4) for d in range(2)], axis=1), (i[:, None] - j[None, :]))


@pytest.mark.parametrize("n", [3, 48])
def test_gradient_of_the_band_sums_the_diagonals(n):
  weight = np.random.default_rng(1).normal(size=(2, n, n)).astype(np.float32)
  make = functools.partial(toeplitz.band, n=n)
  band, pull = jax.vjp(make, jnp.zeros(3 * n - 1))
  by_hand = functools.reduce(lambda g, d: toeplitz.add_tile(g, d, jnp.asarray(weight[d])), range(2), jnp.zeros_like(band))
  through = jax.grad(lambda v: sum((toeplitz.tile(make(v), d, n) * weight[d]).sum() for d in range(2)))(jnp.zeros(3 * n - 1))
  expected = np.zeros(3 * n - 1)
  for d in range(2):
    for x in range(n):
      for z in range(n):
        expected[(d + 1) * n - 1 - x + z] += weight[d, x, z]
  np.testing.assert_allclose(pull(by_hand)[0], expected, atol=2e-5)
  np.testing.assert_allclose(through, expected, atol=2e-5)


@pytest.mark.parametrize(
  ("positions", "start"),
  [([0, 1, 2], 0), ([7, 8, 9], 7), ([-2, -1, 0], -2), ([5], 5), ([0, 2, 3], None), ([1, 1], None), ([3, 2, 1], None), ([], None)],
)
def test_start_of_run(positions, start):
  positions = np.array(positions, np.int32)
  assert visibility.start_of_run(positions) == start
  assert visibility.start_of_run(np.stack([positions, positions])) == start
  if start is not None:
    assert visibility.start_of_run(np.stack([positions, positions + 1])) is None


def test_positions_unknown_while_tracing_are_no_run():
  found = []
  jax.jit(lambda x: found.append((visibility.concrete(x), visibility.start_of_run(x))))(jnp.arange(3))
  assert found == [(None, None)]


@st.composite
def layouts(draw):
  t, u, n, m, rows = (draw(st.integers(1, high)) for high in (23, 23, 8, 8, 3))
  kind = draw(st.sampled_from(["any", "run", "documents"]))
  seed = draw(st.integers(0, 2**31))
  rng = np.random.default_rng(seed)

  def positions(size):
    if kind == "run":
      return np.arange(size)[None] + rng.integers(-5, 6, (rows, 1))
    return rng.integers(-3, 30, (rows, size))

  def segments(size):
    numbers = rng.integers(0, 4, (rows, size))
    return np.sort(numbers, 1) if kind == "documents" else numbers

  with_segments = draw(st.booleans())
  seg = (segments(t), segments(u)) if with_segments else (None, None)
  return positions(t), positions(u), (n, m), draw(st.booleans()), draw(st.none() | st.integers(1, 12)), *seg


@settings(max_examples=80, deadline=None)
@given(layouts())
def test_tile_bounds_against_brute_force(layout):
  """No visible pair lies outside the bounds, and where no mask is used every pair is visible and real."""
  q_pos, k_pos, (n, m), causal, window, q_seg, k_seg = layout
  t, u = q_pos.shape[1], k_pos.shape[1]
  pad = lambda x, size: None if x is None else np.pad(x, ((0, 0), (0, -x.shape[1] % size)), mode="edge").astype(np.int32)
  q_pos, q_seg, k_pos, k_seg = pad(q_pos, n), pad(q_seg, n), pad(k_pos, m), pad(k_seg, m)
  seen = np.asarray(visibility.visible(q_pos, k_pos, causal=causal, window=window, q_segments=q_seg, k_segments=k_seg))
  real = np.zeros(seen.shape[1:], bool)
  real[:t, :u] = True
  tiles = lambda x: x.reshape(*x.shape[:-2], x.shape[-2] // n, n, x.shape[-1] // m, m).swapaxes(-3, -2)
  some = tiles(seen & real).any((0, -2, -1))
  whole = tiles(seen & real).all((0, -2, -1))
  how = {"causal": causal, "window": window, "q_segments": q_seg, "k_segments": k_seg}
  bounds = visibility.tile_bounds(q_pos, k_pos, (n, m), (t, u), **how)
  for i in range(len(some)):
    of_i = (bounds.head_first, bounds.head_last, bounds.first, bounds.full_first, bounds.full_last, bounds.last)
    head_first, head_last, first, full_first, full_last, last = (int(x[i]) for x in of_i)
    assert 0 <= head_first <= head_last <= first <= full_first <= full_last <= last <= len(some[i])
    visited = np.zeros(len(some[i]), bool)
    visited[head_first:head_last] = visited[first:last] = True
    assert not some[i, ~visited].any()
    assert whole[i, full_first:full_last].all()


@pytest.mark.parametrize("window", [None, 9, 24])
def test_a_triangle_visits_no_tile_too_many(window):
  """Consecutive positions, 8 tiles of 8: exactly the tiles with a visible pair, and every whole one is known as such."""
  pos = np.arange(64, dtype=np.int32)[None]
  bounds = visibility.tile_bounds(pos, pos, (8, 8), (64, 64), causal=True, window=window, q_segments=None, k_segments=None)
  seen = np.asarray(visibility.visible(pos[0], pos[0], window=window)).reshape(8, 8, 8, 8).swapaxes(1, 2)
  some, whole = seen.any((2, 3)), seen.all((2, 3))
  np.testing.assert_array_equal(bounds.last - bounds.first, some.sum(1))
  np.testing.assert_array_equal(bounds.full_last - bounds.full_first, whole.sum(1))


def test_bounds_of_traced_positions_are_those_of_known_ones():
  rng = np.random.default_rng(0)
  pos, seg = rng.integers(0, 50, (2, 40)).astype(np.int32), np.sort(rng.integers(0, 4, (2, 40)), 1).astype(np.int32)
  run = lambda pos, seg: visibility.tile_bounds(pos, pos, (8, 4), (37, 38), causal=True, window=20, q_segments=seg, k_segments=seg)
  for a, b in zip(jax.tree.leaves(run(pos, seg)), jax.tree.leaves(jax.jit(run)(pos, seg)), strict=True):
    np.testing.assert_array_equal(a, b)
