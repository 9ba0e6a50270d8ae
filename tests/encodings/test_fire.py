"""FIRE against the definition in float64 and the listing of its paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import fire
from posx.encodings.base import Dims


def definition(q_pos, k_pos, c, threshold, w1, b1, w2, b2, eps):
  """Li et al. 2024, equations 5 to 7, one head."""
  i, j = np.asarray(q_pos, np.float64)[:, None], np.asarray(k_pos, np.float64)[None, :]
  x = np.log(np.abs(c * (i - j)) + 1) / (np.log(np.abs(c * np.maximum(i, threshold)) + 1) + eps)
  return np.maximum(x[..., None] * w1 + b1, 0) @ w2 + b2


def test_oracle(oracle, bind):
  for case in oracle("F_fire"):
    a, p = case.arrays, case.params
    t, h = p["length"], p["heads"]
    made = fire.FIRE(width=p["mlp_width"], c=p["c"], threshold=p["threshold_L"], eps=p["eps"])
    params = {"c": jnp.float32(p["c"]), "stretch": jnp.float32(1), "w1": a["w1"][:, 0], "b1": a["b1"], "w2": a["w2"], "b2": a["b2"]}
    run = bind(made, Dims(h, 8, 8 * h, t), jax.tree.map(jnp.asarray, params))
    zero = np.zeros((h, t, 8), np.float32)
    bias = np.asarray(run.scores(zero, zero, np.arange(t), np.arange(t)))
    np.testing.assert_allclose(bias, a["bias_ref"], atol=2e-6, rtol=2e-6, err_msg=case.id)
    np.testing.assert_allclose(bias, a["bias_ref_eps0"], atol=1e-4, rtol=1e-4, err_msg=case.id)
    past = a["causal"]
    np.testing.assert_allclose(bias[:, past], a["bias_dape"][:, past], atol=1e-5, rtol=1e-5, err_msg=case.id)


def test_normalized_distance_by_hand():
  np.testing.assert_allclose(fire.normalized(jnp.array([7]), jnp.array([3]), 1.0, 4.0, eps=0.0), [[0.77397603]], rtol=1e-6)


@pytest.mark.parametrize("stretch", [1.0, -2.0, 0.001])
def test_definition_far_out(bind, stretch):
  made = bind(encodings.make("fire", width=5))
  params = made.params | {"stretch": jnp.float32(stretch), "c": jnp.float32(-0.7)}
  q_pos, k_pos = np.array([0, 3, 600, 131071]), np.array([0, 2, 599, 131071])
  zero = np.zeros((4, 4, 8), np.float32)
  scores = made.scores(zero, zero, q_pos, k_pos, params)
  w1, b1, w2, b2 = (np.asarray(params[n], np.float64) for n in ("w1", "b1", "w2", "b2"))
  for h in range(4):
    np.testing.assert_allclose(scores[h], definition(q_pos, k_pos, -0.7, abs(512 * stretch), w1, b1, w2[h], b2[h], 1e-6), atol=1e-5)


def test_finite_where_the_denominator_would_vanish(bind):
  """i = 0 and L = 0, and above the diagonal."""
  made = bind(encodings.make("fire", threshold=0.0))
  zero = np.zeros((4, 3, 8), np.float32)

  def loss(params):
    scores = made.scores(zero, zero, np.arange(3), np.arange(3), params)
    return jnp.where(np.tri(3, dtype=bool), scores, 0).sum(), scores

  grads, scores = jax.grad(loss, has_aux=True)(made.params)
  assert np.isfinite(scores).all() and all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_progressive_interpolation(bind):
  """Up to L the bias depends on the distance alone; beyond, the same distance is nearer."""
  made = bind(encodings.make("fire", threshold=100.0))
  zero = np.zeros((4, 1, 8), np.float32)
  at = lambda i, d: np.asarray(made.scores(zero, zero, [i], [i - d]))
  np.testing.assert_allclose(at(50, 20), at(100, 20), atol=1e-6)
  x = [float(fire.normalized(jnp.array([i]), jnp.array([i - 20]), 0.1, 100.0)[0, 0]) for i in (100, 1000, 100_000)]
  assert x[0] > x[1] > x[2]
  assert np.abs(at(100, 20) - at(100_000, 20)).max() > 1e-3


def test_gradients_hold_no_unit_of_the_hidden_layer_apart(bind):
  """Backward, too, nothing has the scores' size times the width."""
  made = bind(encodings.make("fire"))
  zero, at = np.zeros((4, 16, 8), np.float32), np.arange(16)
  text = str(jax.make_jaxpr(jax.grad(lambda params: (made.scores(zero, zero, at, at, params) ** 2).sum()))(made.params))
  assert "f32[4,16,16]" in text or "f32[16,16]" in text
  assert "[32,16,16]" not in text and "[32,4,16,16]" not in text and "[4,32,16,16]" not in text


def test_refusals():
  for fields in ({"width": 0}, {"threshold": -1.0}, {"eps": -1.0}):
    with pytest.raises(ValueError, match="width >= 1, threshold >= 0 and eps >= 0"):
      encodings.make("fire", **fields)
