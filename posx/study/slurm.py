"""The Slurm launcher: the runs of a study as a job array, through `submitit`.

A run is one element of the array. Its process on the node runs the worker and, when its time is nearly over or its place is
taken, has it save and puts the job back into the queue. What has finished is never submitted again; what waits or runs in the
queue is found again by the same command. The state of a job comes from `squeue` and from its folder: accounting may be missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posx import hosts
from posx.errors import Stopped, UserError, unknown
from posx.files import read_json, write_atomic
from posx.study import launch, worker
from posx.study.launch import Command, Job, View

JOBS = "slurm/jobs.json"
"""In the study's folder: run -> job of the queue."""

_DEFAULTS: Mapping[str, Any] = {"time": 240, "signal_delay_s": 120, "job_name": "posx"}
_RESTARTS = 1000
_POLL_S = 5.0
_ATTEMPTS = 2
_STOP_S = 90.0
_GONE_S = 10.0
"""A job that left the queue is given so long to show its last words on a shared disk."""


class Task:
  """What Slurm runs on a node: the worker of one run."""

  def __init__(self, argv: Sequence[str], log: Path, end: Path):
    self.argv, self.log, self.end = [str(a) for a in argv], Path(log).absolute(), Path(end).absolute()
    self.pid = 0

  def __call__(self) -> int:
    self.end.unlink(missing_ok=True)
    code, error = self._run(1)
    if code:
      raise RuntimeError(error or f"exit code {code}")
    return code

  def _run(self, attempt: int) -> tuple[int, str]:
    with open(self.log, "ab") as log:
      said = log.tell()
      # The signal of a nearing end goes to all processes of the step; this one passes it on as SIGTERM.
      ignore = lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN)
      environment = {**os.environ, worker.PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
      process = subprocess.Popen(
        self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True, preexec_fn=ignore
      )
    self.pid = process.pid
    code = process.wait()
    self.pid = 0
    error = launch.last_line(self.log, said) if code >= 0 else f"killed by {signal.Signals(-code).name}"
    if code and code not in launch.FINAL and attempt < _ATTEMPTS:
      return self._run(attempt + 1)
    if hosts.rank() == 0:
      write_atomic(self.end, json.dumps({"code": code, "error": error if code else ""}))
    return code, error

  def checkpoint(self) -> Any:
    """Called by submitit before the job's end: lets the worker save, then asks to be run again."""
    import submitit

    if self.pid:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self.pid, signal.SIGTERM)
      until = time.monotonic() + _STOP_S
      # Not Popen.wait: this runs inside a signal handler, in the middle of that very call.
      while Path(f"/proc/{self.pid}").exists() and _state(self.pid) != "Z" and time.monotonic() < until:
        time.sleep(0.1)
    return submitit.helpers.DelayedSubmission(Task(self.argv, self.log, self.end))


def _state(pid: int) -> str:
  try:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
  except OSError:
    return "Z"


def executor(folder: Path, given: Mapping[str, str], workers: int | None, threads: int) -> Any:
  """The submitit executor with the user's parameters.

  Args:
    folder: where submitit keeps its files; on a disk that all nodes see.
    given: names and values of submitit's Slurm parameters, as typed.
    workers: elements of the array that run at a time; None for as many as the cluster lets.
    threads: cores of a task.

  Raises:
    UserError: if submitit or Slurm is missing, or a parameter is unknown.
  """
  try:
    from submitit.slurm.slurm import SlurmExecutor
  except ImportError as error:
    raise UserError("--launcher=slurm needs submitit; install it: pip install -e '.[slurm]' at the root of the repository") from error
  for program in ("sbatch", "squeue", "srun", "scontrol"):
    if shutil.which(program) is None:
      raise UserError(f"--launcher=slurm needs {program}, which is not on the PATH: start the study on a login node of the cluster")
  known = SlurmExecutor._valid_parameters()
  for name in given:
    if name not in known:
      raise UserError(unknown("Slurm parameter", name, sorted(known)))
  made = SlurmExecutor(folder, max_num_timeout=_RESTARTS)
  values = {name: int(value) if value.isdecimal() else value for name, value in given.items()}
  own = {"cpus_per_task": threads, **({"array_parallelism": workers} if workers else {}), "additional_parameters": {"requeue": True}}
  made.update_parameters(**{**_DEFAULTS, **own, **values})
  return made


