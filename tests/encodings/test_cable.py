"""CABLE against its definition in float64, and its family: with the weights turned it is FoX."""

import jax
import jax.numpy as jnp
import numpy as np

from posx import encodings
from posx.encodings import cable, forgetting
from posx.encodings.sums import running


def test_definition():
  """b_ij = b_i - b_j, b the cumulative sum of -softplus(x w + b), as in the authors' code."""
  rng = np.random.default_rng(0)
  x, weight, bias = (rng.normal(size=s).astype(np.float32) for s in ((11, 6), (3, 6), (3,)))
  made = encodings.make("cable").features({"weight": jnp.asarray(weight), "bias": jnp.asarray(bias)}, jnp.asarray(x), jnp.arange(11))
  b = np.cumsum(-np.log1p(np.exp(x.astype(np.float64) @ weight.T + bias)), axis=0)
  total = running(made["steps"])
  past = np.tri(11, dtype=bool)
  for h in range(3):
    p = {"query": {"steps": total[:, h]}, "key": {"steps": total[:, h]}}
    scores = encodings.make("cable").on_scores(p, jnp.zeros((11, 11)), None, None, None, None)
    np.testing.assert_allclose(np.asarray(scores)[past], (b[:, None, h] - b[None, :, h])[past], atol=2e-6)


def test_is_fox_with_the_weights_turned():
  rng = np.random.default_rng(1)
  x, weight, bias = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((5, 6), (2, 6), (2,)))
  np.testing.assert_allclose(-cable.steps(x, weight, bias), forgetting.log_gates(x, -weight, -bias), atol=1e-6)


def test_starts_within_the_bounds_of_a_linear_map(dims):
  params = encodings.make("cable").init(jax.random.key(0), dims)
  assert all(0.5 * 32**-0.5 < np.abs(x).max() <= 32**-0.5 for x in jax.tree.leaves(params))
