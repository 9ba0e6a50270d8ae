"""The local launcher: the runs of a study over worker processes that own their cores."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import posx
from posx import runtime
from posx.errors import BusyError, Stopped, UserError
from posx.files import read_json
from posx.study import results, worker
from posx.study.names import spell
from posx.study.slots import Slot
from posx.study.sweep import Run

FINAL = (2, 3, 4, 75)
"""Exit codes that a second try would only repeat: bad input, corrupt data, folder in use, asked to stop."""

_GRACE_S = 60.0
_POLL_S = 0.2


@dataclasses.dataclass
class Job:
  """A run on its way: queued, running, then done, failed or stopped."""

  run: Run
  folder: Path
  log: Path
  state: str = "queued"
  phase: str = ""
  error: str = ""
  tries: int = 0
  said: int = 0  # bytes of the log before this try
  begun: float = 0.0
  seconds: float = 0.0
  skipped: bool = False
  status: dict[str, Any] = dataclasses.field(default_factory=dict)
  slot: Slot | None = None
  process: subprocess.Popen | None = None


Command = Callable[[Job], Sequence[str]]
View = Callable[[Sequence[Job], bool], None]


def command(job: Job) -> list[str]:
  """The command line of one run."""
  fields = [f"--config.{name}={spell(value)}" for name, value in job.run.overrides.items()]
  return [sys.executable, "-m", "posx.study.worker", f"--config={job.run.config}", f"--workdir={job.folder}", *fields]


def child_env(slot: Slot) -> dict[str, str]:
  """The environment of a worker."""
  root = str(Path(posx.__file__).parents[1])
  path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
  own = {
    **runtime.cpu_environment(),
    "PYTHONPATH": path,
    "PYTHONUNBUFFERED": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    worker.PARENT: str(os.getpid()),
  }
  return {**os.environ, **own, **dict(slot.environment)}


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
  """Holds the study's folder; the lock goes with the process, however it ends.

  Raises:
    BusyError: if a live study has it.
  """
  if (folder / "config.json").exists():
    raise UserError(f"{folder} is the folder of one run; a study needs a folder of its own")
  try:
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / "lock", "a+")
  except OSError as error:
    raise UserError(f"{folder} cannot be written ({error.strerror}); give another --workdir") from error
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      lock.seek(0)
      raise BusyError(f"{folder} is in use by the study of process {lock.read().strip()}; wait for it, or use another --workdir") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    yield


def jobs(runs: Sequence[Run], folder: str | os.PathLike) -> list[Job]:
  """What there is to do and what is done, from the run folders."""
  folder = Path(folder)
  made = [Job(run, folder / "runs" / run.name, folder / "logs" / f"{run.name}.txt") for run in runs]
  for job in made:
    refresh(job)
    if worker.finished(job.folder, job.run.settings):
      job.state, job.skipped, job.phase = "done", True, ""
  return made


def refresh(job: Job) -> None:
  """Reads how far the run is: its training status, then how many of its evaluations are there."""
  job.status = read_json(job.folder / "status.json") or {}
  job.phase = "train"
  if job.status.get("state") == "done":
    asked = worker.requests(job.run.settings)
    done = worker.answered(job.folder)
    job.phase = f"evaluate {sum(r in done for r in asked)}/{len(asked)}"


def launch(todo: Sequence[Job], folder: str | os.PathLike, places: Sequence[Slot], view: View, command: Command = command) -> None:
  """Works through the jobs; returns when each is done or has failed.

  A run that crashes is tried once more; a failed one does not stop the others. Rows are collected into the study's table
  as runs end.

  Raises:
    Stopped: after SIGINT, SIGTERM or SIGHUP, once the workers have ended; the same command continues.
  """
  folder = Path(folder)
  # those with the most evaluations first, so that no worker waits for a long one at the end
  queue = sorted((job for job in todo if job.state == "queued"), key=lambda job: -len(worker.requests(job.run.settings)))
  free = list(places)
  for job in todo:
    collect(job, folder)
  with signals() as stop:
    try:
      while queue or any(job.process for job in todo):
        if stop:
          raise Stopped(f"stopped by {signal.Signals(stop[0]).name}; the same command continues")
        while free and queue:
          _start(queue.pop(0), free.pop(0), command)
        for job in [job for job in todo if job.process]:
          if _poll(job):
            free.append(_release(job))
            collect(job, folder)
            queue = [job, *queue] if job.state == "queued" else queue
        view(todo, False)
        time.sleep(_POLL_S)
    except BaseException:
      _stop([job for job in todo if job.process], stop)
      for job in todo:
        collect(job, folder)
      raise
    finally:
      view(todo, True)


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
  """A list that fills with the signals that ask to stop."""
  got: list[int] = []
  if threading.current_thread() is not threading.main_thread():
    yield got
    return
  asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
  before = {s: signal.signal(s, lambda number, frame: got.append(number)) for s in asked}
  try:
    yield got
  finally:
    for s, handler in before.items():
      signal.signal(s, handler)


def _start(job: Job, slot: Slot, command: Command) -> None:
  job.log.parent.mkdir(parents=True, exist_ok=True)
  job.folder.mkdir(parents=True, exist_ok=True)
  with open(job.log, "ab") as log:
    job.said = log.tell()
    # A session of its own: Ctrl-C reaches the launcher alone, which then stops the workers in order.
    job.process = subprocess.Popen(
      list(command(job)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=child_env(slot), start_new_session=True
    )
  if hasattr(os, "sched_setaffinity"):
    with contextlib.suppress(ProcessLookupError):
      os.sched_setaffinity(job.process.pid, slot.cores)
  job.slot, job.state, job.begun = slot, "running", time.monotonic()
  job.tries += 1


def _poll(job: Job) -> bool:
  """Whether the job's process has ended; then its state says how."""
  assert job.process is not None
  code = job.process.poll()
  refresh(job)
  job.seconds = time.monotonic() - job.begun
  if code is None:
    return False
  if code == 0 and worker.finished(job.folder, job.run.settings):
    job.state, job.phase, job.error = "done", "", ""
    return True
  job.error = last_line(job.log, job.said) if code >= 0 else f"killed by {signal.Signals(-code).name}"
  job.error = job.error or f"exit code {code}" if code else "ended without its results"
  again = job.tries < 2 and code not in FINAL
  job.state = "queued" if again else "stopped" if code == 75 else "failed"
  return True


