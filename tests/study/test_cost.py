"""What a run costs: parameters against the model itself, FLOPs by hand, forward passes against what the evaluation feeds."""

import math
import subprocess
import sys

import numpy as np
import pytest

from posx import config as configs
from posx import decoder, encodings
from posx.study import cost, speed


def load(name="rope", **fields):
  return configs.load(f"configs/quickstart.py:{name}", {field.replace("__", "."): value for field, value in fields.items()})


def made(config, vocab=256):
  import jax
  import jax.numpy as jnp

  model = decoder.from_config(config, vocab)
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, config.train.length), jnp.int32)))
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("name", list(encodings.CATALOGUE))
def test_parameters_are_those_of_the_model(name):
  config = load(name)
  assert cost.parameters(config) == made(config)


@pytest.mark.parametrize(
  "name, fields",
  [
    ("kerple", {"model__share_encoding": True, "model__num_layers": 3}),
    ("t5", {"model__num_kv_heads": 2, "model__tied": True, "encoding__num_buckets": 16}),
    ("fire", {"model__mlp": "gelu", "model__head_dim": 32, "encoding__width": 8}),
    ("bam", {"encoding__learn_scale": True, "model__mlp_dim": 40}),
    ("shaw", {"encoding__values": False, "encoding__clip": 3}),
    ("learned", {"encoding__rows": 700}),
  ],
)
def test_parameters_follow_the_fields(name, fields):
  config = load(name, **fields)
  assert cost.parameters(config) == made(config)


def test_parameters_of_a_vocabulary_of_pieces():
  config = configs.load("configs/base512.py:kerple")
  # 2 x 50,000 x 768 tables, 12 layers of 4 d^2 + 8 d^2 and two norms, a last norm, 24 numbers a layer
  assert cost.parameters(config) == 2 * 50_000 * 768 + 12 * (12 * 768**2 + 2 * 768 + 24) + 768


OWN = """
import dataclasses, jax.nn, jax.numpy as jnp
from posx.encodings.base import Encoding

@dataclasses.dataclass(frozen=True)
class Own(Encoding):
  def init(self, key, dims):
    return {"w": jnp.zeros((5, dims.num_heads))}
"""


def test_an_encoding_of_ones_own_is_asked_itself(tmp_path, monkeypatch):
  (tmp_path / "own_encoding.py").write_text(OWN)
  monkeypatch.syspath_prepend(tmp_path)
  assert cost.parameters(load("own_encoding:Own")) == cost.parameters(load("nope")) + 2 * 5 * 4


def test_flops_by_hand():
  config = load("rope", model__num_layers=1, model__model_dim=4, model__num_heads=2, model__mlp_dim=3, train__length=3)
  # a token meets 4 x 12 (qkv) + 4 x 4 (out) + 4 x 6 + 3 x 4 (mlp) + 4 x 256 weights; queries see 1 + 2 + 3 keys of 2 heads x 2 channels
  matrices, seen = 48 + 16 + 24 + 12 + 1024, 1 + 2 + 3
  assert cost.forward(config, 3) == 2 * 3 * matrices + 2 * seen * 4 * 2
  assert cost.forward(config, 3, window=2) == 2 * 3 * matrices + 2 * (1 + 2 + 2) * 4 * 2
  config.model.window = 1
  assert cost.forward(config, 3) == 2 * 3 * matrices + 2 * 3 * 4 * 2
  assert cost.cost(config).train_flops == 3 * cost.forward(config, 3) * config.train.batch_size * config.train.steps


@pytest.mark.parametrize(
  "name, fields",
  [
    ("rope", {"eval__extensions": ("pi", "dynamic_ntk:2")}),
    ("alibi", {"eval__stride": 8, "eval__controls": ("window",)}),
    ("learned", {"eval__extensions": ("truncate", "interpolate")}),
  ],
)
def test_passes_are_what_the_evaluation_feeds(tmp_path, monkeypatch, name, fields):
  from posx.evaluation import run
  from posx.study import worker

  size = {"model__num_layers": 1, "model__model_dim": 8, "model__num_heads": 2, "train__length": 32}
  config = load(name, **size, eval__lengths=(32, 64, 128), eval__last_k=16, eval__documents=2, eval__targets=48, **fields)
  fed = []

  def losses(model, params, tokens, windows, **rest):
    fed.append((windows.length, len(tokens) * len(windows.starts), model.window or 0))
    return np.zeros((len(tokens), len(windows.starts), windows.length), np.float32)

  monkeypatch.setattr(run, "window_losses", losses)
  monkeypatch.setattr(run, "restore_params", lambda folder, step: ({"params": {"w": np.zeros(3)}}, config, 1))
  monkeypatch.setattr(run.data, "load", lambda *args, **kwargs: Text())
  monkeypatch.setattr(run.data, "segments", lambda *args, **kwargs: (np.ones((2, 129), np.int32), ["a", "b"]))
  for request in worker.requests(config.to_dict()):
    extension, _, factor = request["extension"].partition(":")
    changes = {"extension.name": extension} | ({"extension.factor": factor} if factor else {}) if extension else {}
    run.evaluate(tmp_path, changes, beyond="note", say=lambda line: None)
  found = cost.passes(config)
  assert sorted(fed) == sorted(tuple(each) for each in found)
  assert cost.cost(config).eval_tokens == sum(length * n for length, n, _ in fed)


