"""What a study shows while it goes."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from posx.study import watch
from posx.study.launch import Job
from posx.study.sweep import Run


def job(name, state, seconds=0.0, phase="train", **fields):
  status = {"state": "running", "step": 40, "steps": 100, "loss": 2.5, "tokens_per_second": 12345.6, "eta_s": fields.pop("eta_s", None)}
  run = Run(name, "c.py", {}, {}, {})
  return Job(run, Path(name), Path(name), state=state, seconds=seconds, phase=phase, status=status if state != "queued" else {}, **fields)


def test_one_line_a_run():
  assert watch.cells(job("a", "running", 30, eta_s=75.0)) == ("a", "train", "40/100", "2.500", "12,346", "1m15s", "")
  assert watch.cells(job("a", "queued")) == ("a", "queued", "", "", "", "", "")
  assert watch.cells(job("a", "done", 75.0))[1::5] == ("done", "1m15s")
  assert watch.cells(job("a", "done", skipped=True))[1] == "done before"
  assert watch.cells(job("a", "failed", error="out of luck"))[1::5] == ("failed", "out of luck")
  assert watch.cells(job("a", "running", error="out of luck", phase="evaluate 1/3"))[1::5] == (
    "evaluate 1/3",
    "second try after: out of luck",
  )


def test_time_left():
  # Runs take 100 s: the running one needs 60 more, two wait, two workers.
  jobs = [job("a", "done", 100.0), job("b", "running", 40.0), job("c", "queued"), job("d", "queued")]
  assert watch.remaining(jobs, 2) == pytest.approx((60 + 200) / 2)
  # Nothing done yet: 20 s gone and 30 s of training left make 50 a run.
  assert watch.remaining([job("b", "running", 20.0, eta_s=30.0), job("c", "queued")], 1) == pytest.approx(30 + 50)
  # Never less than the longest of those that run.
  assert watch.remaining([job("a", "done", 10.0), job("b", "running", 5.0, eta_s=500.0)], 8) == pytest.approx(500)
  assert watch.remaining([job("b", "running", 5.0), job("c", "queued")], 1) is None


def test_lines_are_said_once_a_change(capsys):
  view, running = watch.Lines(1, "here"), job("a", "running", eta_s=5.0)
  view([running, job("b", "queued")], False)
  view([running, job("b", "queued")], False)
  assert len(capsys.readouterr().out.splitlines()) == 1
  view([job("a", "done", 9.0), job("b", "stopped")], True)
  out = capsys.readouterr().out.splitlines()
  assert len(out) == 3 and out[-1].startswith("1 done, 1 stopped;") and out[-1].endswith("results in here")


def test_a_terminal_gets_a_table():
  console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
  view = watch.Table(2, "here", console)
  view([job("a", "running", 20.0, eta_s=75.0), job("b", "queued")], True)
  text = console.file.getvalue()
  assert "1m15s" in text and "tokens/s" in text and "b    queued" in text and "1 running, 1 queued; 0s so far, about 1m" in text
