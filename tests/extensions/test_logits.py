"""Temperatures that depend on the position of the query: log-n, SSMax, Llama 4."""

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
  with pytest.raises(UserError, match="not extended already, got Sharpened"):
    extensions.apply(extensions.make("log_n"), once)
  with pytest.raises(UserError, match="at least 2 tokens"):
    extensions.make("log_n", original_length=1)
  with pytest.raises(UserError, match="trained length"):
    extensions.make("log_n", original_length=-1)
  with pytest.raises(UserError, match="give original_length"):
    once.constants(Dims(1, 8, 8, 0), 64)


def test_ssmax_is_a_softmax_to_the_base_of_the_number_of_keys(bind):
  """n^(s z) / sum n^(s z) over the n = i + 1 past keys, with the mean of log n over the trained length."""
  rng, at = np.random.default_rng(3), np.arange(9)
  q, k, v = rng.normal(size=(3, 4, 9, 8))
  s = 1 / np.mean([np.log(n) for n in range(1, 65)])
  made = bind(extensions.apply(extensions.make("ssmax"), encodings.make("nope")))
  out = made.output(*(x.astype(np.float32) for x in (q, k, v)), at, at, True)
  for h in range(4):
    for i in at:
      z = k[h, : i + 1] @ q[h, i] / np.sqrt(8)
      w = (i + 1.0) ** (s * z)
      np.testing.assert_allclose(out[h, i], w @ v[h, : i + 1] / w.sum(), atol=5e-6)


@pytest.mark.parametrize("length", [2, 512, 4096])
def test_scores_keep_their_size_on_average(length):
  made = extensions.make("ssmax")
  scale = made.numbers(Dims(1, 8, 8, length))["scale"]
  np.testing.assert_allclose(np.mean(logits.ssmax(np.arange(length), scale)), 1.0, rtol=1e-5)
  assert extensions.make("ssmax", scale=0.43).numbers(Dims(1, 8, 8, 0))["scale"] == np.float32(0.43)


@pytest.mark.parametrize("first", [0, 1])
def test_llama4_definition(first):
  at = np.array([0, 1, 8190, 8191, 8192, 16383, 16384, 131071, 1_000_000])
  for floor_scale, attn_scale in ((8192, 0.1), (7, 0.3)):
    expected = 1 + attn_scale * np.log(np.floor((at + first) / floor_scale) + 1)
    np.testing.assert_allclose(logits.llama4(at, floor_scale, attn_scale, first), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["ssmax", "llama4"])
@pytest.mark.parametrize("inner", ["nope", "rope", "t5"])
def test_every_temperature_scales_products_and_no_biases(bind, name, inner):
  rng = np.random.default_rng(4)
  q, k = rng.normal(size=(2, 4, 3, 8)).astype(np.float32)
  at = np.array([5, 63, 4095])
  expected = {
    "ssmax": np.log(at + 1.0) / np.mean(np.log(np.arange(1, 65.0))),
    "llama4": 1 + 0.5 * np.log(np.floor((at + 1) / 64) + 1),
  }[name]
  trained = bind(encodings.make(inner), length=4096)
  extension = extensions.make(name, **({"floor_scale": 0, "attn_scale": 0.5} if name == "llama4" else {}))
  made = bind(extensions.apply(extension, trained.encoding), params=trained.params, length=4096)
  zero = trained.scores(np.zeros_like(q), k, at, at)
  expected = expected[:, None] * (trained.scores(q, k, at, at) - zero) + zero
  np.testing.assert_allclose(made.scores(q, k, at, at), expected, atol=1e-5)


def test_before_the_first_step_llama4_changes_nothing(bind):
  q, at = np.random.default_rng(5).normal(size=(4, 6, 8)).astype(np.float32), np.array([0, 1, 2, 30, 62, 62])
  trained = bind(encodings.make("rope"))
  made = bind(extensions.apply(extensions.make("llama4", floor_scale=64), encodings.make("rope")))
  np.testing.assert_array_equal(made.scores(q, q, at, at), trained.scores(q, q, at, at))


@pytest.mark.parametrize(
  ("name", "fields", "match"),
  [
    ("ssmax", {"scale": -1.0}, "scale >= 0"),
    ("ssmax", {"original_length": 1}, "at least 2 tokens"),
    ("llama4", {"attn_scale": 0.0}, "0 changes nothing"),
    ("llama4", {"floor_scale": -1}, "floor_scale >= 0"),
    ("llama4", {"first": 2}, "first=0 or first=1"),
  ],
)
def test_settings_without_a_meaning(name, fields, match):
  with pytest.raises(UserError, match=match):
    extensions.make(name, **fields)


def test_one_temperature_is_enough():
  with pytest.raises(UserError, match="not extended already"):
    extensions.apply(extensions.make("llama4"), extensions.apply(extensions.make("ssmax"), encodings.make("rope")))
  with pytest.raises(UserError, match="give original_length"):
    extensions.make("ssmax").numbers(Dims(1, 8, 8, 0))
  with pytest.raises(UserError, match="or a trained length"):
    extensions.make("llama4", floor_scale=0).numbers(Dims(1, 8, 8, 0))


def test_programs_differ_by_law_and_not_by_setting():
  rope = encodings.make("rope")
  programs = {
    name: [extensions.apply(extensions.make(name, **f), rope).program() for f in ({}, fields)]
    for name, fields in (("ssmax", {"scale": 0.4}), ("llama4", {"floor_scale": 512}), ("log_n", {"original_length": 99}))
  }
  assert all(a == b for a, b in programs.values()) and len({a for a, _ in programs.values()}) == 3


def test_same_parameters(dims):
  trained = encodings.make("kerple")
  made = extensions.apply(extensions.make("log_n"), trained)
  a, b = (e.init(jax.random.key(0), dims) for e in (trained, made))
  assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))
