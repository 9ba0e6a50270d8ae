"""The local launcher with workers that finish, fail, crash, hang; and what happens when it is killed itself."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posx.errors import UserError
from posx.study import launch, results, slots, worker

SWEEP = Path(__file__).with_name("fake_sweep.py")
CORES = len(os.sched_getaffinity(0))


def start(folder, workers, *behaviours):
  return subprocess.Popen(
    [sys.executable, str(SWEEP), str(folder), str(workers), *behaviours], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )


def finish(folder, workers, *behaviours):
  process = start(folder, workers, *behaviours)
  out, err = process.communicate(timeout=120)
  ends = dict(re.findall(r"^END (\S+) (.*)$", out, re.M))
  return process.returncode, {name: end.strip() for name, end in ends.items()}, out + err


def until(holds, seconds=60.0):
  end = time.monotonic() + seconds
  while not holds():
    assert time.monotonic() < end, "waited in vain"
    time.sleep(0.05)


def starts(folder, name):
  path = folder / "runs" / name / "starts"
  return path.read_text().splitlines() if path.exists() else []


def hangs(folder, name):
  path = folder / "runs" / name / "status.json"
  return path.exists() and '"step": 2' in path.read_text()


def alive(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_each_ends_in_its_own_way(tmp_path):
  code, ends, out = finish(tmp_path, 1, "good=finish", "bad=refuse", "worse=crash", "moody=crash once", "gone=die", "lazy=forget")
  assert code == 0
  assert ends == {
    "good": "done 1",
    "bad": "failed 1 unknown encoding 'ropee'",
    "worse": "failed 2 ValueError: out of luck",
    "moody": "done 2",
    "gone": "failed 2 killed by SIGKILL",
    "lazy": "failed 2 ended without its results",
  }
  rows = results.read_file(tmp_path / results.FILE)
  assert sorted({row["run"] for row in rows}) == ["good", "lazy", "moody"]
  assert len(results.merge(rows)) == len(rows) == 6
  assert "2 done, 4 failed" in out and f"results in {tmp_path}" in out
  assert re.search(r"moody +train +second try after: ValueError: out of luck", out)
  assert "out of luck" in (tmp_path / "logs" / "worse.txt").read_text()


def test_what_is_finished_is_skipped(tmp_path):
  finish(tmp_path, 1, "a=finish")
  code, ends, out = finish(tmp_path, 1, "a=finish", "b=finish")
  assert code == 0 and ends == {"a": "done 0", "b": "done 1"}
  assert len(starts(tmp_path, "a")) == 1 and "done before" in out
  assert len(results.read_file(tmp_path / results.FILE)) == 4


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_workers_run_side_by_side_on_cores_of_their_own(tmp_path):
  process = start(tmp_path, 2, "a=slow", "b=slow")
  until(lambda: hangs(tmp_path, "a") and hangs(tmp_path, "b"))
  process.send_signal(signal.SIGINT)
  process.communicate(timeout=60)
  cores = [set(re.search(r"\[(.*)\]", starts(tmp_path, name)[0]).group(1).split(", ")) for name in "ab"]
  assert cores[0] and cores[1] and not cores[0] & cores[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_stops_its_workers_and_the_same_command_continues(tmp_path, number):
  process = start(tmp_path, 1, "a=slow", "b=finish")
  until(lambda: hangs(tmp_path, "a"))
  process.send_signal(number)
  out, err = process.communicate(timeout=60)
  assert process.returncode == 75 and f"stopped by {number.name}; the same command continues" in err
  assert "1 queued, 1 stopped" in out and "Traceback" not in err
  assert not alive(int(starts(tmp_path, "a")[0].split()[0]))
  code, ends, _ = finish(tmp_path, 1, "a=slow", "b=finish")
  assert code == 0 and ends == {"a": "done 1", "b": "done 1"} and len(starts(tmp_path, "a")) == 2


def test_a_second_ctrl_c_kills_a_worker_that_does_not_end(tmp_path):
  process = start(tmp_path, 1, "a=stubborn")
  until(lambda: hangs(tmp_path, "a"))
  process.send_signal(signal.SIGINT)
  time.sleep(0.5)
  assert process.poll() is None
  process.send_signal(signal.SIGINT)
  process.communicate(timeout=30)
  assert process.returncode == 75 and not alive(int(starts(tmp_path, "a")[0].split()[0]))


def test_a_killed_study_leaves_no_worker_and_continues(tmp_path):
  process = start(tmp_path, 1, "a=slow", "b=finish")
  until(lambda: hangs(tmp_path, "a"))
  process.kill()
  process.communicate(timeout=30)
  # At once: the new worker waits until the orphan is gone.
  code, ends, _ = finish(tmp_path, 1, "a=slow", "b=finish")
  assert code == 0 and ends == {"a": "done 1", "b": "done 1"}
  assert len(starts(tmp_path, "a")) == 2 and not alive(int(starts(tmp_path, "a")[0].split()[0]))


def test_two_studies_do_not_share_a_folder(tmp_path):
  process = start(tmp_path, 1, "a=slow")
  until(lambda: hangs(tmp_path, "a"))
  code, _, out = finish(tmp_path, 1, "a=slow")
  assert code == 4 and f"in use by the study of process {process.pid}" in out
  assert process.poll() is None
  process.terminate()
  process.communicate(timeout=60)


def test_the_folder_of_a_run_is_no_study(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(UserError, match="is the folder of one run"), launch.owned(tmp_path):
    pass


@pytest.mark.parametrize(
  "workers, threads, message", [(0, 1, "at least 1"), (1, 0, "at least 1"), (10**6, 1, "--workers=1000000 exceeds the")]
)
def test_impossible_workers_are_refused(workers, threads, message):
  with pytest.raises(UserError, match=message):
    slots.divide(workers, threads)


def test_slots_share_the_cores(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
  monkeypatch.setattr(slots, "gpus", list)
  assert [s.cores for s in slots.divide(None, 4)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
  assert [s.cores for s in slots.divide(3)] == [(0, 1), (2, 3), (4, 5)]
  assert len(slots.divide()) == 8


def test_a_worker_a_gpu(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
  monkeypatch.setattr(slots, "gpus", lambda: ["0", "1"])
  assert [dict(s.environment) for s in slots.divide()] == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
  assert dict(slots.divide(4)[3].environment) == {"CUDA_VISIBLE_DEVICES": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def test_requests_and_their_command_lines():
  asked = worker.requests({"eval": {"lengths": (512, 1024), "extensions": ("pi", "yarn:8", "pi"), "controls": (), "stride": 64}})
  assert [r["extension"] for r in asked] == ["", "pi", "yarn:8"] and all(r["stride"] == 64 and r["lengths"] == [512, 1024] for r in asked)
  assert [worker.arguments("d", r) for r in asked] == [
    ["--workdir=d", "--beyond=note", "--lengths=512,1024", "--controls=none", "--stride=64"],
    ["--workdir=d", "--beyond=note", "--lengths=512,1024", "--controls=none", "--stride=64", "--extension=pi"],
    ["--workdir=d", "--beyond=note", "--lengths=512,1024", "--controls=none", "--stride=64", "--extension=yarn", "--extension.factor=8"],
  ]


def test_targets_that_no_window_holds_are_those_of_the_shortest():
  (asked,) = worker.requests({"eval": {"lengths": (512, 1024), "targets": 4096}})
  assert "--targets=512" in worker.arguments("d", asked)
  (asked,) = worker.requests({"eval": {"lengths": (512, 8192), "targets": 4096}})
  assert "--targets=4096" in worker.arguments("d", asked)
