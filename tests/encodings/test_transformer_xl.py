"""Transformer-XL's relative attention against the definition in float64, the authors' code and XLNet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings.base import Dims


def definition(q, k, u, v, project, q_pos, k_pos, base=1e4):
  """Dai et al. 2019, section 3.3, for one head: explicit R of every distance."""
  c, d = project.shape
  w = base ** (-np.arange(0, d, 2) / d)
  angle = (np.asarray(q_pos, np.float64)[:, None] - np.asarray(k_pos))[..., None] * w
  r = np.concatenate([np.sin(angle), np.cos(angle)], axis=-1) @ project.T
  return ((q + u) @ k.T + np.einsum("tc,tuc->tu", q + v, r)) / np.sqrt(c)


def test_oracle(oracle, bind):
  for case in oracle("F_transformer_xl"):
    a = case.arrays
    h, t, c = a["q"].shape
    u = a["k"].shape[1]
    params = {"u": jnp.asarray(a["u"]), "v": jnp.asarray(a["v_bias"]), "project": jnp.asarray(a["r_proj"])}
    made = bind(encodings.make("transformer_xl"), Dims(h, c, case.params["d_model"], u), params)
    scores = made.scores(a["q"], a["k"], np.arange(t) + u - t, np.arange(u))
    np.testing.assert_allclose(scores, a["logits_ref"], atol=2e-5, rtol=1e-5, err_msg=case.id)
    past = a["causal"]
    np.testing.assert_allclose(scores[:, past], a["logits_author"][:, past], atol=2e-5, rtol=1e-5, err_msg=case.id)
    weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf))
    for name in ("probs_ref", "probs_xlnet"):
      np.testing.assert_allclose(weights, a[name], atol=2e-5, rtol=1e-5, err_msg=f"{case.id} {name}")


@pytest.mark.parametrize("start", [0, 131_000])
def test_definition_with_memory(bind, start):
  """Three queries, two keys of memory before them: rows of distances [2 1 0 . .], [3 2 1 0 .], [4 3 2 1 0]."""
  rng = np.random.default_rng(0)
  made = bind(encodings.make("transformer_xl", std=1.0), length=131072)
  q, k = rng.normal(size=(4, 3, 8)).astype(np.float32), rng.normal(size=(4, 5, 8)).astype(np.float32)
  q_pos, k_pos = start + np.arange(2, 5), start + np.arange(5)
  scores = made.scores(q, k, q_pos, k_pos)
  for h in range(4):
    u, v, project = (np.asarray(made.params[n][h], np.float64) for n in ("u", "v", "project"))
    np.testing.assert_allclose(scores[h], definition(q[h], k[h], u, v, project, q_pos, k_pos), atol=3e-5)


def test_wider_keys_keep_their_dtype(bind, dims):
  made = bind(encodings.make("transformer_xl"))
  q, k = made.encoding.on_query_key(
    made.head(0), jnp.ones((2, 8), jnp.bfloat16), jnp.ones((3, 8), jnp.bfloat16), jnp.arange(2), jnp.arange(3)
  )
  assert q.shape == (2, 8 + dims.model_dim) and k.shape == (3, 8 + dims.model_dim) and q.dtype == k.dtype == jnp.bfloat16


def test_refusals():
  with pytest.raises(ValueError, match="must be even, got 33"):
    encodings.make("transformer_xl").check(Dims(4, 8, 33, 8), 8)
  with pytest.raises(ValueError, match="std >= 0"):
    encodings.make("transformer_xl", std=-1.0)
