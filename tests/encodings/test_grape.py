"""GRAPE's additive form against its definition in float64, and its limit ALiBi."""

import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings.grape import GRAPE


def softplus(x):
  return np.log1p(np.exp(x))


def definition(q, k, q_pos, k_pos, w, v, u, slopes):
  """-(i - j) m w (softplus(v . q_i / sqrt c) + softplus(u . k_j / sqrt c)) of one head, v and u of unit length."""
  q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
  rate = 0.0
  if v is not None:
    rate = rate + softplus(q @ (v / np.linalg.norm(v)) / np.sqrt(q.shape[1]))[:, None]
  if u is not None:
    rate = rate + softplus(k @ (u / np.linalg.norm(u)) / np.sqrt(q.shape[1]))[None, :]
  return -np.abs(q_pos[:, None] - k_pos[None, :]) * slopes * softplus(w) * rate


@pytest.mark.parametrize("gates", ["both", "query", "key"])
def test_definition(bind, gates):
  rng = np.random.default_rng(0)
  made = bind(encodings.make("grape", gates=gates))
  params = {n: x + 0.3 * rng.normal(size=x.shape).astype(np.float32) for n, x in made.params.items()}
  assert set(params) == {"w", *{"both": ("v", "u"), "query": ("v",), "key": ("u",)}[gates]}
  q, k = rng.normal(size=(4, 5, 8)).astype(np.float32), rng.normal(size=(4, 6, 8)).astype(np.float32)
  q_pos, k_pos = np.array([3, 9, 4000, 5, 131071]), np.array([0, 3, 5, 4000, 8, 131000])
  product = np.einsum("htc,huc->htu", q.astype(np.float64), k) / np.sqrt(8)
  found = np.asarray(made.scores(q, k, q_pos, k_pos, params), np.float64) - product
  for h, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
    v, u = (np.asarray(params[n][h], np.float64) if n in params else None for n in ("v", "u"))
    np.testing.assert_allclose(found[h], definition(q[h], k[h], q_pos, k_pos, float(params["w"][h]), v, u, slope), rtol=2e-6, atol=2e-5)


def test_gates_that_see_nothing_are_alibi(bind):
  """softplus(0) twice is 2 log 2; w such that softplus(w) undoes it."""
  grape, alibi = bind(encodings.make("grape")), bind(encodings.make("alibi"))
  zero, at = np.zeros((4, 6, 8), np.float32), np.arange(6)
  params = {**grape.params, "w": jnp.full(4, np.log(np.expm1(1 / (2 * np.log(2)))), jnp.float32)}
  np.testing.assert_allclose(grape.scores(zero, zero, at, at, params), alibi.scores(zero, zero, at, at), rtol=1e-6)


def test_refusals():
  with pytest.raises(ValueError, match=r"unknown gates of GRAPE 'none'.*query, key, both"):
    GRAPE(gates="none")  # pyright: ignore[reportArgumentType]
