"""Curves from rows: seeds averaged in loss, runs that differ in anything else kept apart."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from posx.errors import UserError
from posx.study import names, results, sweep
from posx.study.points import Point, average
from posx.study.results import Row

VARIANT = "_variant"  # what was trained, up to the seed
LABEL = "_label"  # what the curve of it is called
FOLDER = "_folder"  # of the run: what was trained, and how; '' if that is not beside the results


@dataclasses.dataclass(frozen=True)
class Series:
  """One curve. `points` is by length, or by (start, end) of position buckets; `label` is 'rope', 'rope + yarn' ..."""

  family: str
  extension: str
  control: str
  train_length: int
  points: dict[Any, Point]

  @property
  def label(self) -> str:
    if self.control:
      return f"{self.family}, {self.control}"
    return f"{self.family} + {self.extension}" if self.extension else self.family


# Reading.


def read(folders: Sequence[str | os.PathLike]) -> list[Row]:
  """Rows of many study or run folders, merged; each row knows what was trained (`_variant`), under which label, and where.

  Runs of the same name but with other settings in two folders are different runs and get their folder's name in front.

  Raises:
    UserError: if a folder does not exist or has no rows.
  """
  settings: dict[str, dict[str, Any] | None] = {}
  rows: list[Row] = []
  for folder in folders:
    rows += _read_folder(Path(folder), settings)
  rows = results.merge(rows)
  labels = _labels(rows, settings)
  drawn = lambda row: f" ({row['positions']} positions)" if row.get("positions") else ""
  return [{**row, VARIANT: labels[row["run"]][0] + drawn(row), LABEL: labels[row["run"]][1] + drawn(row)} for row in rows]


def _read_folder(folder: Path, settings: dict[str, dict[str, Any] | None]) -> list[Row]:
  if not folder.exists():
    raise UserError(f"no such folder: {folder}; give the --workdir of a sweep or of a run")
  rows = results.merge(row for path in results.files(folder) for row in _read_file(path, folder))
  if not rows:
    raise UserError(f"no results in {folder}: a sweep or run folder has {results.FILE} once an evaluation is done")
  for row in rows:
    results.validate(row)
  # Rows come in the order in which runs ended; a study shows them in that of its file.
  order = {name: place for place, name in enumerate(sweep.read_known(folder).values())} if folder.is_dir() else {}
  rows.sort(key=lambda row: order.get(row["run"], len(order)))
  renamed, homes = {}, {}
  for run in results.values(rows, "run"):
    homes[run] = _home(folder, run)
    mine = _settings(homes[run])
    renamed[run] = run if run not in settings or (mine is not None and settings[run] == mine) else f"{folder.name}/{run}"
    settings[renamed[run]] = mine
  return [{**row, "run": renamed[row["run"]], FOLDER: str(homes[row["run"]] or "")} for row in rows]


def _read_file(path: Path, study: Path) -> list[Row]:
  """The rows of a file; those in a run folder of the study are named after that folder, whatever the run called itself."""
  rows = results.read_file(path)
  return [{**row, "run": path.parent.name} for row in rows] if path.parent.parent == study / "runs" else rows


def _home(folder: Path, run: str) -> Path | None:
  """The folder of a run in that of its study, or that folder itself; None if there is no resolved config."""
  folder = folder.parent if folder.is_file() else folder
  return next((home for home in (folder / "runs" / run, folder) if (home / "config.json").is_file()), None)


def _settings(home: Path | None) -> dict[str, Any] | None:
  """What was trained, from the run's resolved config; None if it is not beside the results."""
  return None if home is None else names.without(names.flatten(json.loads((home / "config.json").read_text())), "eval")


def _labels(rows: Sequence[Row], settings: dict[str, dict[str, Any] | None]) -> dict[str, tuple[str, str]]:
  """run -> (variant, label): the encoding if all its runs differ by seed only, else what differs."""
  seeds = {row["run"]: row["seed"] for row in rows}
  encodings = {row["run"]: row["encoding"] for row in rows}
  variants: dict[str, str] = {}
  members: dict[tuple[str, Any], str] = {}
  for run in seeds:
    mine = settings.get(run)
    variant = run if mine is None else names.digest(names.without(mine, "seed"))
    # Two runs of one seed are no replicas, whatever the reason.
    variants[run] = variant if members.setdefault((variant, seeds[run]), run) == run else f"{variant} {run}"
  of_encoding = defaultdict(list)
  for run, variant in variants.items():
    of_encoding[encodings[run]].append(variant)
  spelled = _spelled(variants, settings)
  return {r: (v, encodings[r] if len(set(of_encoding[encodings[r]])) == 1 else spelled.get(v, r)) for r, v in variants.items()}


def _spelled(variants: dict[str, str], settings: dict[str, dict[str, Any] | None]) -> dict[str, str]:
  """variant -> name from the settings in which it differs, for variants whose settings are known."""
  flats = {v: names.without(mine, "seed") for run, v in variants.items() if (mine := settings.get(run)) is not None and " " not in v}
  return dict(zip(flats, names.names(list(flats.values())), strict=True))


