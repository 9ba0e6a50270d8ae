"""Shaw's relative representations against float64 references and the paper's indices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import shaw
from posx.encodings.base import Dims


def test_indices_are_the_papers():
  distance = np.arange(4)[:, None] - np.arange(4)[None, :]
  expected = [[min(max(j - i, -2), 2) + 2 for j in range(4)] for i in range(4)]
  np.testing.assert_array_equal(shaw.index(jnp.asarray(distance), 2), expected)


def test_decoding_with_four_cached():
  np.testing.assert_array_equal(shaw.index(4 - jnp.arange(5), 2), [0, 0, 0, 1, 2])


def test_oracle(oracle, bind):
  for case in oracle("F_shaw"):
    a = case.arrays
    clip = case.params["clip"]
    q, k, v = (a[case.kwargs[name][1:]] for name in ("q", "k", "v"))
    h, t, c = q.shape
    u = k.shape[1]
    made = bind(shaw.Shaw(clip=clip), Dims(h, c, h * c, u), {"key": jnp.asarray(a["key_table"]), "value": jnp.asarray(a["value_table"])})
    q_pos, k_pos = np.arange(t) + u - t, np.arange(u)
    logits = made.scores(q, k, q_pos, k_pos)
    if "index" in a:
      np.testing.assert_array_equal(shaw.index(jnp.asarray(q_pos[:, None] - k_pos), clip), a["index"], err_msg=case.id)
      np.testing.assert_allclose(logits, a["logits_ref"], atol=2e-6, rtol=2e-6, err_msg=case.id)
      output = made.output(q, k, v, q_pos, k_pos, case.params["causal"])
      np.testing.assert_allclose(output, a["output_ref"], atol=2e-6, rtol=2e-6, err_msg=case.id)
    else:
      for name in ("probs_peer", "probs_ref"):
        np.testing.assert_allclose(jax.nn.softmax(logits), a[name], atol=2e-6, rtol=2e-6, err_msg=f"{case.id} {name}")


def test_value_hook_is_the_gathered_sum(bind):
  rng = np.random.default_rng(1)
  made = bind(shaw.Shaw(clip=3))
  w = rng.random((5, 9)).astype(np.float32)
  q_pos, k_pos = np.array([0, 3, 7, 8, 100]), np.array([0, 1, 2, 3, 4, 7, 8, 9, 50])
  rows = np.clip(k_pos[None] - q_pos[:, None], -3, 3) + 3
  expected = np.einsum("tu,tuc->tc", w.astype(np.float64), np.asarray(made.params["value"], np.float64)[rows])
  np.testing.assert_allclose(
    made.encoding.on_values(made.head(0), jnp.asarray(w), jnp.asarray(q_pos), jnp.asarray(k_pos)), expected, atol=1e-6
  )


def test_value_hook_is_linear_in_the_weights(bind):
  made = bind(shaw.Shaw(clip=3))
  a, b = np.random.default_rng(2).random((2, 4, 6)).astype(np.float32)

  def hook(w):
    return made.encoding.on_values(made.head(1), jnp.asarray(w), jnp.arange(4), jnp.arange(6))

  np.testing.assert_allclose(hook(2 * a + 3 * b), 2 * hook(a) + 3 * hook(b), atol=1e-5)


def test_fractional_distances_mix_rows(bind):
  made = bind(shaw.Shaw(clip=4))
  q = jnp.asarray(np.random.default_rng(3).normal(size=(3, 8)), jnp.float32)

  def hook(q_pos):
    return made.encoding.on_scores(made.head(0), jnp.zeros((3, 3)), q, q, jnp.asarray(q_pos), jnp.zeros(3, jnp.asarray(q_pos).dtype))

  between = hook(np.array([0.25, 1.5, 2.0], np.float32))
  below, above = hook(np.array([0, 1, 2])), hook(np.array([1, 2, 3]))
  share = np.array([0.25, 0.5, 0.0])[:, None]
  np.testing.assert_allclose(between, (1 - share) * below + share * above, atol=1e-6)


def test_without_values_there_is_one_table_and_no_value_hook(dims):
  made = encodings.make("shaw", values=False)
  assert set(made.init(jax.random.key(0), dims)) == {"key"} and not made.uses("on_values")
  assert encodings.make("shaw").uses("on_values")


def test_refusals():
  with pytest.raises(ValueError, match="at least 1"):
    encodings.make("shaw", clip=0)
