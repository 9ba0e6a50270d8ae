"""No position: every hook is the identity."""

import numpy as np

from posx import encodings


def test_scores_are_the_scaled_product_alone(bind, dims):
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 4, 5, 8)).astype(np.float32)
  nope = bind(encodings.make("nope"))
  assert nope.params == {} and nope.encoding.form == "none"
  expected = np.einsum("htc,huc->htu", q.astype(np.float64), k) / np.sqrt(8)
  np.testing.assert_allclose(nope.scores(q, k, np.arange(5), np.arange(5) + 99), expected, atol=1e-6)


def test_adds_nothing_to_input_and_has_a_zero_bias():
  nope = encodings.make("nope")
  x = np.ones((3, 4), np.float32)
  assert nope.on_input({}, x, np.arange(3)) is x
  assert np.array_equal(nope.bias({}, np.arange(-2, 3)), np.zeros(5, np.float32))
