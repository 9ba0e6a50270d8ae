"""The rule of training: rates, decay and clipping as they are applied, and what of a model decays."""

from __future__ import annotations

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import config as configs
from posx import decoder, encodings
from posx.checkpoint import flatten
from posx.training import optimiser, report


def tiny(encoding: str = "rope", **train) -> configs.ConfigDict:
  model = {"model.num_layers": 1, "model.model_dim": 16, "model.num_heads": 2, "model.mlp_dim": 32}
  values = {"warmup_steps": 3, "weight_decay": 0.1, **train}
  return configs.override(configs.default(encoding), {**model, **{f"train.{name}": value for name, value in values.items()}})


def test_schedule_by_hand():
  train = tiny(steps=13, warmup_steps=3, learning_rate=0.4, final_learning_rate=0.2).train
  rates = [float(optimiser.learning_rate(n, train)) for n in range(13)]
  np.testing.assert_allclose(rates[:3], [0.4 / 3, 0.8 / 3, 0.4], rtol=1e-6)
  assert rates[7] == pytest.approx(0.3, rel=1e-6)  # half-way down
  assert rates[12] == np.float32(0.2)
  assert all(a > b for a, b in itertools.pairwise(rates[2:]))
  no_warmup = tiny(steps=3, warmup_steps=0, learning_rate=0.4, final_learning_rate=0.0).train
  np.testing.assert_allclose([float(optimiser.learning_rate(n, no_warmup)) for n in range(3)], [0.4, 0.2, 0.0], atol=1e-7)


def test_rate_and_decay_that_are_applied():
  """With no gradient an update is -rate * decay * parameter: it shows both."""
  train = tiny(steps=6, warmup_steps=2, learning_rate=0.5, final_learning_rate=0.125, weight_decay=0.25).train
  params = {"mlp": {"kernel": jnp.ones(2), "bias": jnp.ones(2)}, "encoding": {"kernel": jnp.ones(2)}}
  rule = optimiser.make(train)
  state, applied = rule.init(params), []
  for _ in range(6):
    change, state = rule.update(jax.tree.map(jnp.zeros_like, params), state, params)
    assert not np.any(change["mlp"]["bias"]) and not np.any(change["encoding"]["kernel"])
    applied.append(float(-change["mlp"]["kernel"][0] / 0.25))
  assert applied[:2] == [0.25, 0.5]
  assert applied[-1] == 0.125
  np.testing.assert_allclose(applied[2:5], [0.125 + 0.1875 * (1 + math.cos(math.pi * n / 4)) for n in (1, 2, 3)], rtol=1e-6)


@pytest.mark.parametrize(("clip", "expected"), [(0.5, 0.5), (0.0, 10.0), (20.0, 10.0)])
def test_clipping_by_the_global_norm(clip, expected):
  rule = optimiser.make(tiny(clip_norm=clip).train)
  params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
  _, state = rule.update({"a": jnp.array([6.0]), "b": jnp.array([8.0])}, rule.init(params), params)
  mean = {path: leaf for path, leaf in flatten(state).items() if "/mu/" in path}
  assert len(mean) == 2
  assert math.sqrt(sum(float(m[0]) ** 2 for m in mean.values())) == pytest.approx(0.1 * expected, rel=1e-5)


@pytest.mark.parametrize("name", list(encodings.CATALOGUE))
def test_what_decays_and_what_the_encoding_owns(name):
  config = tiny(name)
  params = jax.eval_shape(decoder.from_config(config, 256).init, jax.random.key(0), jnp.zeros((1, 16), jnp.int32))
  own = sum(leaf.size for leaf in jax.tree.leaves(configs.encoding(config).init(jax.random.key(0), configs.dims(config))))
  decayed, kept, encoding = set(), set(), 0
  for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
    words = tuple(part.key for part in path)
    encoding += leaf.size if optimiser.of_encoding(words) else 0
    (decayed if optimiser.decays(words) else kept).add("/".join(words[1:]))
  assert encoding == own
  matrices = sum(1 for path in decayed if path.endswith("kernel"))
  assert matrices == len(decayed) - 1 > 0  # the other one is the embedding of the tokens
  assert all(path.endswith(("scale", "bias")) or "encoding" in path for path in kept)
  assert not any("norm" in path or "encoding" in path for path in decayed)
  text = report.summary(params, config, "runs/x", 0)
  assert f"of which {own:,} (" in text
  assert set(re.search(r"^decay 0.1 +(.*)$", text, re.M)[1].split(", ")) == decayed
  assert set(re.search(r"^no decay +(.*)$", text, re.M)[1].split(", ")) == kept


def test_an_output_matrix_of_its_own_decays():
  config = tiny()
  config.model.tied = False
  params = jax.eval_shape(decoder.from_config(config, 256).init, jax.random.key(0), jnp.zeros((1, 16), jnp.int32))
  assert params["params"]["output"].shape == (16, 256)
  assert optimiser.by_path(optimiser.decays, params)["params"]["output"] is True
