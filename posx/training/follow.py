"""The processes of a run that are not its first: they compute and read, and leave writing to the first."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from posx import tracking
from posx.metrics import Writer
from posx.rundir import RunDir

STOP = "stop"
"""In a batch of several processes: rows of the processes that have been asked to stop."""


class Follower(RunDir):
  """The run folder as seen by another than the first process: nothing is locked or written."""

  def acquire(self, config: Any, origin: Mapping[str, Any]) -> bool:
    del config, origin
    return True

  def update(self, **changes: Any) -> None:
    del changes

  @contextlib.contextmanager
  def recording(self):
    yield self


class Silent:
  """Metrics that another process writes."""

  def write(self, step: int, **values: float) -> None:
    del step, values

  def __enter__(self) -> Silent:
    return self

  def __exit__(self, *exc: object) -> None:
    pass


def leads() -> bool:
  """Whether this is the process that writes."""
  return jax.process_index() == 0


def rundir(workdir: str | Path) -> RunDir:
  """The run folder, for this process."""
  return RunDir(workdir) if leads() else Follower(workdir)


def writer(folder: Path, step: int, config: Any) -> Any:
  """What logs metrics, for this process."""
  return Writer(folder, step, tracking.pages(folder, config)) if leads() else Silent()


def quiet() -> Any:
  """A context in which only the first process prints."""
  return contextlib.nullcontext() if leads() else contextlib.redirect_stdout(None)


def agreed(step: int | None) -> int | None:
  """The step of the first process, in all of them: a folder may not be seen alike at once."""
  if jax.process_count() == 1:
    return step
  from jax.experimental import multihost_utils

  found = int(multihost_utils.broadcast_one_to_all(np.int32(-1 if step is None else step)))
  return None if found < 0 else found


def flags(batch: Mapping[str, Any], asked: bool) -> dict[str, Any]:
  """The batch, with several processes also with whether this one has been asked to stop: the update adds it up for all."""
  if jax.process_count() == 1:
    return dict(batch)
  return {**batch, STOP: np.full(len(batch["tokens"]), asked, np.int32)}


def stops(received: str, metrics: Mapping[str, Any] | None) -> str:
  """Why to stop now, the same in all processes; '' to go on."""
  if jax.process_count() == 1:
    return received
  return "a signal to one of its processes" if metrics is not None and int(metrics[STOP]) else ""
