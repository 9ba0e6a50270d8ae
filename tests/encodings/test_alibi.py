"""ALiBi's slopes and bias against the authors' rule and other libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import alibi
from posx.encodings.base import Dims


def bias_of(heads, q_pos, k_pos, bind):
  made = bind(encodings.make("alibi"), Dims(heads, 8, 8 * heads, 16))
  distance = jnp.asarray(np.asarray(q_pos)[:, None] - np.asarray(k_pos)[None, :])
  return np.stack([made.encoding.bias(made.head(h), distance) for h in range(heads)])


def test_slopes():
  np.testing.assert_allclose(alibi.slopes(8), 2.0 ** -np.arange(1, 9), rtol=1e-7)
  np.testing.assert_allclose(alibi.slopes(3), [0.0625, 0.00390625, 0.25], rtol=1e-7)
  np.testing.assert_allclose(alibi.slopes(1), [0.00390625], rtol=1e-7)
  assert alibi.slopes(71).shape == (71,) and alibi.slopes(71).dtype == jnp.float32


@pytest.mark.parametrize("heads", [0, -1])
def test_slopes_need_a_head(heads):
  with pytest.raises(ValueError, match="at least one head"):
    alibi.slopes(heads)


def test_oracle(oracle, bind):
  for case in oracle("C_alibi_bias"):
    if "bias_ref" not in case.arrays:
      continue
    t = case.params.get("q_len", case.params.get("length"))
    u = case.params.get("k_len", t)
    q_pos, k_pos = np.arange(t) + u - t, np.arange(u)
    bias = bias_of(case.params["heads"], q_pos, k_pos, bind)
    for name in ("bias_ref", "bias_xt"):
      np.testing.assert_allclose(bias, case.arrays[name], atol=1e-6, rtol=1e-6, err_msg=f"{case.id} {name}")
    if "softmax_ref" in case.arrays:
      causal = q_pos[:, None] >= k_pos
      weights = jax.nn.softmax(jnp.where(causal, bias, -jnp.inf))
      np.testing.assert_allclose(weights, case.arrays["softmax_ref"], atol=1e-6, err_msg=case.id)
      for name in ("bias_bloom", "bias_mpt"):
        # These add slope x key position, which differs by a constant of the row.
        np.testing.assert_allclose(
          jax.nn.softmax(jnp.where(causal, case.arrays[name], -jnp.inf)), weights, atol=2e-6, err_msg=f"{case.id} {name}"
        )


def test_oracle_left_padding(oracle, bind):
  """BLOOM numbers a left-padded row from its first token on: so do positions here."""
  (case,) = [c for c in oracle("C_alibi_bias") if c.id == "bloom_left_padding"]
  padded = np.asarray(case.params["attention_mask"][0], bool)
  positions = np.arange(padded.sum())
  last_row = bias_of(4, positions[-1:], positions, bind)[:, 0]
  theirs = case.arrays["bias_bloom"][0][:, 0][:, padded]
  np.testing.assert_allclose(last_row, theirs - theirs[:, -1:], atol=1e-6)


def test_cached_decoding(bind):
  np.testing.assert_allclose(bias_of(1, [4], np.arange(5), bind)[0, 0], np.array([-4, -3, -2, -1, 0]) / 256, atol=1e-9)


def test_sign_and_both_directions(bind):
  bias = bias_of(8, np.arange(6), np.arange(6), bind)
  assert (bias <= 0).all() and (np.diagonal(bias, axis1=1, axis2=2) == 0).all()
  np.testing.assert_array_equal(bias, bias.transpose(0, 2, 1))


def test_neighbours_differ_by_the_slope_near_and_far_in_a_bfloat16_model(bind):
  made = bind(encodings.make("alibi"), Dims(8, 8, 64, 16))
  q = jnp.ones((8, 1, 8), jnp.bfloat16)
  scores = made.scores(q, jnp.ones((8, 4096, 8), jnp.bfloat16), jnp.array([4095]), jnp.arange(4096))[0, 0]
  for j in (4094, 2000, 1):
    np.testing.assert_allclose(np.exp(scores[j - 1] - scores[j]), np.exp(-0.5), rtol=1e-3)


def test_bias_comes_after_the_scale():
  """softmax([5, 1, 2]) for c = 4, q = [10, 0, 0, 0], keys = unit vectors, bias [0, 1, 2]."""

  class Ramp(encodings.CATALOGUE["nope"]):
    def bias(self, p, distance):
      return 2.0 - distance

  scores = jnp.array([[10.0, 0, 0]]) * 4**-0.5
  added = Ramp().on_scores({}, scores, None, None, jnp.array([2]), jnp.arange(3))
  np.testing.assert_allclose(added, [[5, 1, 2]])
