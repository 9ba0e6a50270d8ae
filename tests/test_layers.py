"""Layers that differ: equal to the layers applied one by one, in training form and from a cache; how a configuration spells them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import config as configs
from posx import encodings, extensions
from posx.decoder import Block, Decoder, from_config
from posx.decoding import Decoding
from posx.encodings.base import Encoding
from posx.encodings.layers import PerLayer, of_period
from posx.errors import UserError
from posx.study import cost

pytestmark = pytest.mark.usefixtures("compiled_quickly")

ROOT = Path(__file__).parents[1]
TOKENS = np.random.default_rng(0).integers(0, 19, (2, 12)).astype(np.int32)
ROPE, NOPE = encodings.make("rope"), Encoding()
LOG_N = extensions.apply(extensions.make("log_n", original_length=4), NOPE)
MIXED = PerLayer((ROPE, encodings.make("t5"), LOG_N), (4, 0, 0))


def quick(f):
  return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})


def make(encoding, layers, **changes):
  model = Decoder(19, layers, 16, 2, mlp_dim=24, train_length=8, encoding=encoding, **changes)
  params = quick(model.init)(jax.random.key(0), TOKENS)
  rng = np.random.default_rng(1)
  return model, jax.tree.map(lambda x: x + 0.2 * rng.normal(size=x.shape).astype(np.float32), params)


def unrolled(model, params, tokens):
  """Logits by one block after the other, each of a model that has this encoding and window in all its layers."""
  p, (b, t) = params["params"], tokens.shape
  x = jnp.take(p["embedding"], tokens, axis=0) * 4.0
  x = x.reshape(b * t, -1)
  period = of_period(model.encoding)
  for n in range(model.num_layers):
    encoding, own = period[n % len(period)]
    alone = model.clone(encoding=encoding, window=own or None)
    weights = jax.tree.map(lambda w, n=n: w[n // len(period)], p["layers"][str(n % len(period))])
    constants = jax.tree.map(jnp.asarray, encoding.constants(model.dims, t))
    x, _ = Block(alone).apply({"params": weights}, x, None, None, constants, np.arange(t), None, (b, t), None)
  x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * p["norm"]["scale"]
  return (x @ p["embedding"].T).reshape(b, t, -1)


@pytest.mark.slow
def test_equal_to_the_layers_one_by_one_and_from_a_cache():
  model, params = make(MIXED, 6)
  assert set(params["params"]["layers"]) == {"0", "1", "2"}
  assert params["params"]["layers"]["1"]["encoding"]["table"].shape == (2, 2, 32) and "encoding" not in params["params"]["layers"]["0"]
  full = quick(model.apply)(params, TOKENS)
  np.testing.assert_allclose(full, quick(lambda p: unrolled(model, p, TOKENS))(params), atol=2e-5)
  decoding = Decoding(model, params, batch=2, capacity=12)
  parts = [decoding.feed(TOKENS[:, a:b], last=False) for a, b in ((0, 5), (5, 7), (7, 8), (8, 9), (9, 12))]
  np.testing.assert_allclose(jnp.concatenate(parts, axis=1), full, atol=2e-5)


@pytest.mark.slow
def test_gates_of_layers_that_differ_are_cached_by_place():
  """FoX, then RoPE, which has no gates, then CABLE with a window and a temperature."""
  gates = encodings.make("cable"), encodings.make("forgetting")
  model, params = make(PerLayer((gates[1], ROPE, extensions.apply(extensions.make("log_n", original_length=4), gates[0])), (0, 0, 5)), 6)
  full = quick(model.apply)(params, TOKENS)
  np.testing.assert_allclose(full, quick(lambda p: unrolled(model, p, TOKENS))(params), atol=2e-5)
  decoding = Decoding(model, params, batch=2, capacity=12)
  assert set(decoding.cache.features) == {"0", "1", "2"} and not decoding.cache.features["1"] and decoding.cache.sums["0"]
  parts = [decoding.feed(TOKENS[:, a:b], last=False) for a, b in ((0, 5), (5, 7), (7, 8), (8, 9), (9, 12))]
  np.testing.assert_allclose(jnp.concatenate(parts, axis=1), full, atol=2e-5)


def test_layers_that_are_alike_are_the_uniform_model():
  """The same weights, stacked in periods; the uniform model keeps its layout."""
  uniform, params = make(ROPE, 4)
  assert params["params"]["layers"]["qkv"]["kernel"].shape == (4, 16, 48)
  model = dataclasses.replace(uniform, encoding=PerLayer((ROPE, ROPE), (0, 0)))
  stacked = {str(n): jax.tree.map(lambda w, n=n: w[n::2], params["params"]["layers"]) for n in range(2)}
  found = quick(model.apply)({"params": {**params["params"], "layers": stacked}}, TOKENS)
  np.testing.assert_allclose(found, quick(uniform.apply)(params, TOKENS), atol=1e-5)


def test_an_extension_reaches_the_layers_that_it_is_meant_for():
  """Two bases, the local layer with a window: only the global one is scaled, and NoPE has nothing to scale."""
  local, wide = encodings.make("rope", base=1e4), encodings.make("rope", base=1e6)
  pi = extensions.make("pi", factor=4.0)
  found = extensions.apply(pi, PerLayer((local, wide, NOPE), (128, 0, 0)))
  assert found == PerLayer((local, extensions.apply(pi, wide), NOPE), (128, 0, 0))
  np.testing.assert_allclose(found.constants(configs.dims(configs.default()), 512)["1"]["inv_freq"][-1], 1e6 ** (-30 / 32) / 4, rtol=1e-6)
  with pytest.raises(UserError, match=r"pi extends .*none of the layers \(RoPE with a window, Encoding\) is to be extended"):
    extensions.apply(pi, PerLayer((local, NOPE), (128, 0)))


def test_heads_are_mixed_if_one_layer_mixes_them():
  assert not MIXED.mixes_heads and PerLayer((ROPE, encodings.make("dape")), (0, 0)).mixes_heads


def test_what_cannot_be_layers():
  learned = encodings.make("learned")
  with pytest.raises(UserError, match="what acts on the input acts once, so layers cannot differ in it, got Encoding, Learned"):
    PerLayer((learned, NOPE), (0, 0))
  assert PerLayer((learned, learned), (4, 0)).split() == (learned, PerLayer((NOPE, NOPE), (4, 0)))
  with pytest.raises(UserError, match="every layer of a period needs an encoding and a window"):
    PerLayer((ROPE,), (0, 0))
  with pytest.raises(ValueError, match="a period of 3 layers does not divide num_layers=4"):
    jax.eval_shape(Decoder(19, 4, 16, 2, encoding=MIXED).init, jax.random.key(0), TOKENS)
  with pytest.raises(UserError, match="share_encoding gives all layers the same parameters"):
    jax.eval_shape(Decoder(19, 3, 16, 2, encoding=MIXED, share_encoding=True).init, jax.random.key(0), TOKENS)
  model, params = make(PerLayer((ROPE, encodings.make("pope")), (0, 0)), 2)
  with pytest.raises(ValueError, match=r"layers whose keys differ in size, \[\(2, 8\), \(2, 16\)\], do not share a cache"):
    Decoding(model, params, batch=2, capacity=12)


# Configurations.


def spelled(*layers, **fields):
  config = configs.default("rope")
  config.encoding.base = 5e5
  config.model.update(num_layers=12, layers=layers, **fields)
  configs.check(config)
  return configs.encoding(config)


def test_spelling():
  rope = encodings.make("rope", base=5e5)
  assert spelled() == rope
  assert spelled("rope:window=64", "", ":base=1e4") == PerLayer((rope, rope, encodings.make("rope", base=1e4)), (64, 0, 0))
  assert spelled("nope+log_n:extension.original_length=64", "t5:num_buckets=16:window=8") == PerLayer(
    (extensions.apply(extensions.make("log_n", original_length=64), NOPE), encodings.make("t5", num_buckets=16)), (0, 8)
  )


@pytest.mark.parametrize(
  ("layers", "message"),
  [
    (("rope",) * 5, r"config.model.layers has a period of 5, which must divide num_layers=12"),
    (("rop",), r"unknown encoding 'rop'; did you mean 'rope'"),
    (("rope+yran",), r"unknown extension 'yran'"),
    (("rope:bsae=1",), r"config.model.layers: 'rope:bsae=1': unknown field of encoding 'rope' 'bsae'; did you mean 'base'\?.* window"),
    (("rope:window",), r"'window' is no field=value; a layer is spelled NAME\+EXTENSION:field=value"),
    (("rope:base=fast",), r"config.model.layers: 'rope:base=fast' expects a finite number, got 'fast'"),
    (("rope:extension.factor=2",), r"unknown field of extension '' 'factor'"),
    (("rope", "learned"), r"what acts on the input acts once"),
    (("rope:window=-1",), r"a window \(0: none\)"),
  ],
)
def test_what_is_spelled_wrong_is_refused(layers, message):
  with pytest.raises(UserError, match=message):
    spelled(*layers)


@pytest.mark.parametrize(("arrangement", "period"), [("irope", 4), ("rnope", 4), ("gemma3", 6)])
def test_shipped_arrangements(arrangement, period):
  config = configs.load(ROOT / f"configs/layers.py:{arrangement}")
  assert configs.from_json(configs.to_json(config)) == config
  model = from_config(config, 256)
  assert model.period == period and model.num_layers == period
  shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS)
  assert cost.parameters(config) == sum(x.size for x in jax.tree.leaves(shapes))
  uniform = configs.load(ROOT / "configs/quickstart.py:rope", {"model.num_layers": period})
  assert (cost.forward(config, 512) < cost.forward(uniform, 512)) == (arrangement != "irope")


def test_irope_has_llama_4s_temperature_in_its_layers_without_positions():
  """1 + 0.1 log(1 + floor((i + 1) / L0)): nothing before token L0 - 1, then in steps; --config.model.layers takes the authors' 8,192."""
  config = configs.load(ROOT / "configs/layers.py:irope", {"train.length": 128})
  last = of_period(configs.encoding(config))[3][0]
  dims, at = configs.dims(config), np.array([0, 126, 127, 254, 255, 4095])
  p = last.prepare({}, jax.tree.map(jnp.asarray, last.constants(dims, 4096)))
  q, k = last.on_query_key(p, jnp.ones((6, 32)), jnp.ones((6, 32)), jnp.asarray(at), jnp.asarray(at))
  np.testing.assert_allclose(q[:, 0], 1 + 0.1 * np.log([1, 1, 2, 2, 3, 33]), rtol=1e-6)
  np.testing.assert_array_equal(k, 1)
  theirs = configs.load(ROOT / "configs/layers.py:irope", {"model.layers": ("rope", "rope", "rope", "nope+llama4")})
  assert of_period(configs.encoding(theirs))[3][0] == extensions.apply(extensions.make("llama4"), NOPE)
  assert extensions.make("llama4").floor_scale == 8192


def test_unknown_arrangement():
  with pytest.raises(UserError, match="unknown arrangement of layers 'iropes'; did you mean 'irope'"):
    configs.load(ROOT / "configs/layers.py:iropes")
