"""Probes against the textbook: weights against a plain softmax of the model's own projections, gradients against differences."""

from __future__ import annotations

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.data import from_texts
from posx.decoder import Decoder
from posx.encodings.layers import PerLayer
from posx.errors import UserError
from posx.evaluation import probe, probes
from posx.study import figures, traces

TEXT = "".join(f"{n} and {n * n}; " for n in range(60))


def subject(name, layers=2, extension=None, **sizes):
  encoding = encodings.make(name)
  if extension:
    encoding = extensions.apply(extensions.make(extension, factor=4.0), encoding)
  model = Decoder(256, layers, 16, 2, mlp_dim=16, train_length=32, encoding=encoding, **sizes)
  params = model.init(jax.random.key(0), np.zeros((1, 8), np.int32))
  return types.SimpleNamespace(model=model, params=params, corpus=from_texts([TEXT, TEXT[9:]]), label=name, extension=extension)


def weights(one, tokens):
  """[layer h t u] from one layer at a time: its input by the textbook, its attention by an identity of values."""
  model, own = one.model, one.params["params"]
  t = len(tokens)
  positions = np.arange(t)
  x = own["embedding"][tokens] * 4.0  # sqrt(16)
  norm = lambda x, scale: x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale
  found = []
  for n in range(model.num_layers):
    layer = jax.tree.map(lambda a: a[n], own["layers"])  # noqa: B023
    qkv = (norm(x, layer["attention_norm"]["scale"]) @ layer["qkv"]["kernel"]).reshape(t, 6, 8)
    q, k, v = qkv[:, :2], qkv[:, 2:4], qkv[:, 4:]
    scores = jnp.einsum("thc,uhc->htu", q, k) / np.sqrt(8.0)
    if model.encoding.uses("bias"):
      slopes = np.array([2.0**-4, 2.0**-8])  # ALiBi of two heads
      scores = scores - slopes[:, None, None] * (positions[:, None] - positions[None, :])
    w = jax.nn.softmax(jnp.where(positions[:, None] >= positions[None, :], scores, -jnp.inf), -1)
    found.append(w)
    x = x + jnp.einsum("htu,uhc->thc", w, v).reshape(t, 16) @ layer["out"]["kernel"]
    gate, y = jnp.split(norm(x, layer["mlp_norm"]["scale"]) @ layer["up"]["kernel"], 2, -1)
    x = x + (jax.nn.silu(gate) * y) @ layer["down"]["kernel"]
  return np.stack(found)


@pytest.mark.parametrize("name", ["alibi"])
def test_statistics_are_those_of_the_weights(name):
  one = subject(name)
  found = probes.attention(one, lengths=(48, 32), documents=1, queries=20, say=lambda text: None)
  assert found["lengths"].tolist() == [32, 48] and found["sink"].shape == (2, 2, 2)
  w = weights(one, one.corpus.document(0)[:48])[:, :, -32:]  # 20 queries are two strips
  distance = np.arange(16, 48)[:, None] - np.arange(48)[None, :]
  np.testing.assert_allclose(found["distance"][1], (w * distance).sum(-1).mean(-1), rtol=1e-4)
  np.testing.assert_allclose(found["sink"][1], w[..., 0].mean(-1), rtol=1e-4)
  bits = -np.where(w > 0, w * np.log2(np.maximum(w, 1e-30)), 0).sum(-1).mean(-1)
  np.testing.assert_allclose(found["entropy"][1], bits, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "more"), [("kerple", {"share_encoding": True}), ("cope", {"num_kv_heads": 1}), ("rope", {"extension": "yarn"})]
)
def test_every_form_of_encoding_has_statistics(name, more):
  found = probes.attention(subject(name, **more), lengths=(32,), documents=1, queries=16, say=lambda text: None)
  assert all(np.isfinite(found[each]).all() for each in probes.STATISTICS)
  assert (found["entropy"] <= 5 + 1e-5).all() and (found["sink"] >= 0).all() and (found["distance"] < 31).all()


def test_no_array_has_all_queries_and_all_keys():
  one = subject("kerple")
  tokens = np.zeros(2100, np.int32)  # more than a strip of the model's own attention
  constants = jax.tree.map(jnp.asarray, one.model.constants(2100))
  text = str(jax.make_jaxpr(lambda p, x: probes._statistics(one.model, p, x, constants, 64))(one.params, tokens))
  assert "2100,2100" not in text and "16,2100" in text


