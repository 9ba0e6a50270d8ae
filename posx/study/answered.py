"""Tables and figures of answers that are known: exact match against length on a task, recall against depth and length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def grids(rows: Sequence[Row]) -> list[dict[str, Any]]:
  """The same as plain data, a table each: title, what its rows and columns are, rows of (name, values); `share` for values in 0 .. 1."""
  made = []
  tasks = results.select(rows, protocol="task")
  for data, split in dict.fromkeys((row["data"], row["split"]) for row in tasks):
    for measure, meaning in _MEASURES.items():
      curves = [c for c in shares(results.select(tasks, data=data, split=split), measure) if c.points]
      lengths = sorted({length for c in curves for length in c.points})
      values = [(c.label, [c.points[n].loss if n in c.points else None for n in lengths]) for c in curves]
      made += [_plain(f"{data} ({split}): {meaning}", "curve", lengths, values, share=True)] if curves else []
  for protocol in ("passkey", "recall"):
    for (run, extension), mine in _by_run(results.select(rows, protocol=protocol)).items():
      lengths, depths, accuracy = heat.grid(mine, "accuracy")
      name = f"{protocol}, {run}" + (f" + {extension}" if extension else "")
      for what, values in (("the key's tokens that come first", accuracy), ("bits a token gains over a wrong key", heat.gained(mine))):
        lines = [(f"{depth:g}", line) for depth, line in zip(depths, values, strict=True)]
        made.append(_plain(f"{name}: {what}", "depth of the key", lengths, lines, share=values is accuracy))
  return made


def _plain(title: str, corner: str, lengths: Sequence[int], lines: Sequence[tuple[str, Sequence[Any]]], share: bool) -> dict[str, Any]:
  rows = [{"name": name, "values": list(values)} for name, values in lines]
  return {"title": title, "corner": corner, "columns": [series.tag(n) for n in lengths], "rows": rows, "share": share}


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