class Text:
  vocab_size, dataset, split, fingerprint = 256, "text", "test", "0"

  def num_bytes(self, tokens):
    return tokens.size


def test_all_documents_are_not_known_before_the_text_is():
  config = load(eval__documents=0)
  assert cost.passes(config) is None and cost.cost(config).eval_flops is None


@pytest.mark.slow
def test_memory_is_about_what_the_compiler_allocates():
  import jax

  from posx.training import mesh as meshes
  from posx.training import update

  config = load("rope", model__num_layers=4, train__batch_size=8)
  t = config.train
  shape = (t.accumulate, t.batch_size // t.accumulate, t.length)
  batch = {n: jax.ShapeDtypeStruct(shape, d) for n, d in (("tokens", "int32"), ("targets", "int32"), ("weights", "float32"))}
  model = decoder.from_config(config, 256)
  compiled = update.make_update(model, config, meshes.make()).lower(update.shapes(model, config), batch).compile()
  found = compiled.memory_analysis()
  real = found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
  assert 0.7 < real / cost.train_bytes(config) < 1.5


# How long it takes.


@pytest.fixture
def kept(tmp_path, monkeypatch):
  monkeypatch.setenv("POSX_CACHE", str(tmp_path))
  return tmp_path


def test_nothing_is_assumed_of_hardware_that_was_not_timed(kept):
  speed.note("train", load(), 1e12, 5.0)
  assert speed.rows() == []
  assert speed.estimate(load(), cost.cost(load()), speed.rows(), "a chip, 1 cores").hours is None


def test_hours_are_those_of_the_run_most_like_it(kept, monkeypatch):
  monkeypatch.setattr(speed, "hardware", lambda cores=None: "a chip, 2 cores")
  speed.note("train", load("t5"), 1e12, 100.0)
  monkeypatch.setattr(speed, "hardware", lambda cores=None: "a chip, 1 cores")
  speed.note("train", load("rope"), 4e12, 100.0)
  speed.note("train", load("rope"), 1e10, 50.0)  # a short one that mostly compiled
  speed.note("train", load("alibi"), 3e12, 100.0)
  speed.note("train", load("alibi", model__num_layers=8), 9e12, 100.0)
  speed.note("evaluate", load("rope"), 2e12, 100.0)
  rows = speed.rows()
  train = lambda config, where: speed.rate("train", config, rows, where)
  assert train(load("rope"), "a chip, 1 cores") == (4e10, True)
  assert train(load("kerple", model__num_layers=7), "a chip, 1 cores") == (9e10, False)
  assert train(load("t5"), "a chip, 2 cores") == (1e10, True)
  assert train(load("t5"), "a chip, 4 cores") == (1e10, False)
  assert train(load("rope"), "another chip, 1 cores") is None
  found = speed.estimate(
    load("rope"), cost.cost(load("rope"))._replace(train_flops=3600 * 4e10, eval_flops=7200 * 2e10), rows, "a chip, 1 cores"
  )
  assert found == (1.0, 2.0, False) and found.hours == 3.0


def test_the_dry_run_answers_without_jax(tmp_path):
  code = f"""
import sys
from experiments import sweep
assert sweep.main(["--config=configs/sweeps/quickstart.py", "--workdir={tmp_path}/x", "--dry_run"]) == 0
from posx import late
assert "jax" not in sys.modules and "jax.numpy" not in sys.modules
from posx.encodings import alibi
assert not isinstance(alibi.jnp.zeros, late._Late) and alibi.slopes(2).shape == (2,) and "jax" in sys.modules
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert "270,832" in done.stdout
