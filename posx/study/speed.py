"""How fast this machine is: FLOPs per second of earlier runs, kept in the user's cache, and hours made of them.

Every training and evaluation that took long enough leaves a line. Nothing is assumed of hardware that has not been timed.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posx.files import append_rows, read_rows
from posx.study import cost
from posx.study.names import digest, flatten

FILE = "speed.jsonl"

_LEAST_S = 10.0
"""Shorter ones measure how programs start."""

Row = dict[str, Any]


def path() -> Path:
  """The file in the user's cache."""
  from posx.data import cache_folder

  return cache_folder() / FILE


def chip() -> str:
  """The name of the first GPU that may be used, else of the CPU, without asking JAX."""
  from posx.study import slots

  if slots.gpus():
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
      for line in file.read_text().splitlines():
        if line.startswith("Model:"):
          return line.partition(":")[2].strip()
    return "GPU"
  try:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
  except (OSError, StopIteration):
    return platform.machine() or "CPU"


def hardware(cores: int | None = None) -> str:
  """What a worker runs on: the chip, for a CPU with the number of its cores."""
  from posx.study import slots

  if slots.gpus():
    return chip()
  return f"{chip()}, {cores or len(slots.cores())} cores"


def _about(kind: str, config: Any) -> Row:
  t = config.train
  model = flatten(
    {"model": config.model.to_dict(), "length": t.length, "batch": [t.batch_size, t.accumulate], "data": cost.sizes(config).vocab}
  )
  return {"kind": kind, "encoding": config.encoding.name, "model": digest(model), "scale": cost.forward(config, t.length) * t.batch_size}


def note(kind: str, config: Any, flops: float, seconds: float, chips: int = 1) -> None:
  """Keeps that `chips` together did so many FLOPs of `kind` ('train' or 'evaluate') in so many seconds; nothing if that was too short."""
  if seconds < _LEAST_S:
    return
  row = {**_about(kind, config), "hardware": hardware(), "flops": flops / chips, "seconds": seconds, "written": time.time()}
  try:
    path().parent.mkdir(parents=True, exist_ok=True)
    append_rows(path(), [row])
  except OSError as error:
    print(f"speed is not kept for later estimates: {path()} cannot be written ({error.strerror})")


class Rate(NamedTuple):
  """FLOPs per second, and whether they are of this very model on this very hardware."""

  flops: float
  exact: bool


def rows() -> list[Row]:
  """All that was kept."""
  return read_rows(path())


def rate(kind: str, config: Any, kept: Sequence[Row], where: str) -> Rate | None:
  """The speed to expect on the hardware `where`: of the runs most like this one, the fastest; None if that was never timed.

  Most like means: the same number of cores, then the same model, then the same encoding, then the nearest in FLOPs per step. The
  fastest, because compilation, which is most of a short run, and other work on the machine only slow a run down.
  """
  about, name = _about(kind, config), where.rpartition(", ")[0] or where
  mine = [row for row in kept if row["kind"] == kind and (row["hardware"].rpartition(", ")[0] or row["hardware"]) == name]
  if not mine:
    return None

  def unlike(row: Row) -> tuple[Any, ...]:
    off = abs(math.log(row["scale"] / about["scale"]))
    return (
      row["hardware"] != where,
      row["model"] != about["model"],
      row["encoding"] != about["encoding"],
      off,
      -row["flops"] / row["seconds"],
    )

  best = min(mine, key=unlike)
  return Rate(best["flops"] / best["seconds"], not any(unlike(best)[:3]))


class Estimate(NamedTuple):
  """Hours of a run; None where nothing like it was timed. Rough where the speed is that of other runs."""

  train: float | None
  evaluate: float | None
  rough: bool

  @property
  def hours(self) -> float | None:
    return None if self.train is None or self.evaluate is None else self.train + self.evaluate


def estimate(config: Any, of: cost.Cost, kept: Sequence[Row], where: str) -> Estimate:
  """Hours of training and of evaluation on the hardware `where`."""
  train, test = rate("train", config, kept, where), rate("evaluate", config, kept, where)
  hours = lambda flops, speed: None if flops is None or speed is None else flops / speed.flops / 3600
  rough = not (train and train.exact and test and test.exact)
  return Estimate(hours(of.train_flops, train), hours(of.eval_flops, test), rough)


def memory() -> float | None:
  """Bytes of main memory of this machine; None for a GPU, which only its driver could tell, or where it is not said."""
  from posx.study import slots

  if slots.gpus():
    return None
  try:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
  except (ValueError, OSError):
    return None
