"""xPos against the definition in float64, near and far from the origin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import xpos
from posx.encodings.base import Dims


def definition(q, k, q_pos, k_pos, base=1e4, scale=512.0, gamma=0.4):
  """Sun et al. 2022: sum over pairs of zeta^((i-j)/S) Re[(q e^{i w i}) conj(k e^{i w j})], interleaved; causal entries."""
  c = q.shape[-1]
  out = np.zeros((len(q_pos), len(k_pos)))
  for n in range(c // 2):
    w, zeta = base ** (-2 * n / c), (2 * n / c + gamma) / (1 + gamma)
    a, b = q[:, 2 * n] + 1j * q[:, 2 * n + 1], k[:, 2 * n] + 1j * k[:, 2 * n + 1]
    distance = np.asarray(q_pos, np.float64)[:, None] - np.asarray(k_pos)[None, :]
    term = (a[:, None] * np.conj(b)[None, :] * np.exp(1j * w * distance)).real
    out += np.where(distance >= 0, zeta ** (np.maximum(distance, 0) / scale) * term, np.nan)
  return out / np.sqrt(c)


def test_score_by_hand(bind):
  made = bind(encodings.make("xpos"), Dims(1, 4, 4, 16), length=2000)
  e = np.zeros((1, 1, 4), np.float32)
  e[..., 0] = 1
  for i, j in ((10, 3), (1010, 1003), (131071, 131064)):
    np.testing.assert_allclose(made.scores(e, e, [i], [j])[0, 0, 0] * 2, 0.741099656, rtol=2e-6)


@pytest.mark.parametrize("start", [0, 5000, 100_000])
@pytest.mark.parametrize("step", [1, 700])
def test_definition(bind, start, step):
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 4, 12, 8)).astype(np.float32)
  made = bind(encodings.make("xpos"), length=200_000)
  at = start + step * np.arange(12)
  scores = np.asarray(made.scores(q, k, at, at), np.float64)
  past = np.tri(12, dtype=bool)
  for h in range(4):
    np.testing.assert_allclose(scores[h][past], definition(q[h], k[h], at, at)[past], atol=5e-6)


def test_half_layout_is_a_permutation(bind):
  rng = np.random.default_rng(1)
  q, k = rng.normal(size=(2, 4, 5, 8)).astype(np.float32)
  order = np.r_[0:8:2, 1:8:2]
  at = np.arange(5) * 9
  half, interleaved = (bind(encodings.make("xpos", layout=layout)) for layout in ("half", "interleaved"))
  np.testing.assert_allclose(half.scores(q[..., order], k[..., order], at, at), interleaved.scores(q, k, at, at), atol=2e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_one_query_against_a_hundred_thousand_keys(bind, dtype):
  """The case in which factors about a common centre overflow."""
  u = 100_001
  made = bind(encodings.make("xpos"), Dims(1, 4, 4, 16), length=u)
  q, k = jnp.ones((1, 1, 4), dtype), jnp.ones((1, u, 4), dtype)
  scores = np.asarray(made.scores(q, k, [u - 1], np.arange(u)))[0, 0]
  assert np.isfinite(scores).all()
  tail = slice(u - 3000, u, 97)
  expected = definition(np.ones((1, 4)), np.ones((len(range(*tail.indices(u))), 4)), [u - 1], np.arange(u)[tail])[0]
  np.testing.assert_allclose(scores[tail], expected, atol=2e-2 if dtype == jnp.bfloat16 else 5e-6)
  assert np.abs(scores[0]) < 1e-6


def test_gradients_of_a_long_tile_are_finite(bind):
  made = bind(encodings.make("xpos"), length=100_000)
  q = jnp.asarray(np.random.default_rng(2).normal(size=(4, 8, 8)), jnp.float32)
  at = np.array([0, 10_000, 20_000, 20_001, 25_000, 29_000, 29_999, 30_000])

  def loss(q):
    return jax.nn.softmax(jnp.where(at[:, None] >= at, made.scores(q, q, at, at), -jnp.inf)).std()

  assert np.isfinite(jax.grad(loss)(q)).all()


def test_a_tile_too_wide_for_float32_is_never_a_wrong_number(bind):
  made = bind(encodings.make("xpos"), length=200_000)
  q = np.ones((4, 2, 8), np.float32)
  scores = np.asarray(made.scores(q, q, [0, 150_000], [0, 150_000]))
  assert np.isnan(scores[:, 0]).all() and np.isfinite(scores[:, 1]).all()


@pytest.mark.parametrize(
  ("fields", "match"), [({"scale_base": 0.0}, "scale_base > 0"), ({"gamma": -1.0}, "gamma > 0"), ({"base": 1.0}, "base above 1")]
)
def test_refusals(fields, match):
  with pytest.raises(ValueError, match=match):
    xpos.XPos(**fields)


def test_layout_and_sizes(dims):
  with pytest.raises(ValueError, match="half, interleaved"):
    xpos.XPos(layout="pairs")
  with pytest.raises(ValueError, match="even and at least 2, got 7"):
    encodings.make("xpos").check(Dims(1, 7, 7, 8), 8)
