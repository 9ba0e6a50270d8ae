"""The comparison as text: curves by lengths, the best of each length marked, controls dimmed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from posx.study import results
from posx.study.points import Point
from posx.study.results import Row
from posx.study.series import Series, tag

Cell = tuple[str, str]
"""A text and its style: '', 'bold', 'dim' or 'head'."""

_GAP = "  "


def number(value: float | None, note: str = "") -> str:
  """A perplexity in few characters; what has no number says why in a word.

  Example:
    >>> [number(v) for v in (3.14159, 131.24, 6674.4, 2.5e7, float("inf"))], number(None, "nan in the logits")
    (['3.14', '131.2', '6,674', '2.5e+07', 'overflow'], 'nan')
  """
  if value is None:
    return next((word for word in ("nan", "overflow", "inf") if word in note.lower()), "n/a")
  if math.isinf(value):
    return "overflow"
  return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def caption(rows: Sequence[Row], protocol: str, curves: Sequence[Series]) -> list[str]:
  """What the numbers are: protocol, targets, text, training length, seeds; warnings where they do not compare."""
  points = [p for c in curves for p in c.points.values()]
  tokens, documents = (sorted({getattr(p, name) for p in points}) for name in ("tokens", "documents"))
  trained = sorted({c.train_length for c in curves})
  seeds = max(p.seeds for p in points)
  text = (
    f"perplexity, {describe(protocol)}; {_span(tokens)} targets in {_span(documents)} documents of {rows[0]['data']} ({rows[0]['split']})"
  )
  lines = [f"{text}; trained at {', '.join(map(tag, trained))}; ± standard error over {'seeds' if seeds > 1 else 'documents'}"]
  if len({row["target_hash"] for row in rows}) > 1:
    lines.append("CAUTION: not all rows score the same targets; compare only within a column, and see target_hash")
  counts = {p.seeds for c in curves if not c.control for p in c.points.values()}
  if len(counts) > 1:
    lines.append(
      f"CAUTION: from {min(counts)} to {max(counts)} seeds a number; those of fewer seeds show the error over their documents or seeds"
    )
  return lines


def describe(protocol: str) -> str:
  """A protocol in words."""
  name, _, count = protocol.partition(":")
  return {
    "nonoverlapping": "non-overlapping windows",
    "sliding": f"sliding window, stride {count}",
    "last_k": f"last {count} tokens of each window",
  }[name]


def _span(values: Sequence[int]) -> str:
  return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def best(curves: Sequence[Series], length: int) -> float | None:
  """The lowest loss at a length; controls do not take part."""
  losses = [p.loss for c in curves if not c.control and (p := c.points.get(length)) and p.loss is not None]
  return min(losses, default=None)


def grid(curves: Sequence[Series]) -> list[list[Cell]]:
  """Perplexities, one row a curve; '*' marks the best of each length."""
  lengths = sorted({length for c in curves for length in c.points})
  lowest = {length: best(curves, length) for length in lengths}
  lines = [[("perplexity", "head"), *((tag(length), "head") for length in lengths)]]
  for c in curves:
    lines.append([_label(c, curves), *(_perplexity(c, c.points.get(length), lowest[length]) for length in lengths)])
  return lines


def _label(c: Series, curves: Sequence[Series]) -> Cell:
  if c.control:
    return f"  {c.control} control", "dim"
  # Under its encoding, if that has a line of its own.
  below = c.extension and any(o.family == c.family and not o.extension and not o.control for o in curves)
  return (f"  + {c.extension}" if below else c.label), ""


def _perplexity(c: Series, point: Point | None, lowest: float | None) -> Cell:
  style = "dim" if c.control else ""
  if point is None:
    return "-", "dim"
  text = number(point.perplexity, point.note)
  if point.perplexity is not None and point.stderr is not None and point.perplexity < 1000:
    error = point.perplexity * point.stderr
    text += f" ±{error:.2f}" if error < 10 else f" ±{error:.0f}"
  if not c.control and point.loss is not None and point.loss == lowest:
    return text + "*", "bold"
  return text + " ", style


def ratios(curves: Sequence[Series]) -> list[list[Cell]]:
  """Perplexity relative to the truncation control, for the curves that have it; bold where the longer context helps."""
  rows = [c for c in curves if not c.control and any(p.ratio is not None for p in c.points.values())]
  if not rows:
    return []
  lengths = sorted({length for c in rows for length in c.points})
  lines = [[("ratio to truncation", "head"), *((tag(length), "head") for length in lengths)]]
  for c in rows:
    found = [p.ratio if (p := c.points.get(length)) else None for length in lengths]
    lines.append([_label(c, curves), *(("-", "dim") if r is None else (_ratio(r), "bold" if r < 1 else "") for r in found)])
  return lines


def _ratio(value: float) -> str:
  return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0e}"


def notes(curves: Sequence[Series]) -> list[str]:
  """Why numbers are missing, one line for each reason; reasons that differ in a number alone are one."""
  said: dict[str, tuple[str, list[str]]] = {}
  for c in curves:
    for length, point in c.points.items():
      if point.note:
        said.setdefault(re.sub(r"\d+", "#", point.note), (point.note, []))[1].append(f"{c.label} at {tag(length)}")
  return [f"{', '.join(where)}: {note}" for note, where in said.values()]


def layout(grid: Sequence[Sequence[Cell]], width: int) -> list[list[Cell]]:
  """Lines of aligned cells no wider than `width`: columns that do not fit follow below, under the labels again."""
  if not grid:
    return []
  widths = [max(len(row[i][0]) for row in grid) for i in range(len(grid[0]))]
  blocks: list[list[int]] = [[]]
  room = width - widths[0]
  for column in range(1, len(widths)):
    need = sum(widths[i] + len(_GAP) for i in [*blocks[-1], column])
    if blocks[-1] and need > room:
      blocks.append([])
    blocks[-1].append(column)
  lines: list[list[Cell]] = []
  for number_, block in enumerate(blocks):
    lines += [[]] if number_ else []
    for row in grid:
      label, style = row[0]
      cells = [(f"{_GAP}{row[i][0]:>{widths[i]}}", row[i][1]) for i in block]
      lines.append([(f"{label:<{widths[0]}}", style), *cells])
  return lines


def render(rows: Sequence[Row], protocol: str, curves: Sequence[Series], width: int = 120) -> list[list[Cell]]:
  """The whole comparison: caption, perplexities, ratios, notes."""
  lines: list[list[Cell]] = [[(text, "")] for text in caption(rows, protocol, curves)]
  lines += [[], *layout(grid(curves), width)]
  if table := layout(ratios(curves), width):
    lines += [[], *table, [("below 1 the context beyond the training length helps; above 1 it would be better to forget it", "dim")]]
  lines.append([("* best of its length", "dim")])
  return lines + [[(text, "dim")] for text in notes(curves)]


def plain(lines: Sequence[Sequence[Cell]]) -> str:
  """The lines as text."""
  return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def show(lines: Sequence[Sequence[Cell]]) -> None:
  """Prints the lines, with styles on a terminal."""
  from rich.console import Console
  from rich.text import Text

  styles = {"": "", "bold": "bold green", "dim": "dim", "head": "bold"}
  console = Console(highlight=False, soft_wrap=True)
  for line in lines:
    console.print(Text.assemble(*((text, styles[style]) for text, style in line)))


def texts(rows: Sequence[Row]) -> list[tuple[str, str]]:
  """The (data, split) pairs among rows of losses of a text, each of which gets a table of its own."""
  return list(dict.fromkeys((row["data"], row["split"]) for row in rows if row["protocol"] in results.OF_TEXT))
