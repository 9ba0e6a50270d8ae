"""Log-n scaling of queries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings.base import Dims
from posx.encodings.combine import Chain
from posx.errors import UserError
from posx.extensions import logits


def definition(positions, length):
  return np.maximum(1.0, np.log(np.asarray(positions, np.float64) + 1) / np.log(length))


def test_definition():
  at = np.array([0, 1, 510, 511, 512, 5000, 131071])
  np.testing.assert_allclose(logits.log_n(at, 512), definition(at, 512), rtol=1e-6)


@pytest.mark.parametrize("name", ["nope", "rope", "alibi", "t5", "shaw"])
def test_products_are_scaled_and_biases_are_not(bind, name):
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 4, 3, 8)).astype(np.float32)
  at = np.array([5, 63, 4095])
  trained = bind(encodings.make(name), length=4096)
  made = bind(extensions.apply(extensions.make("log_n"), trained.encoding), params=trained.params, length=4096)
  factor = definition(at, 64)[:, None]
  if name == "shaw":
    # Shaw's key vectors join the product, so the query's factor reaches them too.
    expected = factor * trained.scores(q, k, at, at)
  else:
    zero = trained.scores(np.zeros_like(q), k, at, at)
    expected = factor * (trained.scores(q, k, at, at) - zero) + zero
  np.testing.assert_allclose(made.scores(q, k, at, at), expected, atol=1e-5)


def test_up_to_the_trained_length_nothing_changes(bind, dims):
  q = np.random.default_rng(1).normal(size=(4, 6, 8)).astype(np.float32)
  at = np.array([0, 1, 2, 30, 62, 63])
  trained = bind(encodings.make("rope"))
  made = bind(extensions.apply(extensions.make("log_n"), encodings.make("rope")))
  np.testing.assert_array_equal(made.scores(q, q, at, at), trained.scores(q, q, at, at))


def test_on_top_of_another_extension(bind):
  yarn = extensions.apply(extensions.make("yarn", factor=4.0), encodings.make("rope"))
  made = extensions.apply(extensions.make("log_n"), yarn)
  q, at = np.ones((4, 2, 8), np.float32), np.array([10, 4095])
  expected = definition(at, 64)[:, None] * bind(yarn, length=4096).scores(q, q, at, at)
  np.testing.assert_allclose(bind(made, length=4096).scores(q, q, at, at), expected, rtol=1e-5)


def test_a_chain_is_scaled_once(bind):
  chain = Chain((encodings.make("learned"), encodings.make("rope"), encodings.make("alibi")))
  trained = bind(chain)
  made = bind(extensions.apply(extensions.make("log_n", original_length=8), chain), params=trained.params)
  q, at = np.random.default_rng(2).normal(size=(4, 3, 8)).astype(np.float32), np.array([0, 20, 63])
  zero = trained.scores(np.zeros_like(q), q, at, at)
  expected = definition(at, 8)[:, None] * (trained.scores(q, q, at, at) - zero) + zero
  np.testing.assert_allclose(made.scores(q, q, at, at), expected, atol=1e-5)
  first, rest = made.encoding.split()
  assert first.uses("on_input") and not rest.uses("on_input") and rest.uses("on_query_key")


def test_half_precision_keeps_its_dtype(bind):
  made = bind(extensions.apply(extensions.make("log_n"), encodings.make("rope")))
  q, _ = made.encoding.on_query_key(
    made.head(0), jnp.ones((2, 8), jnp.bfloat16), jnp.ones((2, 8), jnp.bfloat16), jnp.arange(2), jnp.arange(2)
  )
  assert q.dtype == jnp.bfloat16


def test_programs_are_shared():
  made = [extensions.apply(extensions.make("log_n", original_length=n), encodings.make("rope", base=1e3 * n)) for n in (64, 128)]
  assert made[0].program() == made[1].program() != encodings.make("rope").program()


def test_refusals():
  once = extensions.apply(extensions.make("log_n"), encodings.make("rope"))
  with pytest.raises(UserError, match="does not extend already, got Sharpened"):
    extensions.apply(extensions.make("log_n"), once)
  with pytest.raises(UserError, match="at least 2 tokens"):
    extensions.make("log_n", original_length=1)
  with pytest.raises(UserError, match="trained length"):
    extensions.make("log_n", original_length=-1)
  with pytest.raises(UserError, match="give original_length"):
    once.constants(Dims(1, 8, 8, 0), 64)


def test_same_parameters(dims):
  trained = encodings.make("kerple")
  made = extensions.apply(extensions.make("log_n"), trained)
  a, b = (e.init(jax.random.key(0), dims) for e in (trained, made))
  assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))
