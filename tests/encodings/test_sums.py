"""Sums whose differences stay exact, against NumPy's float64."""

import jax
import jax.numpy as jnp
import numpy as np

from posx.encodings.sums import between, running


def test_differences_are_exact_far_out():
  """32,768 gates: neighbours, a thousand apart, and end to end; plain float32 misses the neighbours a thousand times as far."""
  gates = np.log(1 / (1 + np.exp(-np.random.default_rng(0).normal(size=(32768, 1))))).astype(np.float32)
  exact = np.cumsum(gates[:, 0].astype(np.float64))
  total = jax.jit(running)(jnp.asarray(gates))[:, 0]
  for apart in (1, 1000, 32767):
    found = np.asarray(total[apart:, 0] - total[:-apart, 0]) + np.asarray(total[apart:, 1] - total[:-apart, 1])
    np.testing.assert_allclose(found, exact[apart:] - exact[:-apart], atol=1e-5 if apart < 2000 else 5e-3)
  plain = np.cumsum(gates[:, 0])
  assert np.abs((plain[1:] - plain[:-1]) - (exact[1:] - exact[:-1])).max() > 5e-4
  assert np.abs(total[:, 1]).max() <= 0.5 and not np.asarray(total[:, 0] % 1).any()


def test_tiny_terms_are_kept():
  """Gates that are nearly open add up instead of being rounded to whole numbers."""
  total = running(jnp.full((4096,), -1e-7))
  np.testing.assert_allclose(total[:, 0] + total[:, 1], -1e-7 * np.arange(1, 4097), rtol=1e-5)


def test_goes_on_from_what_came_before():
  x = np.random.default_rng(1).normal(size=(9, 2)).astype(np.float32)
  first = running(jnp.asarray(x[:4]))
  rest = running(jnp.asarray(x[4:]), first[-1])
  expected = np.cumsum(x.astype(np.float64), 0)
  np.testing.assert_allclose(jnp.concatenate([first, rest]).sum(-1), expected, atol=1e-6)


def test_gradients_are_those_of_a_sum():
  """d(s_5 - s_2)/dx is 1 for x_3 .. x_5 and 0 elsewhere, wherever the sum is split."""
  x = jnp.asarray([0.4, 0.3, 2.2, 0.9, -1.7, 0.1])

  def loss(x):
    total = running(x)
    return between(total[4:5], total[1:2])[0, 0]

  np.testing.assert_array_equal(jax.grad(loss)(x), [0, 0, 1, 1, 1, 0])
