"""The probes by name, each a frozen dataclass whose fields are its settings: what a configuration of a probe consists of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from posx.errors import UserError, unknown
from posx.fields import coerce, fields


@dataclasses.dataclass(frozen=True)
class Probe:
  """What is measured on a trained run. `measure` returns (rows for the table, arrays to keep, figure).

  Class attributes:
    name: as in a configuration.
    text: whether it reads documents, which a run of a task has not.
  """

  name: ClassVar[str]
  text: ClassVar[bool] = True

  def measure(self, subject: Any) -> tuple[list[dict[str, Any]], Mapping[str, Any], Any]:
    """Reads the run; nothing is written."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Passkey(Probe):
  """A key written into a text and asked for at its end, by length of the window and depth of the key; or a pair of task:recall."""

  name: ClassVar = "passkey"
  text: ClassVar = False

  lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
  depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
  documents: int = 8
  facts: int = 1
  seed: int = 0

  def measure(self, subject: Any) -> tuple[list[dict[str, Any]], Mapping[str, Any], Any]:
    from posx.evaluation import retrieval
    from posx.study import heat

    rows = retrieval.evaluate(subject, **dataclasses.asdict(self))
    return rows, {}, heat.retrieval(rows)


@dataclasses.dataclass(frozen=True)
class Recall(Passkey):
  """One key asked for among those of other names."""

  name: ClassVar = "recall"

  facts: int = 4


@dataclasses.dataclass(frozen=True)
class Traced(Probe):
  """A probe that is the function of its name in `posx.evaluation.probes`, drawn by that of `posx.study.traces`."""

  def measure(self, subject: Any) -> tuple[list[dict[str, Any]], Mapping[str, Any], Any]:
    from posx.evaluation import probes
    from posx.study import traces

    found = getattr(probes, self.name)(subject, **dataclasses.asdict(self))
    return [], found, getattr(traces, self.name)(found, subject.label, subject.train_length)


@dataclasses.dataclass(frozen=True)
class Attention(Traced):
  """How far away, how evenly, and how much at the first token attention looks, by length of the window."""

  name: ClassVar = "attention"

  lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
  documents: int = 4
  queries: int = 64


@dataclasses.dataclass(frozen=True)
class Receptive(Traced):
  """How much a loss depends on the input so many tokens before it."""

  name: ClassVar = "receptive"

  length: int = 2048
  documents: int = 4
  targets: int = 4


@dataclasses.dataclass(frozen=True)
class Kernels(Traced):
  """What the encoding has learned to add to the scores, by distance."""

  name: ClassVar = "kernels"
  text: ClassVar = False

  lengths: tuple[int, ...] = (512, 4096)


PROBES: dict[str, type[Probe]] = {cls.name: cls for cls in (Passkey, Recall, Attention, Receptive, Kernels)}


def default(name: str) -> Probe:
  """The probe of that name with its defaults.

  Raises:
    UserError: if there is none; lists the known ones.
  """
  if name not in PROBES:
    raise UserError(unknown("probe", name, PROBES))
  return PROBES[name]()


def override(probe: Probe, overrides: Iterable[str]) -> Probe:
  """The probe with fields set, e.g. ['lengths=512,1024', 'documents=2'].

  Raises:
    UserError: for an unknown field (lists the known ones) or a value that does not fit.
  """
  known, changed = fields(type(probe)), {}
  for text in overrides:
    name, _, value = text.partition("=")
    if name not in known:
      raise UserError(unknown(f"field of probe {probe.name!r}", name, known))
    changed[name] = coerce(f"config.{name}", value, known[name][0])
  made = dataclasses.replace(probe, **changed)
  for name in known:
    value = getattr(made, name)
    if name != "seed" and name != "depths" and (not value or min(value if isinstance(value, tuple) else (value,)) < 1):
      raise UserError(f"config.{name} must be positive, got {value}")
  return made


def write(probe: Probe, subject: Any, output: Path) -> list[Path]:
  """Measures; writes rows to results.jsonl, arrays to probes/ and the figure to figures/ of the output folder."""
  import numpy as np

  from posx.study import figures, results

  rows, arrays, figure = probe.measure(subject)
  extension = f"-{type(subject.extension).name}" if subject.extension is not None else ""
  name = f"{probe.name}-{subject.workdir.resolve().name}{extension}"
  written = []
  if rows:
    results.append(output / results.FILE, rows)
    written.append(output / results.FILE)
  if arrays:
    (output / "probes").mkdir(parents=True, exist_ok=True)
    np.savez(output / "probes" / f"{name}.npz", **arrays)
    written.append(output / "probes" / f"{name}.npz")
  return [*written, *figures.save(figure, output / "figures" / name)]