@pytest.mark.slow
def test_gradients_are_those_of_another_model():
  one = subject("alibi", layers=1)
  found = probes.receptive(one, length=24, documents=1, targets=1, say=lambda text: None)
  assert found["distance"].tolist() == list(range(24))
  tokens = one.corpus.document(0)[:25]
  own = one.params["params"]
  places = np.arange(24, dtype=np.int32)
  # a model whose tokens are places: every input has a row of the table of its own, and the output keeps the old one
  open_ = dataclasses.replace(one.model, vocab_size=256, tied=False)
  table = np.zeros((256, 16), np.float32)
  table[:24] = np.asarray(own["embedding"])[tokens[:-1]]

  def loss(table):
    params = {"params": {**own, "embedding": table, "output": own["embedding"].T}}
    return open_.apply(params, places[None], tokens[None, 1:], method="token_losses")[0, -1]

  expected = np.linalg.norm(np.asarray(jax.grad(loss)(jnp.asarray(table)))[:24], axis=-1) / 4.0  # the table is scaled by sqrt(16)
  np.testing.assert_allclose(found["gradient"], expected[::-1], rtol=1e-4, atol=1e-9)


def test_share_of_a_gradient():
  assert probes.half(np.array([4.0, 2.0, 1.0, 1.0])) == 1
  assert probes.half(np.array([4.0, 2.0, 1.0, 1.0]), 0.8) == 3


def test_kernels_by_distance():
  one = subject("kerple")
  found = probes.kernels(one, lengths=(16, 40))
  a, p = (np.asarray(one.params["params"]["layers"]["encoding"][name], np.float64) for name in "ap")
  expected = -p[..., None] * np.log1p(a[..., None] * np.arange(40))  # the authors' names
  np.testing.assert_allclose(found["bias_40"], expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(found["bias_16"], expected[..., :16], rtol=1e-4, atol=1e-5)
  with pytest.raises(UserError, match="rope adds no function of positions"):
    probes.kernels(subject("rope"), lengths=(16,))


def test_figures_are_drawn(tmp_path):
  one = subject("fire")
  drawn = {
    "attention": traces.attention(probes.attention(one, lengths=(32, 64), documents=1, queries=16, say=lambda t: None), "fire", 32),
    "receptive": traces.receptive({"distance": np.arange(64), "gradient": 1.0 / (1 + np.arange(64.0))}, "fire", 32),
    "kernels": traces.kernels(probes.kernels(one, lengths=(32, 64)), "fire", 32),
  }
  for name, figure in drawn.items():
    assert figures.save(figure, tmp_path / name)[0].stat().st_size > 5000


@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    (["length=5"], "unknown field of probe 'attention' 'length'; did you mean 'lengths'"),
    (["documents=0"], "config.documents must be positive, got 0"),
    (["lengths=a"], "config.lengths expects a whole number"),
  ],
)
def test_settings_are_checked(overrides, message):
  with pytest.raises(UserError, match=message):
    probe.override(probe.default("attention"), overrides)
  with pytest.raises(UserError, match="unknown probe 'atention'; did you mean 'attention'"):
    probe.default("atention")
  assert probe.override(probe.default("passkey"), ["lengths=64,128", "depths=0,1"]).depths == (0.0, 1.0)


def test_windows_hold_the_queries():
  with pytest.raises(UserError, match="the last 64 queries are asked for, but a window has 32 tokens"):
    probes.attention(subject("nope"), lengths=(32,), documents=1, queries=64)
  with pytest.raises(UserError, match=r"targets=20 must lie in 1 \.\. 12"):
    probes.receptive(subject("nope"), length=24, documents=1, targets=20)


def test_what_cannot_be_probed_is_refused():
  with pytest.raises(UserError, match="forgetting: weights are recomputed from queries and keys alone"):
    probes.attention(subject("forgetting"), lengths=(32,), documents=1, queries=16)
  one = subject("rope")
  one.model = one.model.clone(encoding=PerLayer((encodings.make("rope"), encodings.make("nope")), (8, 0)))
  for measure, how in ((probes.attention, {"documents": 1, "queries": 16}), (probes.kernels, {})):
    with pytest.raises(UserError, match="rope has layers that differ"):
      measure(one, lengths=(32,), **how)