def queue(ids: Sequence[str]) -> dict[str, str] | None:
  """job -> state ('PENDING', 'RUNNING', ...) of those that are in the queue; None if Slurm does not answer."""
  if not ids:
    return {}
  arrays = ",".join(sorted({name.partition("_")[0] for name in ids}))
  command = ["squeue", "--noheader", "--array", "--format=%i|%T", f"--jobs={arrays}"]
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
  except subprocess.TimeoutExpired:
    return None
  if done.returncode:
    return {} if "Invalid job id" in done.stderr else None
  return dict(line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line)


def submit(jobs: Sequence[Job], folder: Path, executor: Any, command: Command = launch.command) -> None:
  """Puts into the queue what is neither done nor there already."""
  known = read_json(folder / JOBS) or {}
  there = queue([known[job.run.name] for job in jobs if job.run.name in known])
  if there is None:
    raise UserError("squeue does not answer; nothing is submitted, lest a run be submitted twice: try again later")
  fresh = [job for job in jobs if job.state == "queued" and known.get(job.run.name) not in there]
  for job in fresh:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.folder.mkdir(parents=True, exist_ok=True)
    _end(folder, job).unlink(missing_ok=True)
  # At once, so that Slurm sees one array.
  if fresh:
    tasks = [Task(list(command(job)), job.log, _end(folder, job)) for job in fresh]
    try:
      with executor.batch():
        made = [executor.submit(task) for task in tasks]
    except Exception as error:
      raise UserError(f"sbatch refused the study: {' '.join(str(error).split())[-300:]}") from error
    known.update({job.run.name: each.job_id for job, each in zip(fresh, made, strict=True)})
    write_atomic(folder / JOBS, json.dumps(known, indent=1))


def _end(folder: Path, job: Job) -> Path:
  return folder / "slurm" / f"{job.run.name}.json"


def watch(jobs: Sequence[Job], folder: Path, view: View, poll_s: float = _POLL_S) -> None:
  """Follows the queue until every run is done, has failed or was stopped; collects rows as runs end.

  Raises:
    Stopped: after SIGINT, SIGTERM or SIGHUP; the jobs go on, and the same command watches them again.
  """
  known = read_json(folder / JOBS) or {}
  seen = {job.run.name: time.monotonic() for job in jobs}
  with launch.signals() as stop:
    while True:
      there = queue([known[job.run.name] for job in jobs if job.state in ("queued", "running") and job.run.name in known])
      for job in jobs:
        if job.state in ("queued", "running") and there is not None:
          _look(job, folder, there.get(known.get(job.run.name, ""), ""), seen)
          if job.state not in ("queued", "running"):
            launch.collect(job, folder)
      going = any(job.state in ("queued", "running") for job in jobs)
      view(jobs, not going)
      if not going:
        return
      until = time.monotonic() + poll_s
      while time.monotonic() < until and not stop:
        time.sleep(0.1)
      if stop:
        view(jobs, True)
        ids = ",".join(sorted({known[job.run.name].partition("_")[0] for job in jobs if job.run.name in known}))
        raise Stopped(f"stopped watching; the jobs go on, the same command watches them again, `scancel {ids}` ends them")


def _look(job: Job, folder: Path, state: str, seen: dict[str, float]) -> None:
  """Sets the job's state from the queue's word for it ('' if it is not there) and from its folder."""
  now = time.monotonic()
  launch.refresh(job)
  if state:
    seen[job.run.name] = now
    running = state not in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED")
    job.begun = job.begun if job.begun or not running else now
    job.state, job.seconds = "running" if running else "queued", now - job.begun if job.begun else 0.0
    return
  end = read_json(_end(folder, job))
  if worker.finished(job.folder, job.run.settings):
    job.state, job.phase, job.error = "done", "", ""
  elif end is not None:
    code = end["code"]
    job.state = "stopped" if code == 75 else "failed"
    job.error = end["error"] or (f"exit code {code}" if code else "ended without its results")
  elif now - seen[job.run.name] > _GONE_S:
    job.state, job.error = "failed", f"left the queue without a word; see {folder / 'slurm'} and `scontrol show job`"
