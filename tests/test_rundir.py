"""The run folder: whose it is, who may write, and that its files survive crashes and company."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from posx import config as configs
from posx.errors import BusyError, CorruptError, Stopped, UserError
from posx.files import append_rows, read_json, read_rows, write_atomic
from posx.metrics import Writer
from posx.rundir import RunDir

NEW = {"init_from": ""}


def files(folder):
  return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_new_folder_then_the_same_run(tmp_path):
  folder, config = tmp_path / "a" / "b", configs.default()
  with RunDir(folder) as run:
    assert run.acquire(config, NEW) is False
  with RunDir(folder) as run:
    assert run.acquire(configs.default(), NEW) is True
    assert run.config() == config
  assert set(files(folder)) == {"config.json", "origin.json", "lock"}


def test_killed_before_the_configuration_was_written(tmp_path):
  (tmp_path / "lock").touch()
  (tmp_path / ".config.json.123").write_text("{")
  with RunDir(tmp_path) as run:
    assert run.acquire(configs.default(), NEW) is False


def test_another_configuration_is_refused_and_nothing_written(tmp_path):
  with RunDir(tmp_path) as run:
    run.acquire(configs.default(), NEW)
  before, other = files(tmp_path), configs.default("alibi")
  other.train.steps = 300
  message = r"another configuration: .*encoding.name: 'rope' -> 'alibi', .*train.steps: 250 -> 300; a run keeps .* --init_from="
  with pytest.raises(UserError, match=message), RunDir(tmp_path) as run:
    run.acquire(other, NEW)
  assert files(tmp_path) == before


def test_a_resume_may_turn_trackers_on_and_off(tmp_path):
  with RunDir(tmp_path) as run:
    run.acquire(configs.override(configs.default(), {"train.track": "wandb"}), NEW)
  with RunDir(tmp_path) as run:
    assert run.acquire(configs.default(), NEW) is True


def test_other_initial_weights_are_refused(tmp_path):
  with RunDir(tmp_path) as run:
    run.acquire(configs.default(), {"init_from": "/runs/a"})
  with RunDir(tmp_path) as run:
    run.acquire(configs.default(), NEW)  # a resume need not repeat where it started
  with pytest.raises(UserError, match=r"holds a run with --init_from='/runs/a', not '/runs/b'"), RunDir(tmp_path) as run:
    run.acquire(configs.default(), {"init_from": "/runs/b"})


def test_foreign_folder_is_refused_and_left_alone(tmp_path):
  (tmp_path / "thesis.tex").write_text("x")
  with pytest.raises(UserError, match=r"is not a run folder \(it holds thesis.tex\); give a new or empty folder"), RunDir(tmp_path) as run:
    run.acquire(configs.default(), NEW)
  assert files(tmp_path) == {"thesis.tex": b"x"}


def test_paths_that_cannot_be_folders(tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(UserError, match="is a file; give a folder"):
    RunDir(tmp_path / "file").acquire(configs.default(), NEW)
  with pytest.raises(UserError, match="cannot be written: Not a directory; give another --workdir"):
    RunDir(tmp_path / "file" / "below").acquire(configs.default(), NEW)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(tmp_path):
  tmp_path.chmod(0o500)
  with pytest.raises(UserError, match="cannot be written: Permission denied"):
    RunDir(tmp_path / "run").acquire(configs.default(), NEW)


def test_folder_without_configuration_or_with_a_broken_one(tmp_path):
  with pytest.raises(UserError, match=r"is not a run folder: it has no config.json; give the --workdir of a training run"):
    RunDir(tmp_path).config()
  (tmp_path / "config.json").write_text('{"seed": ')
  with pytest.raises(CorruptError, match=r"config.json is not JSON"):
    RunDir(tmp_path).config()


HOLD = """
import sys, time
from posx import config
from posx.rundir import RunDir
run = RunDir(sys.argv[1])
run.acquire(config.default(), {"init_from": ""})
print("held", flush=True)
time.sleep(60)
"""


def test_lock_of_a_live_process_and_of_a_killed_one(tmp_path):
  other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
  try:
    assert other.stdout.readline() == "held\n"
    with pytest.raises(BusyError, match=rf"is in use by process {other.pid} on .*; wait for it, stop it"), RunDir(tmp_path) as run:
      run.acquire(configs.default(), NEW)
  finally:
    other.send_signal(signal.SIGKILL)
    other.wait()
  with RunDir(tmp_path) as run:
    assert run.acquire(configs.default(), NEW) is True


def test_status_is_whole_and_finite(tmp_path):
  run = RunDir(tmp_path)
  run.update(state="running", step=3, steps=10, loss=float("nan"))
  status = json.loads((tmp_path / "status.json").read_text(), parse_constant=lambda c: pytest.fail(c))
  assert set(status) == {"state", "step", "steps", "loss", "tokens_per_second", "eta_s", "error", "pid", "host", "started", "updated"}
  assert (status["state"], status["step"], status["loss"], status["pid"]) == ("running", 3, None, os.getpid())
  assert abs(status["updated"] - time.time()) < 10
  run.update(step=4)
  assert run.status()["step"] == 4
  assert run.status()["steps"] == 10


@pytest.mark.parametrize(
  ("error", "state", "said"),
  [
    (Stopped("stopped"), "stopped", None),
    (KeyboardInterrupt(), "stopped", None),
    (UserError("text changed"), "failed", "UserError: text changed"),
    (MemoryError(), "failed", "MemoryError: "),
  ],
)
def test_status_says_how_a_run_ended(tmp_path, error, state, said):
  run = RunDir(tmp_path)
  with pytest.raises(type(error)), run.recording():
    raise error
  assert (run.status()["state"], run.status()["error"]) == (state, said)


def test_atomic_write_leaves_the_old_file_if_it_fails(tmp_path, monkeypatch):
  path = tmp_path / "f"
  write_atomic(path, "old")
  monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
  with pytest.raises(OSError, match="no"):
    write_atomic(path, "new")
  assert path.read_text() == "old"
  assert read_json(tmp_path / "none") is None


@pytest.mark.parametrize("torn", [b'{"a', b'{"a": 3}', b"x" * 10_000])
def test_rows_after_a_torn_line(tmp_path, torn):
  path = tmp_path / "rows.jsonl"
  append_rows(path, [{"a": 1}, {"a": 2}])
  with open(path, "ab") as file:
    file.write(torn)
  assert read_rows(path) == [{"a": 1}, {"a": 2}]
  append_rows(path, [{"a": 4}])
  assert read_rows(path) == [{"a": 1}, {"a": 2}, {"a": 4}]


def test_rows_that_are_damaged_or_not_finite(tmp_path):
  path = tmp_path / "rows.jsonl"
  assert read_rows(path) == []
  with pytest.raises(ValueError, match="Out of range float"):
    append_rows(path, [{"a": float("nan")}])
  path.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
  with pytest.raises(CorruptError, match=r"rows.jsonl line 2 is not JSON"):
    read_rows(path)


def _append(path, who):
  for n in range(50):
    append_rows(path, [{"who": who, "n": n, "pad": "x" * 5000}])


def test_rows_of_several_processes(tmp_path):
  context = multiprocessing.get_context("spawn")
  workers = [context.Process(target=_append, args=(tmp_path / "rows.jsonl", who)) for who in range(3)]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join()
  rows = read_rows(tmp_path / "rows.jsonl")
  for who in range(3):
    assert [row["n"] for row in rows if row["who"] == who] == list(range(50))


def test_metrics_beyond_the_checkpoint_are_dropped(tmp_path):
  with Writer(tmp_path, 0) as writer:
    for step in (2, 4, 6):
      writer.write(step, loss=float(step), rate=float("inf"))
  with Writer(tmp_path, 4) as writer:
    writer.write(6, loss=60.0)
  rows = read_rows(tmp_path / "metrics.jsonl")
  assert [(row["step"], row["loss"]) for row in rows] == [(2, 2.0), (4, 4.0), (6, 60.0)]
  assert rows[0]["rate"] is None
  assert list((tmp_path / "tensorboard").iterdir())
