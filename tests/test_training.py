"""The trainer: interrupted or not, sliced or not, on one device or several, the same numbers."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import config as configs
from posx import data, decoder, runtime, training
from posx.checkpoint import Checkpoints, flatten, restore_params
from posx.errors import Stopped, UserError
from posx.files import read_rows
from posx.rundir import RunDir
from posx.training import loop, report, update
from posx.training import mesh as meshes

ROOT = Path(__file__).parents[1]
TEXT = [" ".join(f"{who} says {n * k % 97}." for n in range(60)) for k, who in enumerate(("Ann", "Bob", "Cy", "Di"))]


def tiny(encoding: str = "rope", **train) -> configs.ConfigDict:
  config = configs.default(encoding)
  config.model.update(num_layers=1, model_dim=16, num_heads=2, mlp_dim=32)
  values = {"length": 16, "batch_size": 8, "steps": 10, "warmup_steps": 3, "checkpoint_every": 5, "log_every": 1, "weight_decay": 0.1}
  config.train.update({**values, **train})
  configs.check(config)
  return config


def corpus(texts=TEXT):
  return data.from_texts(texts)


def final(folder: Path) -> dict[str, bytes]:
  """Everything in the last checkpoint, byte for byte."""
  checkpoints = Checkpoints(folder / "checkpoints", writable=False)
  flat, _ = checkpoints.restore(checkpoints.latest(), "params", "optimizer")
  return {f"{part}/{path}": value.tobytes() for part, values in flat.items() for path, value in values.items()}


def losses(folder: Path) -> dict[int, float]:
  rows = read_rows(folder / "metrics.jsonl")
  assert len({row["step"] for row in rows}) == len(rows), "a step was logged twice"
  return {row["step"]: row["loss"] for row in rows}


@pytest.fixture(scope="module", autouse=True)
def compile_once(tmp_path_factory):
  """The compilation cache of `runtime.setup`, in a folder of its own: a resumed run gets its executable from there."""
  was = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("POSX_CACHE", str(tmp_path_factory.mktemp("cache")))
    patch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    runtime.setup()
    yield
  jax.config.update("jax_compilation_cache_dir", was[0])
  jax.config.update("jax_persistent_cache_min_compile_time_secs", was[1])


@pytest.fixture
def seen(monkeypatch):
  """The steps whose batches were made, in order."""
  steps, batch = [], data.batch

  def noted(*args, **kwargs):
    steps.append(kwargs["step"])
    return batch(*args, **kwargs)

  monkeypatch.setattr(data, "batch", noted)
  return steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp("whole")
  training.train(tiny(), folder, corpus=corpus())
  return folder


def interrupt_after(monkeypatch, step):
  save = loop._Trainer._save

  def failing(self, done, state):
    save(self, done, state)
    if done == step:
      raise MemoryError("the machine went away")

  monkeypatch.setattr(loop._Trainer, "_save", failing)


def test_five_and_five_steps_are_ten(tmp_path, whole, monkeypatch, seen):
  with monkeypatch.context() as patch, pytest.raises(MemoryError):
    interrupt_after(patch, 5)
    training.train(tiny(), tmp_path, corpus=corpus())
  assert Checkpoints(tmp_path / "checkpoints").latest() == 5
  assert RunDir(tmp_path).status()["state"] == "failed"
  del seen[:]
  training.train(tiny(), tmp_path, corpus=corpus())
  assert seen == [5, 6, 7, 8, 9]
  assert final(tmp_path) == final(whole)
  assert losses(tmp_path) == losses(whole)
  assert [row["learning_rate"] for row in read_rows(tmp_path / "metrics.jsonl")] == [
    row["learning_rate"] for row in read_rows(whole / "metrics.jsonl")
  ]
  assert RunDir(tmp_path).status()["state"] == "done"


def test_drawn_positions_resume_bit_for_bit(tmp_path, whole, monkeypatch):
  config = tiny()
  config.positions.update(train="randomized", range=64)
  training.train(config, tmp_path / "whole", corpus=corpus())
  with monkeypatch.context() as patch, pytest.raises(MemoryError):
    interrupt_after(patch, 5)
    training.train(config, tmp_path / "parts", corpus=corpus())
  training.train(config, tmp_path / "parts", corpus=corpus())
  assert final(tmp_path / "parts") == final(tmp_path / "whole") != final(whole)
  # the first step sees the same tokens with the same parameters, at other positions
  assert 0 < abs(losses(tmp_path / "whole")[1] - losses(whole)[1]) < 0.5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_resumes_to_the_same_end(tmp_path, whole, monkeypatch, number):
  batch = data.batch

  def interrupting(*args, **kwargs):
    if kwargs["step"] == 4:
      os.kill(os.getpid(), number)
    return batch(*args, **kwargs)

  handler = signal.getsignal(number)
  with (
    monkeypatch.context() as patch,
    pytest.raises(Stopped, match=rf"stopped at step [3456] of 10 by {number.name}, checkpoint saved") as caught,
  ):
    patch.setattr(data, "batch", interrupting)
    training.train(tiny(), tmp_path, corpus=corpus())
  step = int(re.search(r"step (\d+)", str(caught.value))[1])
  assert caught.value.exit_code == 75
  assert signal.getsignal(number) is handler
  assert Checkpoints(tmp_path / "checkpoints").latest() == step
  assert (RunDir(tmp_path).status()["state"], RunDir(tmp_path).status()["step"]) == ("stopped", step)
  training.train(tiny(), tmp_path, corpus=corpus())
  assert final(tmp_path) == final(whole)
  assert losses(tmp_path) == losses(whole)


def test_finished_run_says_so_and_writes_nothing(whole, capsys):
  before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file() and p.name != "lock"}
  training.train(tiny(), whole, corpus=corpus())
  assert f"run {whole} is done: 10 steps; nothing to do" in capsys.readouterr().out
  assert {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file() and p.name != "lock"} == before
  with pytest.raises(UserError, match=r"train.steps: 10 -> 20; a run keeps its configuration: give another --workdir"):
    training.train(tiny(steps=20), whole, corpus=corpus())


def test_last_step_is_saved_though_no_multiple(tmp_path):
  training.train(tiny(steps=7), tmp_path, corpus=corpus())
  assert Checkpoints(tmp_path / "checkpoints").steps() == [5, 7]
  assert list(losses(tmp_path)) == list(range(1, 8))


def test_it_learns(tmp_path):
  training.train(tiny(steps=60, learning_rate=1e-2, final_learning_rate=1e-3, log_every=20), tmp_path, corpus=corpus())
  found = losses(tmp_path)
  assert list(found) == [20, 40, 60]
  assert found[60] < 2.5 < math.log(256)


def parts(config, mesh=None):
  mesh = mesh or meshes.make()
  model = decoder.from_config(config, 256)
  batch = data.batch(corpus(), seed=0, step=0, batch_size=8, length=16, packing=config.data.packing)
  # Rows of very different weight tell a mean over tokens from a mean of means.
  batch["weights"] = batch["weights"] * (np.arange(16)[None, :] < np.arange(2, 18, 2)[:, None])
  return mesh, model, batch, update.initial(model, config, mesh)


@pytest.mark.parametrize("packing", ["documents", "packed"])
def test_slices_make_the_same_gradient_as_the_whole_batch(packing):
  config = tiny()
  config.data.packing = packing
  mesh, model, batch, state = parts(config)
  loss, slope = jax.jit(update.gradients(model, mesh))(state.params, meshes.place(batch, mesh, 1))
  extra = {name: batch[name] for name in ("positions", "segments") if name in batch}
  assert bool(extra) == (packing == "packed")
  tokens = jax.jit(functools.partial(model.apply, method="token_losses"))(state.params, batch["tokens"], batch["targets"], **extra)
  assert float(loss) == pytest.approx(float((tokens * batch["weights"]).sum() / batch["weights"].sum()), rel=1e-6)
  for accumulate in (2, 4, 8):
    loss_, slope_ = jax.jit(update.gradients(model, mesh))(state.params, meshes.place(batch, mesh, accumulate))
    assert float(loss_) == pytest.approx(float(loss), rel=1e-6)
    for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(slope_), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_slices_do_not_advance_the_schedule(tmp_path, whole):
  training.train(tiny(accumulate=4), tmp_path, corpus=corpus())
  rates = [[row["learning_rate"] for row in read_rows(folder / "metrics.jsonl")] for folder in (tmp_path, whole)]
  assert rates[0] == rates[1]
  counts = [{k: v for k, v in final(folder).items() if k.endswith("count")} for folder in (tmp_path, whole)]
  assert counts[0] == counts[1] == {k: np.int32(10).tobytes() for k in counts[0]}
  assert len(counts[0]) == 2  # Adam's and the schedule's
  np.testing.assert_allclose(list(losses(tmp_path).values()), list(losses(whole).values()), rtol=1e-5)


def test_pauses_do_not_count_as_training_time(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(report.time, "perf_counter", lambda: now[0])
  progress = report.Progress(tiny(), 0)
  assert progress.speed(1) is None
  progress.advance(1, 5.0)
  now[0] = 2.0
  with progress.pause():
    now[0] = 100.0
  assert progress.speed(3) == 2 * 128 / 2.0
  assert progress.remaining(3) == 7.0
  assert [report.duration(s) for s in (0.0, 3.21, 42.4, 200, 7500)] == ["0.0 s", "3.2 s", "42 s", "3 min 20 s", "2 h 05 min"]


def test_batch_that_does_not_divide(tmp_path, monkeypatch):
  monkeypatch.setattr(meshes, "make", lambda shape: type("Mesh", (), {"size": 3})())
  with pytest.raises(UserError, match=r"config.train.batch_size=8 must be divisible by 3 devices$"):
    training.train(tiny(), tmp_path / "run", corpus=corpus())
  with pytest.raises(UserError, match=r"batch_size=8 must be divisible by 3 devices x accumulate=2"):
    training.train(tiny(accumulate=2), tmp_path / "run", corpus=corpus())
  assert not (tmp_path / "run").exists()


def test_loss_that_is_no_number_stops_and_keeps_the_checkpoint(tmp_path, monkeypatch):
  batch = data.batch

  def poisoned(*args, **kwargs):
    found = batch(*args, **kwargs)
    return {**found, "weights": found["weights"] * np.float32("nan")} if kwargs["step"] == 6 else found

  monkeypatch.setattr(data, "batch", poisoned)
  message = (
    rf"loss became nan at step 7; the checkpoint of step 5 is kept, --init_from={tmp_path} starts from it; lower train.learning_rate"
  )
  with pytest.raises(loop.Diverged, match=message) as caught:
    training.train(tiny(), tmp_path, corpus=corpus())
  assert caught.value.exit_code == 1
  assert Checkpoints(tmp_path / "checkpoints").steps() == [5]
  assert RunDir(tmp_path).status()["state"] == "failed"
  assert "nan at step 7" in RunDir(tmp_path).status()["error"]
  assert max(losses(tmp_path)) == 6


def test_no_checkpoint_is_made_of_a_step_that_went_wrong(tmp_path):
  with pytest.raises(loop.Diverged, match=r"became (inf|nan) at step 1; no checkpoint yet"):
    training.train(tiny(learning_rate=1e30, warmup_steps=0, checkpoint_every=1), tmp_path, corpus=corpus())
  assert Checkpoints(tmp_path / "checkpoints").latest() is None


def test_validation_on_fixed_batches(tmp_path):
  other = corpus([TEXT[0][:300], TEXT[1][100:500]])
  training.train(tiny(eval_every=4, log_every=3), tmp_path, corpus=corpus(), validation=other)
  rows = {row["step"]: row.get("validation_loss") for row in read_rows(tmp_path / "metrics.jsonl")}
  assert list(rows) == [3, 4, 6, 8, 9, 10]
  assert [step for step, value in rows.items() if value is not None] == [4, 8, 10]
  params, config, _ = restore_params(tmp_path)
  model, total, weight = decoder.from_config(config, 256), 0.0, 0.0
  for n in range(loop.VALIDATION_BATCHES):
    batch = data.batch(other, seed=0, step=n, batch_size=8, length=16)
    tokens = jax.jit(functools.partial(model.apply, method="token_losses"))(params, batch["tokens"], batch["targets"])
    total, weight = total + float((tokens * batch["weights"]).sum()), weight + batch["weights"].sum()
  assert rows[10] == pytest.approx(total / weight, rel=1e-5)


def test_another_text_is_refused_on_resume(tmp_path, monkeypatch):
  with monkeypatch.context() as patch, pytest.raises(MemoryError):
    interrupt_after(patch, 5)
    training.train(tiny(), tmp_path, corpus=corpus())
  with pytest.raises(UserError, match=r"the text is not that of step 5 of .*\(fingerprint \w+, now \w+\); give another --workdir"):
    training.train(tiny(), tmp_path, corpus=corpus(TEXT[:3]))


def test_weights_of_another_run(tmp_path, whole, monkeypatch):
  source = {k: v for k, v in final(whole).items() if k.startswith("params")}
  with monkeypatch.context() as patch, pytest.raises(MemoryError):
    interrupt_after(patch, 0)
    training.train(tiny(steps=6), tmp_path, init_from=str(whole), corpus=corpus())
  start = final(tmp_path)
  assert {k: v for k, v in start.items() if k.startswith("params")} == source
  assert all(not any(v) for k, v in start.items() if k.startswith("optimizer"))
  assert json.loads((tmp_path / "origin.json").read_text())["init_step"] == 10
  training.train(tiny(steps=6), tmp_path, corpus=corpus())
  assert losses(tmp_path)[1] < losses(whole)[1] - 0.01


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, whole):
  config = tiny()
  config.model.model_dim = 32
  with pytest.raises(UserError, match=rf"--init_from={whole} has a model with model_dim=16, this configuration one with 32"):
    training.train(config, tmp_path / "run", init_from=str(whole), corpus=corpus())
  with pytest.raises(UserError, match="is not a run folder"):
    training.train(config, tmp_path / "run", init_from=str(tmp_path), corpus=corpus())
  assert not (tmp_path / "run").exists()


ON_DEVICES = """
import sys
sys.path.insert(0, sys.argv[1])
import jax
import test_training as t
assert len(jax.devices()) == int(sys.argv[2])
class Patch:
  setattr = staticmethod(setattr)