# Which rows.

_WHOLE = tuple(name for name in results.OF_TEXT if name != "bucket")


def choose(rows: Sequence[Row], protocol: str = "") -> tuple[str, list[Row]]:
  """The rows of one protocol, 'sliding' or with its number 'sliding:256', 'last_k:64'; '' is the first there is.

  Raises:
    UserError: if there are none, or several of different stride or k; lists what there is.
  """
  spelled = protocols(rows)
  if not spelled:
    raise UserError("there are no rows of a protocol over whole windows, only position buckets")
  name, colon, _ = (protocol or spelled[0]).partition(":")
  fitting = [s for s in spelled if s == (protocol or spelled[0]) or (not colon and s.partition(":")[0] == name)]
  if not fitting:
    raise UserError(f"no rows of protocol {protocol!r}; present: {', '.join(spelled)}")
  if len(fitting) > 1 and protocol:
    raise UserError(f"protocol {name} is there with several numbers; choose one of {', '.join(fitting)}")
  return fitting[0], [row for row in rows if _spelling(row) == fitting[0]]


def protocols(rows: Iterable[Row]) -> list[str]:
  """The protocols over whole windows among the rows, as `choose` takes them."""
  found = sorted({(results.PROTOCOLS.index(row["protocol"]), _count(row), _spelling(row)) for row in rows if row["protocol"] in _WHOLE})
  return [spelling for _, _, spelling in found]


def _count(row: Row) -> int:
  """The number that belongs to the protocol; windows that do not overlap have none of their own."""
  return {"sliding": row.get("stride"), "last_k": row.get("k")}.get(row["protocol"]) or 0


def _spelling(row: Row) -> str:
  return f"{row['protocol']}:{_count(row)}" if _count(row) else row["protocol"]


# Curves.


def curves(rows: Iterable[Row], among: Iterable[Row] = ()) -> list[Series]:
  """The curves of rows of one protocol over one text: each encoding, then its extensions, then its controls.

  An extension whose factor follows the length is one curve; each fixed factor is another, 'yarn:8'. Which is which shows
  at several lengths only: where `rows` are of one, `among` are those of all.
  """
  groups: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
  rows, among = list(rows), list(among)
  wider = _by_variant(among or rows)
  for variant, mine in _by_variant(rows).items():
    for control in results.CONTROLS:
      for extension in results.values(mine, "extension"):
        kin = results.select(wider[variant], extension=extension)
        for label, part in _by_factor(results.select(mine, extension=extension, control=control), kin).items():
          groups[mine[0][LABEL], variant, control, label] += part
  order = {variant: place for place, variant in enumerate(results.values(rows, VARIANT))}
  made = sorted(groups.items(), key=lambda item: (order[item[0][1]], results.CONTROLS.index(item[0][2]), item[0][3] != ""))
  return [_series(label, extension, control, part) for (label, _, control, extension), part in made if part]


def _by_variant(rows: Iterable[Row]) -> dict[str, list[Row]]:
  groups: dict[str, list[Row]] = defaultdict(list)
  for row in rows:
    groups[row[VARIANT]].append(row)
  return groups


def _by_factor(rows: Sequence[Row], among: Sequence[Row]) -> dict[str, list[Row]]:
  """label of the extension -> its rows. A factor seen at a length that it does not fit exactly is a fixed one."""

  def follows(row: Row) -> bool:
    original = row.get("original_length") or row["train_length"]
    return row.get("factor") is None or math.isclose(row["factor"], max(1.0, row["length"] / original), rel_tol=1e-6)

  name = rows[0]["extension"] if rows else ""
  if not name or ":" in name:
    return {name: list(rows)}
  fixed = list(dict.fromkeys(row["factor"] for row in among if not follows(row)))
  parts = {}
  if any(follows(row) and row.get("factor") not in fixed for row in among):
    parts[name] = [row for row in rows if follows(row)]
  return {**parts, **{f"{name}:{factor:g}": results.select(rows, factor=factor) for factor in fixed}}


def _series(family: str, extension: str, control: str, rows: Sequence[Row]) -> Series:
  at: dict[Any, list[Row]] = defaultdict(list)
  for row in rows:
    at[results.bucket(row) if row["protocol"] == "bucket" else row["length"]].append(row)
  return Series(family, extension, control, rows[0]["train_length"], {where: average(at[where]) for where in sorted(at)})


def tag(length: int) -> str:
  """A length as on the axes.

  Example:
    >>> [tag(n) for n in (512, 1024, 1536, 5512, 32768, 1048576)]
    ['512', '1K', '1.5K', '5512', '32K', '1M']
  """
  for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
    if length >= unit and (length * 2) % unit == 0:
      return f"{length / unit:g}{name}"
  return str(length)
