"""What a study shows while it goes: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from posx.study.launch import Job, View

_COLUMNS = ("run", "state", "step", "loss", "tokens/s", "left", "")
_EVERY_S = 15.0


def clock(seconds: float | None) -> str:
  """A duration in few characters.

  Example:
    >>> [clock(s) for s in (None, 4.2, 75, 3700, 200000)]
    ['', '4s', '1m15s', '1h01m', '2d07h']
  """
  if seconds is None:
    return ""
  s = int(seconds)
  if s < 60:
    return f"{s}s"
  if s < 3600:
    return f"{s // 60}m{s % 60:02d}s"
  return f"{s // 3600}h{s % 3600 // 60:02d}m" if s < 86400 else f"{s // 86400}d{s % 86400 // 3600:02d}h"


def cells(job: Job) -> tuple[str, ...]:
  """One line of the table of runs."""
  status, running = job.status, job.state == "running"
  state = f"{job.phase}" if running else "done before" if job.skipped else job.state
  step = f"{status.get('step', 0)}/{status['steps']}" if status.get("steps") else ""
  loss, speed = status.get("loss"), status.get("tokens_per_second")
  left = status.get("eta_s") if running and job.phase == "train" else None
  remark = job.error if job.error else clock(job.seconds) if job.state == "done" and job.seconds else ""
  remark = f"second try after: {remark}" if running and job.error else remark
  return job.run.name, state, step, f"{loss:.3f}" if loss else "", f"{speed:,.0f}" if speed else "", clock(left), remark


def remaining(jobs: Sequence[Job], workers: int) -> float | None:
  """Seconds until all is done, from what runs took so far; None before anything is known."""
  took = [job.seconds for job in jobs if job.state == "done" and job.seconds]
  ahead = [job.seconds + job.status["eta_s"] for job in jobs if job.state == "running" and job.phase == "train" and job.status.get("eta_s")]
  if not took and not ahead:
    return None
  typical = statistics.median(took or ahead)
  running = [max(job.status.get("eta_s") or 0.0, typical - job.seconds, 0.0) for job in jobs if job.state == "running"]
  queued = sum(job.state == "queued" for job in jobs)
  return max([(sum(running) + queued * typical) / workers, *running])


def summary(jobs: Sequence[Job], workers: int, folder: Any, began: float) -> str:
  """One line: counts, time so far, time left, where results go."""
  counts = {state: sum(job.state == state for job in jobs) for state in ("done", "running", "queued", "failed", "stopped")}
  text = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
  left = remaining(jobs, workers) if counts["running"] or counts["queued"] else None
  after = f", about {clock(left)} left" if left else ""
  return f"{text}; {clock(time.monotonic() - began)} so far{after}; results in {folder}"


class Lines:
  """One line whenever a run changes its state, and now and then one for all."""

  def __init__(self, workers: int, folder: Any):
    self.workers, self.folder, self.began = workers, folder, time.monotonic()
    self.said: dict[str, tuple[Any, ...]] = {}
    self.last = self.began

  def __call__(self, jobs: Sequence[Job], final: bool) -> None:
    for job in jobs:
      now = (job.state, job.phase if job.state == "running" else "", job.tries)
      if self.said.get(job.run.name) != now and job.state != "queued":
        self.said[job.run.name] = now
        self._say(job)
    if final or time.monotonic() - self.last > _EVERY_S:
      self.last = time.monotonic()
      for job in jobs if not final else ():
        if job.state == "running":
          self._say(job)
      print(summary(jobs, self.workers, self.folder, self.began), flush=True)

  def _say(self, job: Job) -> None:
    name, state, step, loss, speed, left, remark = cells(job)
    parts = [state, f"step {step}" if step else "", f"loss {loss}" if loss else "", f"{speed} tokens/s" if speed else ""]
    parts += [f"{left} left" if left else "", remark]
    print(f"[{clock(time.monotonic() - self.began):>6}] {name:<24} {'  '.join(filter(None, parts))}", flush=True)


class Table:
  """The table of runs, redrawn in place."""

  def __init__(self, workers: int, folder: Any, console: Any = None):
    from rich.live import Live

    self.workers, self.folder, self.began = workers, folder, time.monotonic()
    self.live = Live(console=console, auto_refresh=False, vertical_overflow="visible")
    self.live.start()
    self.drawn = 0.0

  def __call__(self, jobs: Sequence[Job], final: bool) -> None:
    if final or time.monotonic() - self.drawn > 0.5:
      self.drawn = time.monotonic()
      self.live.update(self._draw(jobs), refresh=True)
    if final:
      self.live.stop()

  def _draw(self, jobs: Sequence[Job]) -> Any:
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    styles = {"done": "green", "failed": "bold red", "stopped": "yellow", "running": "", "queued": "dim"}
    grid = Grid(box=None, pad_edge=False)
    for column in _COLUMNS:
      grid.add_column(column, justify="left" if column in ("run", "state", "") else "right", no_wrap=True, overflow="ellipsis")
    for job in jobs:
      grid.add_row(*map(Text, cells(job)), style=styles[job.state])
    return Group(grid, Text(summary(jobs, self.workers, self.folder, self.began)))


def view(workers: int, folder: Any) -> View:
  """The view that suits where the output goes."""
  return (Table if sys.stdout.isatty() else Lines)(workers, folder)
