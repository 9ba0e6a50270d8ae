"""Runs that start from the parameters of another run: what is taken over, what is kept on a resume, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from posx import config as configs
from posx import data, decoder, extensions, training
from posx.checkpoint import flatten, restore_params
from posx.errors import UserError
from posx.evaluation import rows
from posx.files import read_rows
from posx.training import finetune

ROOT = Path(__file__).parents[1]
TEXT = [" ".join(f"{who} says {n * k % 97}." for n in range(60)) for k, who in enumerate(("Ann", "Bob", "Cy", "Di"))]


def tiny(encoding="rope", **train):
  config = configs.default(encoding)
  config.model.update(num_layers=2, model_dim=16, num_heads=2, mlp_dim=32)
  config.eval.update(lengths=(16, 32), last_k=8)
  values = {"length": 16, "batch_size": 4, "steps": 3, "warmup_steps": 1, "checkpoint_every": 1, "log_every": 1}
  config.train.update({**values, **train})
  return config


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
  """origin(encoding) -> a run folder, trained once."""
  folder = tmp_path_factory.mktemp("origins")

  def origin(encoding="rope"):
    if not (folder / encoding).exists():
      training.train(tiny(encoding), folder / encoding, corpus=data.from_texts(TEXT))
    return folder / encoding

  return origin


def weights(config, workdir, source):
  config = finetune.resolve(config, workdir, str(source))
  return flatten(finetune.parameters(config, decoder.from_config(config, 256))[0])


@pytest.mark.slow
def test_to_twice_the_length_under_an_extension(tmp_path, origins):
  """The factor and the original length come from the run it starts from; the first loss is the old model's under that extension."""
  source, corpus = tmp_path / "source", data.from_texts(TEXT)
  shutil.copytree(origins(), source)
  config = tiny(length=32)
  config.extension = configs.section("extension", "pi")
  training.train(config, tmp_path / "run", init_from=str(source), corpus=corpus)
  saved = json.loads((tmp_path / "run" / "config.json").read_text())
  assert (saved["train"]["init_from"], saved["train"]["original_length"], saved["train"]["length"]) == (str(source), 16, 32)
  assert saved["extension"] == {"name": "pi", "factor": 2.0, "original_length": 0}
  assert json.loads((tmp_path / "run" / "origin.json").read_text())["init_step"] == 3

  params, trained, _ = restore_params(source)
  model = decoder.from_config(trained, 256)
  model = model.clone(encoding=extensions.apply(extensions.make("pi", factor=2.0), model.encoding))
  batch = data.batch(corpus, seed=0, step=0, batch_size=4, length=32)
  losses = jax.jit(lambda p: model.apply(p, batch["tokens"], batch["targets"], method="token_losses"))(params)
  assert read_rows(tmp_path / "run" / "metrics.jsonl")[0]["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)

  # the run goes on without the flag, and without the other run
  shutil.rmtree(source)
  before = (tmp_path / "run" / "checkpoints").stat().st_mtime_ns
  training.train(config, tmp_path / "run", corpus=corpus)
  assert (tmp_path / "run" / "checkpoints").stat().st_mtime_ns == before
  shutil.rmtree(tmp_path / "run" / "checkpoints" / "3")
  last = read_rows(tmp_path / "run" / "metrics.jsonl")[-1]
  training.train(config, tmp_path / "run", corpus=corpus)
  assert read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["loss"] == last["loss"]

  # a run that starts from this one keeps the length of the very first
  resolved = finetune.resolve(tiny(length=64), tmp_path / "next", str(tmp_path / "run"))
  assert resolved.train.original_length == 16 and configs.dims(resolved).train_length == 16
  row = rows.identity(tmp_path, resolved, 64, extensions.make("pi"), 128, SimpleNamespace(dataset="text", split="test"), 3, params)
  assert (row["train_length"], row["original_length"], row["init_from"], row["factor"]) == (64, 16, "run", 8.0)


def test_positions_that_are_drawn_count_for_the_factor(tmp_path, origins):
  config = tiny()
  config.extension = configs.section("extension", "yarn")
  config.positions.update(train="skipwise", range=64)
  assert finetune.resolve(config, tmp_path, str(origins())).extension.factor == 4.0


def test_rope_taken_off_keeps_every_parameter(tmp_path, origins, capsys):
  found = weights(tiny("nope"), tmp_path, origins())
  for path, value in flatten(restore_params(origins())[0]).items():
    np.testing.assert_array_equal(found.pop(path), value)
  assert not found and "encoding   rope -> nope: it has nothing to learn" in capsys.readouterr().out


@pytest.mark.slow
def test_parameters_of_another_encoding_start_anew(tmp_path, origins, capsys):
  """From KERPLE to T5: KERPLE's are left behind, T5's are those of a fresh run of this seed, all others are taken over."""
  config = tiny("t5")
  found = weights(config, tmp_path, origins("kerple"))
  fresh = flatten(decoder.from_config(config, 256).init(jax.random.key(0), np.zeros((1, 16), np.int32)))
  old = flatten(restore_params(origins("kerple"))[0])
  own = [path for path in fresh if "encoding" in path]
  assert set(found) == set(fresh) and len(own) == 1 and own[0] not in old
  np.testing.assert_array_equal(found[own[0]], fresh[own[0]])
  for path in set(fresh) - set(own):
    np.testing.assert_array_equal(found[path], old[path])
  assert "kerple -> t5: the encoding's own 128 parameters start anew" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("part", "fields", "message"),
  [
    ("model", {"num_heads": 4}, r"has a model with head_shape=\(2, 2, 8\), this configuration one with \(4, 4, 4\)"),
    ("model", {"num_layers": 1}, "has a model with num_layers=2, this configuration one with 1"),
    ("model", {"mlp_dim": 64}, "has a model with hidden_dim=32"),
    ("model", {"tied": False}, "has a model with tied=True"),
    (
      "data",
      {"tokenizer": "sentencepiece", "vocab_size": 300},
      "reads tokens of bytes of 'sotu', this configuration those of sentencepiece",
    ),
  ],
)
def test_another_architecture_or_other_tokens_are_refused(tmp_path, origins, part, fields, message):
  config = tiny()
  config[part].update(fields)
  with pytest.raises(UserError, match=message):
    weights(config, tmp_path, origins())


