"""`python -m experiments.train` as a user meets it: answers, exit codes, and a process that is killed."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posx import config as configs
from posx import data
from posx.checkpoint import Checkpoints
from posx.files import read_rows
from posx.rundir import RunDir

ROOT = Path(__file__).parents[1]
TRAIN = (sys.executable, "-m", "experiments.train")

CONFIG = """
from posx import config as configs

def get_config(encoding="rope"):
  config = configs.default(encoding)
  config.model.update(num_layers=1, model_dim=16, num_heads=2, mlp_dim=32)
  config.data.update(name="text", path=__file__.replace("c.py", "*.txt"))
  config.train.update(length=16, batch_size=4, steps=200, warmup_steps=5, checkpoint_every=20, log_every=1)
  return config
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory, texts):
  """A folder with a configuration and its prepared text, and a cache folder of its own."""
  folder = tmp_path_factory.mktemp("home")
  texts(folder, CONFIG, 200)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("POSX_CACHE", str(folder / "cache"))
    data.prepare(configs.load(folder / "c.py").data)
  return folder


def environment(home):
  return {**os.environ, "POSX_CACHE": str(home / "cache"), "JAX_PLATFORMS": "cpu"}


def train(home, *arguments):
  return subprocess.run([*TRAIN, *arguments], cwd=ROOT, env=environment(home), capture_output=True, text=True, timeout=300)


def test_help_is_quick_and_needs_no_jax(home):
  code = "import sys\nfrom experiments import train\ntry: train.main(['--help'])\n"
  code += "except SystemExit: print(sorted({'jax', 'flax'} & set(sys.modules)))"
  began = time.perf_counter()
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
  assert time.perf_counter() - began < 5
  assert done.stdout.endswith("[]\n"), done.stderr
  for word in ("--config", "--workdir", "--init_from", "--config.train.steps=1000", "75 stopped and resumable"):
    assert word in done.stdout


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((), "error: the following arguments are required: --config, --workdir; see python -m experiments.train --help"),
    (("--config=c.py", "--workdir=w", "--stpes=3"), "error: unrecognized arguments: --stpes=3; see"),
    (("--config=nowhere.py", "--workdir=w"), "error: config file 'nowhere.py' does not exist"),
    (("--config=configs/quickstart.py:rop", "--workdir=w"), "error: unknown encoding 'rop'; did you mean 'rope'?"),
    (("--config=configs/quickstart.py", "--workdir=w", "--config.train.steps=None"), "error: config.train.steps expects a whole number"),
    (("--config=configs/quickstart.py", "--workdir=w", "--config.train.learning_rate", "nan"), "expects a finite number"),
    (("--config=configs/quickstart.py", "--workdir=w", "--config.data.name=None"), "error: config.data.name is a text"),
    (("--config=configs/quickstart.py", "--workdir=pyproject.toml"), "python -m experiments.prepare --name=sotu"),
  ],
)
def test_bad_usage_is_one_line_and_exit_code_2(home, arguments, message):
  done = train(home, *arguments)
  assert done.returncode == 2
  assert message in done.stderr
  assert done.stderr.count("\n") == 1
  assert not (ROOT / "w").exists()


def test_debug_shows_the_traceback(home):
  done = train(home, "--config=nowhere.py", "--workdir=w", "--debug")
  assert "Traceback (most recent call last)" in done.stderr


def wait_for_step(folder, process, step):
  """Waits until this very process has done that step; returns its status."""
  end = time.monotonic() + 200
  while time.monotonic() < end:
    if process.poll() is not None:
      raise AssertionError(f"ended early with {process.returncode}: {process.stderr.read()}")
    status = RunDir(folder).status()
    if status.get("pid") == process.pid and status["step"] >= step:
      return status
    time.sleep(0.005)
  raise AssertionError("no progress")


def state(folder):
  checkpoints = Checkpoints(folder / "checkpoints", writable=False)
  flat, _ = checkpoints.restore(checkpoints.latest(), "params", "optimizer")
  return checkpoints.latest(), {f"{p}/{path}": value.tobytes() for p, values in flat.items() for path, value in values.items()}


@pytest.mark.slow
def test_killed_stopped_and_resumed_is_the_run_that_was_never_disturbed(home):
  start = functools.partial(subprocess.Popen, cwd=ROOT, env=environment(home), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
  arguments = (f"--config={home}/c.py:kerple", f"--workdir={home}/disturbed")

  killed = start([*TRAIN, *arguments])
  wait_for_step(home / "disturbed", killed, 30)
  killed.send_signal(signal.SIGKILL)
  assert killed.wait() == -signal.SIGKILL
  status = RunDir(home / "disturbed").status()
  assert status["state"] == "running"

  stopped = start([*TRAIN, *arguments])
  wait_for_step(home / "disturbed", stopped, status["step"] + 10)
  stopped.send_signal(signal.SIGTERM)
  assert stopped.wait() == 75
  said = stopped.stderr.read()
  assert (
    said.startswith("SIGTERM: stopping after this step") and "\nstopped at step " in said and "run the same command again to go on" in said
  )
  assert RunDir(home / "disturbed").status()["state"] == "stopped"

  resumed = train(home, *arguments)
  assert resumed.returncode == 0, resumed.stderr
  assert "resumed after step" in resumed.stdout
  whole = train(home, arguments[0], f"--workdir={home}/whole")
  assert whole.returncode == 0, whole.stderr

  assert state(home / "disturbed") == state(home / "whole")
  assert state(home / "whole")[0] == 200
  rows = [read_rows(home / name / "metrics.jsonl") for name in ("disturbed", "whole")]
  assert [(r["step"], r["loss"], r["learning_rate"]) for r in rows[0]] == [(r["step"], r["loss"], r["learning_rate"]) for r in rows[1]]
  assert [row["step"] for row in rows[1]] == list(range(1, 201))

  again = train(home, *arguments)
  assert (again.returncode, again.stdout) == (0, f"run {home}/disturbed is done: 200 steps; nothing to do\n")
  other = train(home, *arguments, "--config.train.steps=500")
  assert other.returncode == 2
  assert "train.steps: 200 -> 500; a run keeps its configuration" in other.stderr
