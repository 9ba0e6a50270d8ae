"""Tables and figures of answers that are known: exact match against length on a task, recall against depth and length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from posx.study import figures, heat, results, series, table
from posx.study.results import Row
from posx.study.series import Series

_MEASURES = {"exact": "answers that are right as a whole", "accuracy": "tokens of the answer that are right"}


def report(rows: Sequence[Row], folder: Path, width: int) -> tuple[list[list[table.Cell]], list[Path]]:
  """(lines of text, files written) for the rows of `results.OF_ANSWERS` among rows; figures go to `folder`."""
  lines: list[list[table.Cell]] = []
  written: list[Path] = []
  tasks = results.select(rows, protocol="task")
  for data, split in dict.fromkeys((row["data"], row["split"]) for row in tasks):
    mine = results.select(tasks, data=data, split=split)
    for measure in _MEASURES:
      curves = shares(mine, measure)
      if any(c.points for c in curves):
        title = f"{data} ({split}): {_MEASURES[measure]}; {_span(mine)} instances of each length"
        lines += [[(title, "")], [], *table.layout(_grid(curves, measure), width), []]
        name = f"{measure}-{data}-{split}".replace(":", "-").replace("/", "_")
        written += figures.save(figures.share(curves, title, _MEASURES[measure]), folder / name)
  for protocol in ("passkey", "recall"):
    for (run, extension), mine in _by_run(results.select(rows, protocol=protocol)).items():
      name = f"{protocol}-{run}-{extension}".strip("-").replace("/", "_")
      written += figures.save(heat.retrieval(mine), folder / name)
  return lines, written


def shares(rows: Sequence[Row], measure: str) -> list[Series]:
  """The curves of a share in 0 .. 1, which stands in `loss` of their points; its error over instances is that of a proportion."""
  made = []
  for row in rows:
    if row.get(measure) is not None:
      share, n = row[measure], max(1, row["documents"])
      row = {**row, "loss": share, "stderr": math.sqrt(share * (1 - share) / n)}
      row.pop("document_losses", None)
    made.append(row)
  return series.curves([row for row in made if row["loss"] is not None])


def _grid(curves: Sequence[Series], measure: str) -> list[list[table.Cell]]:
  lengths = sorted({length for c in curves for length in c.points})
  lines = [[(measure, "head"), *((series.tag(n), "head") for n in lengths)]]
  for c in curves:
    found = [c.points.get(n) for n in lengths]
    lines.append([(c.label, ""), *((f"{p.loss:.1%}", "") if p and p.loss is not None else ("-", "dim") for p in found)])
  return lines


def _by_run(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
  groups: dict[tuple[str, str], list[Row]] = {}
  for row in rows:
    groups.setdefault((row["run"], row["extension"]), []).append(row)
  return groups


def _span(rows: Sequence[Row]) -> str:
  counts = sorted({row["documents"] for row in rows})
  return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
