"""From rows to a table, figures and files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from posx.errors import UserError
from posx.files import write_atomic
from posx.study import answered, figures, latex, published, ranking, results, series, table
from posx.study.results import Row

_WIDTH = 140  # of the table in a file


def report(
  folders: Sequence[str | os.PathLike],
  output: str | os.PathLike,
  protocol: str = "",
  show: bool = True,
  beside: Sequence[str] = (),
) -> list[Path]:  # fmt: skip
  """Writes table.txt and figures/ under `output`, prints the table, returns the files written.

  Each text (data set and split) has a table and figures of its own.

  Args:
    folders: of studies or runs.
    output: the folder for what is written.
    protocol: as `series.choose` takes it.
    show: whether to print.
    beside: names of published curves that the figure of perplexity shows as well.

  Raises:
    UserError: for a folder that does not exist or has no rows, a protocol that is not there, or a published curve of another one.
  """
  rows = series.read(folders)
  texts, written, pages = table.texts(rows), [], []
  for data, split in texts:
    mine = results.select(rows, data=data, split=split)
    name, chosen = series.choose(mine, protocol)
    curves = series.curves(chosen)
    known = published.curves(published.choose(beside, name))
    if show:
      table.show(_page(mine, chosen, name, curves, shutil.get_terminal_size((_WIDTH, 24)).columns))
      others = [p for p in series.protocols(mine) if p != name]
      print(f"other protocols: {', '.join(others)} (compare --protocol=...)\n" if others else "")
    pages.append(table.plain(_page(mine, chosen, name, curves, _WIDTH)))
    suffix = "" if len(texts) == 1 else f"-{data}-{split}".replace("/", "_")
    written += _figures(mine, chosen, name, curves, known, Path(output) / "figures", suffix)
  lines, more = answered.report(rows, Path(output) / "figures", _WIDTH)
  written += more
  if lines:
    pages.append(table.plain(lines))
    if show:
      table.show(lines)
  Path(output).mkdir(parents=True, exist_ok=True)
  write_atomic(Path(output) / "table.txt", "\n".join(pages))
  return [Path(output) / "table.txt", *written]


def _page(rows: Sequence[Row], chosen: Sequence[Row], name: str, curves: Sequence[series.Series], width: int) -> list[list[table.Cell]]:
  """The table, the ranking, and where other protocols would rank otherwise."""
  lines = table.render(chosen, name, curves, width)
  ranked = ranking.lines(curves, width)
  lines += [[], *ranked] if ranked else []
  others = {p: curves if p == name else series.curves(series.choose(rows, p)[1]) for p in series.protocols(rows)}
  if len(others) > 1 and ranked:
    found = ranking.disagreements(others)
    lines += [[], *[[(f"protocols disagree: {text}", "")] for text in found]]
    lines += [] if found else [[(f"no two protocols ({', '.join(others)}) put a pair in opposite order", "dim")]]
  return lines


def write_latex(path: str | os.PathLike, rows: Sequence[Row], protocol: str = "") -> None:
  """Writes the tables of `report` for a LaTeX document, one for each text.

  Raises:
    UserError: for a protocol that is not there.
  """
  made = []
  for data, split in table.texts(rows):
    name, chosen = series.choose(results.select(rows, data=data, split=split), protocol)
    curves = series.curves(chosen)
    made.append(latex.render(curves, table.caption(chosen, name, curves), f"tab:{data}-{split}"))
  write_text(path, "\n".join(made))


def write_text(path: str | os.PathLike, text: str) -> None:
  """Writes a file in one step, and its folder if need be.

  Raises:
    UserError: if it cannot be written.
  """
  try:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomic(Path(path), text)
  except OSError as error:
    raise UserError(f"{path} cannot be written: {error.strerror or error}; give another file") from error


def _figures(
  rows: Sequence[Row],
  chosen: Sequence[Row],
  name: str,
  curves: Sequence[series.Series],
  known: Sequence[series.Series],
  folder: Path,
  suffix: str,
) -> list[Path]:  # fmt: skip
  written: list[Path] = []
  if any(p.loss is not None for c in curves for p in c.points.values()):
    title = table.caption(chosen, name, curves)[0]
    written += figures.save(figures.perplexity([*curves, *known], title), folder / f"perplexity{suffix}")
  buckets = [row for row in results.select(rows, protocol="bucket") if row["loss"] is not None]
  if buckets:
    longest = max(row["length"] for row in buckets)
    at = series.curves(results.select(buckets, length=longest), rows)
    title = f"loss by position in windows of {longest:,} tokens; {buckets[0]['data']} ({buckets[0]['split']})"
    written += figures.save(figures.position(at, title), folder / f"position{suffix}")
  return written
