"""What a run writes while it goes: metrics.jsonl, TensorBoard, and pages at trackers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from posx.errors import Stopped
from posx.files import append_rows, read_rows


class Sink(Protocol):
  """One place that metrics go to."""

  def write(self, step: int, values: Mapping[str, float]) -> None: ...

  def close(self, ended: str) -> None:
    """Args: ended: 'done', 'stopped' or 'failed'."""


class Lines:
  """metrics.jsonl: one line {step, name: value, ...}; values that are not finite become null."""

  def __init__(self, folder: Path, step: int):
    self.path = folder / "metrics.jsonl"
    _trim(self.path, step)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    append_rows(self.path, [{"step": step, **{name: value if math.isfinite(value) else None for name, value in values.items()}}])

  def close(self, ended: str) -> None:
    del ended


class Board:
  """TensorBoard's event files."""

  def __init__(self, folder: Path, step: int):
    from tensorboardX import SummaryWriter

    self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      self._board.add_scalar(name, value, step)

  def close(self, ended: str) -> None:
    del ended
    self._board.close()


class Writer:
  """Gives metrics of steps, in rising order, to all sinks; after a resume no step is there twice. Use as a context manager.

  Args:
    folder: the run folder.
    step: updates done so far; what an earlier process logged beyond them will happen again and is dropped.
    others: sinks beside metrics.jsonl and TensorBoard.
  """

  def __init__(self, folder: Path, step: int, others: Sequence[Sink] = ()):
    self._sinks: list[Sink] = [Lines(folder, step), Board(folder, step), *others]

  def write(self, step: int, **values: float) -> None:
    for sink in self._sinks:
      sink.write(step, values)

  def __enter__(self) -> Writer:
    return self

  def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
    stopped = kind is not None and issubclass(kind, (Stopped, KeyboardInterrupt))
    for sink in self._sinks:
      sink.close("done" if kind is None else "stopped" if stopped else "failed")


def _trim(path: Path, step: int) -> None:
  rows = read_rows(path)
  kept = [row for row in rows if row["step"] <= step]
  if len(kept) == len(rows):
    return
  path_new = path.with_name("metrics.jsonl.new")
  path_new.unlink(missing_ok=True)
  append_rows(path_new, kept)
  path_new.replace(path)
