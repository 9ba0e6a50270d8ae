"""The Slurm launcher: with programs that stand for Slurm's on any machine, and with the real ones where there is a cluster."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import slurm_daemons

from posx.errors import UserError
from posx.study import launch, results, slurm

SWEEP = Path(__file__).with_name("slurm_sweep.py")
FAKE = Path(__file__).with_name("fake_slurm.py")


WHY_NOT = "" if slurm_daemons.idle() else slurm_daemons.missing()


@pytest.fixture(scope="module")
def daemons():
  """The Slurm of this machine, or one that is started for these tests."""
  with contextlib.ExitStack() as stack:
    if not slurm_daemons.idle():
      folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True))
      stack.enter_context(slurm_daemons.started(Path(folder)))
    yield


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")])])
def cluster(request, tmp_path, monkeypatch):
  """The programs of Slurm, and a folder for a study on it."""
  if request.param == "real":
    request.getfixturevalue("daemons")
  folder = tmp_path / "study"
  if request.param == "fake":
    home, programs = tmp_path / "slurm", tmp_path / "bin"
    (home / "queue").mkdir(parents=True)
    programs.mkdir()
    for name in ("sbatch", "squeue", "scontrol", "srun"):
      path = programs / name
      path.write_text(f'#!/bin/sh\nexec {sys.executable} {programs}/{name}.d/{name} "$@"\n')
      path.chmod(0o755)
      (programs / f"{name}.d").mkdir()
      (programs / f"{name}.d" / name).symlink_to(FAKE)
    monkeypatch.setenv("FAKE_SLURM", str(home))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
  return folder


def start(folder, *behaviours):
  return subprocess.Popen([sys.executable, str(SWEEP), str(folder), *behaviours], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
  out, err = process.communicate(timeout=900)
  return process.returncode, {n: e.strip() for n, e in re.findall(r"^END (\S+) (.*)$", out, re.M)}, out + err


def starts(folder, name):
  path = folder / "runs" / name / "starts"
  return path.read_text().splitlines() if path.exists() else []


def until(holds, seconds=120.0):
  end = time.monotonic() + seconds
  while not holds():
    assert time.monotonic() < end, "waited in vain"
    time.sleep(0.1)


def hangs(folder, name):
  path = folder / "runs" / name / "status.json"
  return path.exists() and '"step": 2' in path.read_text()


def test_an_array_runs_once_and_failures_show_their_last_line(cluster):
  code, ends, out = finish(start(cluster, "good=finish", "bad=refuse", "moody=crash once", "lazy=forget"))
  assert code == 0, out
  assert ends == {"good": "done", "bad": "failed unknown encoding 'ropee'", "moody": "done", "lazy": "failed ended without its results"}
  assert len({job.partition("_")[0] for job in json.loads((cluster / slurm.JOBS).read_text()).values()}) == 1
  assert {row["run"] for row in results.read_file(cluster / results.FILE)} >= {"good", "moody"}
  code, ends, out = finish(start(cluster, "good=finish", "bad=refuse"))
  assert ends["good"] == "done" and "done before" in out
  assert len(starts(cluster, "good")) == 1 and len(starts(cluster, "bad")) == 2


def test_what_is_in_the_queue_is_found_again_and_not_submitted_twice(cluster):
  process = start(cluster, "a=slow", "b=slow")
  until(lambda: hangs(cluster, "a") and hangs(cluster, "b"))
  process.send_signal(signal.SIGINT)
  code, _, out = finish(process)
  jobs = json.loads((cluster / slurm.JOBS).read_text())
  assert code == 75 and f"the jobs go on, the same command watches them again, `scancel {jobs['a'].partition('_')[0]}` ends them" in out
  again = start(cluster, "a=slow", "b=slow")
  time.sleep(2)
  assert again.poll() is None and json.loads((cluster / slurm.JOBS).read_text()) == jobs
  # The end of a job's time: its run saves, the job goes back into the queue, and goes on where it was.
  for job in jobs.values():
    near_end(job)
  code, ends, out = finish(again)
  assert code == 0 and ends == {"a": "done", "b": "done"}, out
  assert len(starts(cluster, "a")) == len(starts(cluster, "b")) == 2


def near_end(job):
  """What Slurm does `signal_delay_s` before the end of a job's time."""
  home = os.environ.get("FAKE_SLURM")
  if home is None:
    subprocess.run(["scancel", "--signal=USR2", job], check=True)
    return
  until(lambda: (Path(home) / f"pid-{job}").exists())
  shell = int((Path(home) / f"pid-{job}").read_text())
  for pid in Path("/proc").iterdir():
    # the process that srun would signal: the one whose parent is the batch script
    if pid.name.isdigit() and _parent(pid) == shell:
      os.kill(int(pid.name), signal.SIGUSR2)


def _parent(pid):
  try:
    return int((pid / "stat").read_text().rpartition(")")[2].split()[1])
  except OSError:
    return 0


def test_refusals(tmp_path, monkeypatch):
  monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
  with pytest.raises(UserError, match="needs sbatch, which is not on the PATH: start the study on a login node"):
    slurm.executor(tmp_path, {}, None, 1)
  monkeypatch.setattr(slurm.shutil, "which", lambda name: f"/bin/{name}")
  with pytest.raises(UserError, match=r"unknown Slurm parameter 'partitoin'; did you mean 'partition'\? known: account, "):
    slurm.executor(tmp_path, {"partitoin": "gpu"}, None, 1)
  monkeypatch.setitem(sys.modules, "submitit.slurm.slurm", None)
  with pytest.raises(UserError, match=r"--launcher=slurm needs submitit; install it: pip install -e '.\[slurm\]'"):
    slurm.executor(tmp_path, {}, None, 1)


def test_the_script_says_what_was_asked(tmp_path, monkeypatch):
  monkeypatch.setattr(slurm.shutil, "which", lambda name: f"/bin/{name}")
  made = slurm.executor(tmp_path, {"partition": "gpu", "gpus_per_node": "2", "time": "90"}, 3, 4)
  text = made._make_submission_file_text("run", "0")
  for line in ("--partition=gpu", "--gpus-per-node=2", "--time=90", "--cpus-per-task=4", "--requeue", "--signal=USR2@120"):
    assert f"#SBATCH {line}\n" in text
  assert made.parameters["array_parallelism"] == 3


def test_nothing_is_submitted_while_the_queue_is_silent(tmp_path, monkeypatch):
  (tmp_path / "slurm").mkdir()
  (tmp_path / slurm.JOBS).write_text('{"a": "7_0"}')
  monkeypatch.setattr(slurm.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, "", "Unable to contact slurm controller"))
  from fake_sweep import run

  with pytest.raises(UserError, match="squeue does not answer; nothing is submitted"):
    slurm.submit(launch.jobs([run("a")], tmp_path), tmp_path, None)