def _release(job: Job) -> Slot:
  slot, job.slot, job.process = job.slot, None, None
  assert slot is not None
  return slot


def last_line(path: Path, start: int) -> str:
  """The last words of a log that has grown since it had `start` bytes."""
  with open(path, "rb") as file:
    file.seek(max(start, path.stat().st_size - 8192))
    lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
  return next((line.strip() for line in reversed(lines) if line.strip()), "").removeprefix("error: ")


def _stop(running: Sequence[Job], stop: list[int]) -> None:
  """Asks the workers to save and end; kills those that do not within a minute, or at once on a second Ctrl-C."""
  asked = len(stop)
  for job in running:
    _signal(job, signal.SIGTERM)
  end = time.monotonic() + _GRACE_S
  while any(job.process and job.process.poll() is None for job in running) and time.monotonic() < end and len(stop) <= asked:
    time.sleep(0.05)
  for job in running:
    if job.process and job.process.poll() is None:
      _signal(job, signal.SIGKILL)
      job.process.wait()
    refresh(job)
    job.state = "stopped"
    _release(job)


def _signal(job: Job, number: int) -> None:
  # The whole session of the worker, with whatever it started itself.
  with contextlib.suppress(ProcessLookupError):
    if job.process:
      os.killpg(job.process.pid, number)


def collect(job: Job, folder: Path) -> None:
  """Adds the run's new rows to the study's table."""
  mine = job.folder / results.FILE
  if not mine.exists():
    return
  table = folder / results.FILE
  known = {results.key(row): _content(row) for row in results.merge(results.read_file(table))} if table.exists() else {}
  rows = [{**row, "run": job.run.name} for row in results.merge(results.read_file(mine))]
  results.append(table, [row for row in rows if known.get(results.key(row)) != _content(row)])


def _content(row: results.Row) -> results.Row:
  return {name: value for name, value in row.items() if name != "written"}
