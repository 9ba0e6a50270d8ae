"""What a run writes while it goes: metrics.jsonl and TensorBoard."""

from __future__ import annotations

import math
from pathlib import Path

from posx.files import append_rows, read_rows


class Writer:
  """Appends metrics of steps in rising order; after a resume no step is there twice.

  Args:
    folder: the run folder.
    step: updates done so far; what an earlier process logged beyond them will happen again and is dropped.
  """

  def __init__(self, folder: Path, step: int):
    from tensorboardX import SummaryWriter

    self.path = folder / "metrics.jsonl"
    _trim(self.path, step)
    self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

  def write(self, step: int, **values: float) -> None:
    """One line {step, name: value, ...}; values that are not finite become null."""
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    append_rows(self.path, [{"step": step, **finite}])
    for name, value in values.items():
      self._board.add_scalar(name, value, step)

  def close(self) -> None:
    self._board.close()


def _trim(path: Path, step: int) -> None:
  rows = read_rows(path)
  kept = [row for row in rows if row["step"] <= step]
  if len(kept) == len(rows):
    return
  path_new = path.with_name("metrics.jsonl.new")
  path_new.unlink(missing_ok=True)
  append_rows(path_new, kept)
  path_new.replace(path)