@pytest.mark.slow
def test_what_does_not_work_together_is_refused_before_anything_is_written(tmp_path, origins):
  with pytest.raises(UserError, match=r"config.train.original_length=16 is for runs with --init_from"):
    training.train(tiny(original_length=16), tmp_path / "run", corpus=data.from_texts(TEXT))
  with pytest.raises(UserError, match=r"a learned table of 16 rows cannot serve 32 positions; apply an extension"):
    finetune.resolve(tiny("learned", length=32), tmp_path / "run", str(origins("learned")))
  with pytest.raises(UserError, match=r"t5.*|'params/layers/encoding/table' has shape"):
    config = tiny("t5")
    config.encoding.num_buckets = 16
    weights(config, tmp_path / "run", origins("t5"))
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("pair", "length", "extension"), [("rope+yarn", 2048, "yarn"), ("rope+pi", 2048, "pi"), ("nope", 512, "")])
def test_shipped_configuration(pair, length, extension):
  config = configs.load(ROOT / f"configs/finetune.py:{pair}")
  assert (config.encoding.name, config.extension.name, config.train.length) == (pair.partition("+")[0], extension, length)


def test_shipped_configuration_is_no_training_from_scratch(tmp_path, origins):
  config = configs.load(ROOT / "configs/finetune.py:nope")
  with pytest.raises(UserError, match="this configuration fine-tunes; give --init_from=RUN"):
    finetune.resolve(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()
  origin = str(origins())
  assert finetune.resolve(config, tmp_path / "run", origin).train.init_from == origin


def test_layers_that_differ_start_from_layers_that_are_alike(tmp_path, origins):
  """RoPE in both layers, then a window in the first: the weights are those of the run, stacked by period; and back again."""
  config = tiny()
  config.model.layers = ("rope:window=8", "nope")
  found = weights(config, tmp_path, origins())
  old = flatten(restore_params(origins())[0])
  for path, value in old.items():
    for n in range(2):
      new = path.replace("layers/", f"layers/{n}/")
      np.testing.assert_array_equal(found[new], value[n : n + 1] if "layers" in path else value)
  models = [decoder.from_config(c, 256) for c in (config, tiny())]
  back = finetune._restacked(found, *models)
  assert set(back) == set(old)
  assert all(np.array_equal(back[path], old[path]) for path in old)
