"""CoPE against the definition in float64 and other implementations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import cope
from posx.encodings.base import Dims


def plain(q, k):
  return np.einsum("htc,huc->htu", q.astype(np.float64), k) / np.sqrt(q.shape[-1])


def test_oracle(oracle, bind):
  for case in oracle("F_cope"):
    a = case.arrays
    h, t, c = a["q"].shape
    scaled = case.params.get("scale_gates", True)
    made = bind(cope.CoPE(max_position=len(a["pos_emb"]), scale_gates=scaled), Dims(h, c, h * c, t), {"table": jnp.asarray(a["pos_emb"])})
    scores = plain(a["q"], a["k"])
    added = np.asarray(made.scores(a["q"], a["k"], np.arange(t), np.arange(t)), np.float64) - scores
    past = np.tri(t, dtype=bool)
    np.testing.assert_allclose(added[:, past], a["cope_ref"][:, past], atol=1e-5, rtol=1e-5, err_msg=case.id)
    for name in ("cope_xt", "cope_dape"):
      if name in a:
        np.testing.assert_allclose(added[:, past], a[name][:, past], atol=1e-5, rtol=1e-5, err_msg=f"{case.id} {name}")
    if "cope_ref_unscaled_gates" in a:
      other = bind(cope.CoPE(max_position=len(a["pos_emb"]), scale_gates=False), Dims(h, c, h * c, t), {"table": jnp.asarray(a["pos_emb"])})
      unscaled = np.asarray(other.scores(a["q"], a["k"], np.arange(t), np.arange(t)), np.float64) - scores
      np.testing.assert_allclose(unscaled[:, past], a["cope_ref_unscaled_gates"][:, past], atol=1e-5, rtol=1e-5, err_msg=case.id)
    if "positions_ref" in a:
      counted = [cope.positions(jnp.asarray(s, jnp.float32), jnp.arange(t), jnp.arange(t)) for s in scores]
      limit = len(a["pos_emb"]) - 1
      np.testing.assert_allclose(np.minimum(counted, limit)[:, past], a["positions_ref"][:, past], atol=2e-5, err_msg=case.id)


def test_zero_logits_count_half_a_token_each():
  counted = np.asarray(cope.positions(jnp.zeros((4, 4)), jnp.arange(4), jnp.arange(4)))
  for i, row in enumerate(([0.5], [1, 0.5], [1.5, 1, 0.5], [2, 1.5, 1, 0.5])):
    np.testing.assert_allclose(counted[i, : i + 1], row)


def test_the_future_and_masked_keys_open_no_gate():
  logits = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
  at = jnp.arange(5)
  counted = cope.positions(jnp.asarray(logits), at, at)
  changed = logits.copy()
  changed[np.triu_indices(5, 1)] = 50
  past = np.tri(5, dtype=bool)
  np.testing.assert_array_equal(np.asarray(cope.positions(jnp.asarray(changed), at, at))[past], np.asarray(counted)[past])
  masked = logits.copy()
  masked[:, :2] = -1e30
  alone = cope.positions(jnp.asarray(logits[2:, 2:]), at[2:], at[2:])
  np.testing.assert_allclose(np.asarray(cope.positions(jnp.asarray(masked), at, at))[2:, 2:], alone, atol=1e-6)


def test_order_comes_from_positions_not_from_the_array():
  rng = np.random.default_rng(1)
  logits, k_pos = rng.normal(size=(3, 6)).astype(np.float32), np.array([3, 0, 5, 1, 4, 2])
  q_pos = jnp.array([3, 4, 5])
  shuffled = cope.positions(jnp.asarray(logits), q_pos, jnp.asarray(k_pos))
  order = np.argsort(k_pos)
  np.testing.assert_allclose(shuffled[:, order], cope.positions(jnp.asarray(logits[:, order]), q_pos, jnp.arange(6)), atol=1e-6)


def test_starts_as_no_position(dims):
  assert not np.asarray(encodings.make("cope").init(jax.random.key(0), dims)["table"]).any()


def test_refusals():
  with pytest.raises(ValueError, match="max_position >= 1"):
    encodings.make("cope", max_position=0)
