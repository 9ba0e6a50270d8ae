"""What a training run tells the person who watches it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

from posx.checkpoint import path_text
from posx.config import ConfigDict, encoding
from posx.training import optimiser


def duration(seconds: float) -> str:
  """'45 s', '3 min 20 s', '2 h 05 min'."""
  whole = round(seconds)
  if whole < 60:
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
  if whole < 3600:
    return f"{whole // 60} min {whole % 60:02} s"
  return f"{whole // 3600} h {whole // 60 % 60:02} min"


def summary(params: Any, config: ConfigDict, folder: Any, start: int) -> str:
  """The lines before the first step: where, what, how many parameters, what decays, on which devices."""
  train = config.train
  sizes = [(path_text(path), leaf.size) for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]]
  total = sum(size for _, size in sizes)
  own = sum(size for path, size in sizes if optimiser.of_encoding(path.split("/")))
  decayed: dict[bool, list[str]] = {True: [], False: []}
  for path, _ in sizes:
    decayed[optimiser.decays(path.split("/"))].append(path.removeprefix("params/"))
  devices = jax.devices()
  lines = {
    "run": f"{folder} ({f'resumed after step {start}' if start else 'new'})",
    "encoding": repr(encoding(config)),
    "parameters": f"{total:,}, of which {own:,} ({own / total:.2%}) belong to the encoding",
    f"decay {train.weight_decay:g}": ", ".join(decayed[True]) or "nothing",
    "no decay": ", ".join(decayed[False]) or "nothing",
    "devices": f"{len(devices)} x {devices[0].device_kind}, {config.model.dtype}",
    "steps": f"{train.steps:,} of {train.batch_size * train.length:,} tokens",
  }
  return "\n".join(f"{name:<11}{text}" for name, text in lines.items())


class Progress:
  """A bar on a terminal, else a line every `log_every` steps; times the steps after the first, which may still warm up."""

  def __init__(self, config: ConfigDict, start: int):
    self._train, self._start, self._first, self._last = config.train, start, 0, 0
    self._clock = self._seconds = 0.0
    self._told = False
    self._bar: Any = None
    if sys.stderr.isatty():
      from tqdm import tqdm

      self._bar = tqdm(total=self._train.steps, initial=start, unit="step", dynamic_ncols=True)

  def timed(self) -> tuple[int, float]:
    """(steps since the first finished one, the seconds they took)."""
    return max(self._last - self._first, 0), self._seconds

  def speed(self, step: int) -> float | None:
    """Tokens per second since the first finished step; None before there is a second."""
    if not self._first or step <= self._first:
      return None
    return (step - self._first) * self._train.batch_size * self._train.length / (time.perf_counter() - self._clock)

  def remaining(self, step: int) -> float | None:
    """Seconds to the last step at that speed."""
    speed = self.speed(step)
    return speed and (self._train.steps - step) * self._train.batch_size * self._train.length / speed

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """What happens inside (a checkpoint, a validation) does not count as training time."""
    began = time.perf_counter()
    yield
    self._clock += time.perf_counter() - began

  def advance(self, step: int, loss: float) -> None:
    """Notes that `step` is done."""
    if not self._first:
      self._first, self._clock = step, time.perf_counter()
    self._last, self._seconds = step, time.perf_counter() - self._clock
    if self._bar is not None:
      self._bar.update(step - self._bar.n)
      self._bar.set_postfix_str(f"loss {loss:.3f}, {self.speed(step) or 0:,.0f} tokens/s", refresh=False)
    if not self._told and step - self._first >= min(10, max(self._train.steps - self._start - 2, 1)):
      self._told = True
      self.say(f"{self.speed(step):,.0f} tokens/s; about {duration(self.remaining(step) or 0)} to go")

  def log(self, step: int, values: dict[str, float]) -> None:
    """The plain line, where there is no bar."""
    if self._bar is None:
      speed, left = self.speed(step), self.remaining(step)
      pace = f"  {speed:,.0f} tokens/s  {duration(left or 0)} to go" if speed else ""
      print(f"step {step}/{self._train.steps}  " + "  ".join(f"{name} {value:.4g}" for name, value in values.items()) + pace, flush=True)

  def say(self, text: str) -> None:
    """A line that does not break the bar."""
    if self._bar is not None:
      self._bar.write(text)
    else:
      print(text, flush=True)

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()
