"""BAM against the definition in float64, and ALiBi as its special case."""

import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import alibi, bam

DISTANCE = np.array([-3, 0, 1, 2, 100, 131071])


def test_definition(bind):
  made = bind(encodings.make("bam", shape=0.7, learn_scale=True, learn_location=True))
  params = made.params | {"location": jnp.array([0.5, -1.0, 0.0, 2.0])}
  for h in range(4):
    z = float(params["location"][h]) - float(params["scale"][h]) * DISTANCE
    expected = -((np.abs(z) + 1e-5) ** 0.7)
    np.testing.assert_allclose(made.encoding.bias(made.head(h, params), jnp.asarray(DISTANCE)), expected, rtol=2e-6)


def test_shape_1_is_alibi_and_shape_0_is_flat(bind):
  made, slopes = bind(encodings.make("bam")), np.asarray(alibi.slopes(4))
  for h in range(4):
    np.testing.assert_allclose(made.encoding.bias(made.head(h), jnp.asarray(DISTANCE)), -slopes[h] * np.abs(DISTANCE), atol=2e-5, rtol=1e-6)
  np.testing.assert_allclose(bam.log_prior(DISTANCE, 0.0, 0.5, 0.0), -1.0, rtol=1e-6)


def test_what_is_learned_is_what_was_asked(bind):
  assert set(bind(encodings.make("bam")).params) == {"shape"}
  everything = bind(encodings.make("bam", learn_scale=True, learn_location=True))
  assert set(everything.params) == {"shape", "scale", "location"} and set(everything.constants) == {"eps"}
  np.testing.assert_allclose(everything.params["scale"], alibi.slopes(4))
  assert bind(encodings.make("bam", learn_shape=False)).params == {}


def test_refusals():
  with pytest.raises(ValueError, match="eps > 0"):
    encodings.make("bam", eps=0.0)