t.interrupt_after(Patch, 5)
t.training.train(t.tiny(), sys.argv[3], corpus=t.corpus())
"""


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
def test_devices_share_the_batch_and_one_device_goes_on(tmp_path, whole, devices):
  environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    [sys.executable, "-c", ON_DEVICES, str(ROOT / "tests"), str(devices), str(tmp_path)], env=environment, capture_output=True, text=True
  )
  assert "the machine went away" in done.stderr, done.stderr[-2000:]
  assert f"devices    {devices} x cpu" in done.stdout
  assert Checkpoints(tmp_path / "checkpoints").latest() == 5
  training.train(tiny(), tmp_path, corpus=corpus())
  found, expected = losses(tmp_path), losses(whole)
  assert list(found) == list(range(1, 11))
  np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)
  for (path, a), b in zip(flatten(restore_params(tmp_path)[0]).items(), flatten(restore_params(whole)[0]).values(), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-4, err_msg=path)


def test_update_gives_the_old_state_up_and_computes_in_float32():
  config = tiny()
  config.model.dtype = "bfloat16"
  mesh, model, batch, state = parts(config)
  new, metrics = update.make_update(model, config, mesh)(state, meshes.place(batch, mesh, 1))
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
  assert {leaf.dtype for leaf in jax.tree.leaves(new.params)} == {jnp.dtype("float32")}
  assert metrics["loss"].dtype == jnp.float32
  assert dataclasses.is_dataclass(configs.encoding(config))
