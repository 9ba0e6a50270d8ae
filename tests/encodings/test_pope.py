"""PoPE against the definition in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings import pope


def definition(q, k, delta, q_pos, k_pos, inv_freq):
  """Gopalakrishnan et al. 2025: magnitudes from content, angles from position."""
  mu_q, mu_k = np.log1p(np.exp(q.astype(np.float64))), np.log1p(np.exp(k.astype(np.float64)))
  distance = np.asarray(q_pos, np.float64)[:, None] - np.asarray(k_pos)
  cosines = np.cos(distance[..., None] * inv_freq - delta)
  return np.einsum("tc,uc,tuc->tu", mu_q, mu_k, cosines) / np.sqrt(q.shape[-1])


@pytest.mark.parametrize("base", [1e4, 300.0])
def test_definition(bind, base):
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 4, 6, 8)).astype(np.float32) * 3
  made = bind(encodings.make("pope", base=base, uniform=True), length=131072)
  delta = np.asarray(made.params["delta"], np.float64)
  assert delta.min() < -1 and delta.min() >= -2 * np.pi and delta.max() <= 0
  at = np.array([0, 1, 5, 2048, 70_000, 131_071])
  scores = made.scores(q, k, at, at)
  for h in range(4):
    expected = definition(q[h], k[h], delta[h], at, at, base ** (-np.arange(8) / 8))
    np.testing.assert_allclose(scores[h], expected, atol=3e-5)


def test_phases_stay_within_a_turn(bind):
  made = bind(encodings.make("pope"))
  q = np.ones((4, 2, 8), np.float32)
  at = np.array([3, 9])
  for outside, bound in ((5.0, 0.0), (-50.0, -2 * np.pi)):
    expected = made.scores(q, q, at, at, {"delta": jnp.full((4, 8), bound)})
    np.testing.assert_allclose(made.scores(q, q, at, at, {"delta": jnp.full((4, 8), outside)}), expected, atol=1e-6)


def test_takes_the_extensions_of_rotary_frequencies(bind):
  q = np.random.default_rng(1).normal(size=(4, 3, 8)).astype(np.float32)
  at = np.array([0, 5, 11])
  trained = bind(encodings.make("pope"))
  extended = bind(extensions.apply(extensions.make("pi", factor=4.0), trained.encoding), params=trained.params)
  np.testing.assert_allclose(extended.scores(q, q, 4 * at, 4 * at), trained.scores(q, q, at, at), atol=1e-5)
  yarn = bind(extensions.apply(extensions.make("yarn", factor=4.0), trained.encoding), params=trained.params)
  gain = 0.1 * np.log(4) + 1
  np.testing.assert_allclose(yarn.scores(q, q, [0], [0])[:, 0, 0], gain**2 * trained.scores(q, q, [0], [0])[:, 0, 0], rtol=1e-5)
  assert extended.encoding.program() == trained.encoding.program()


def test_starts_without_phases(dims):
  assert not np.asarray(encodings.make("pope").init(jax.random.key(0), dims)["delta"]).any()


def test_refusals():
  with pytest.raises(ValueError, match="base above 1"):
    encodings.make("pope", base=0.5)
  with pytest.raises(ValueError, match="true or false"):
    pope.PoPE(uniform=1)
