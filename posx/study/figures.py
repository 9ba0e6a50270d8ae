"""Figures of a study, as PNG and SVG: perplexity and right answers against length, loss against position."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posx.study.looks import Look, looks
from posx.study.series import Series, tag
from posx.study.table import number

_GREY = "#555555"
_TALLEST = 20.0  # times the lowest curve; what rises above leaves through the top edge, with its number


def perplexity(curves: Sequence[Series], title: str) -> Any:
  """Perplexity against length, both logarithmic: the encodings as trained and, beside them, under their extensions.

  Controls are faint and dashed in the colour of their encoding, bands are one standard error, the vertical line is the
  training length.
  """
  return _draw(curves, title, "tokens in the window", "perplexity", _perplexities, log=True)


def position(curves: Sequence[Series], title: str) -> Any:
  """Bits per byte (per token, where bytes are not known) against the position in the longest windows."""
  bits = all(p.bits is not None for c in curves for p in c.points.values() if p.loss is not None)
  unit = "bits per byte" if bits else "bits per token"

  def values(c: Series) -> list[tuple[float, float, float]]:
    found = []
    for (a, b), p in c.points.items():
      if p.loss is not None:
        scale = p.bits / p.loss if bits and p.bits is not None and p.loss else 1 / math.log(2)
        found.append(((a + b) / 2, p.loss * scale, (p.stderr or 0) * scale))
    return found

  return _draw(curves, title, "position in the window", unit, lambda c: [(x, y, y - e, y + e) for x, y, e in values(c)], log=False)


def share(curves: Sequence[Series], title: str, ylabel: str) -> Any:
  """A share from 0 to 1, given as the `loss` of the curves' points, against length; bands are one standard error."""

  def values(c: Series) -> list[tuple[float, float, float, float]]:
    return [(n, p.loss, p.loss - (p.stderr or 0), p.loss + (p.stderr or 0)) for n, p in c.points.items() if p.loss is not None]

  return _draw(curves, title, "tokens in the window", ylabel, values, log=False, limits=(-0.03, 1.03))


def _perplexities(c: Series) -> list[tuple[float, float, float, float]]:
  """(length, perplexity, lower, upper) where there is a number."""
  found = [(length, p.perplexity, p.stderr or 0) for length, p in c.points.items() if p.perplexity is not None]
  return [(n, y, y * math.exp(-e), y * math.exp(e)) for n, y, e in found if math.isfinite(y)]


Values = Callable[[Series], list[tuple[float, float, float, float]]]


def _draw(curves: Sequence[Series], title: str, xlabel: str, ylabel: str, values: Values, log: bool, limits: tuple | None = None) -> Any:
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  drawn = [(c, look, points) for c, look in zip(curves, looks(curves), strict=True) if (points := values(c))]
  extended = {c.family for c, _, _ in drawn if c.extension}
  plain = [d for d in drawn if not d[0].extension]
  panels = [("as trained", plain, [])]
  if extended:
    # What an extension is to be compared with stands beside it.
    panels.append(
      ("with a context extension", [d for d in drawn if d[0].extension], [d for d in plain if d[0].family in extended and not d[0].control])
    )
  margins = [_margin([c for c, _, _ in main if not c.control]) for _, main, _ in panels]
  figure = Figure(figsize=(sum(margins) + (_PANEL + _LEFT) * len(panels), 4.6), dpi=150, facecolor="white")
  FigureCanvasAgg(figure)
  axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  limits = limits or _limits([d[2] for d in drawn if not d[0].control], log)
  everywhere = [x for _, _, points in drawn for x, *_ in points]
  for axis, (name, main, faint) in zip(axes, panels, strict=True):
    _panel(axis, everywhere, limits, log)
    _train_lines(axis, [c for c, _, _ in main + faint])
    for c, look, points in main:
      _curve(axis, c, look, points)
    for c, look, points in faint:
      _curve(axis, c, look, points, faint=True)
    _labels(axis, [d for d in main if not d[0].control], limits, log)
    axis.set_title(name if extended else "", loc="left", fontsize=9.5, color=_GREY)
    axis.set_xlabel(xlabel)
  axes[0].set_ylabel(ylabel)
  remarks = [_CONTROLS] if any(c.control for c, _, _ in drawn) else []
  remarks += [_FAINT] if extended else []
  _arrange(figure, axes, margins, title, "; ".join(remarks))
  return figure


_PANEL, _LEFT = 4.1, 0.62  # inches: a panel's width, what its scale needs


def _arrange(figure: Any, axes: Sequence[Any], margins: Sequence[float], title: str, remarks: str) -> None:
  """Places title, panels and remarks; texts are broken to the width of the figure."""
  width = figure.get_figwidth()
  above, below = (textwrap.wrap(text, int((width - 0.2) / size)) for text, size in ((title, 0.086), (remarks, 0.06)))
  top, bottom = 0.5 + 0.19 * len(above), 0.58 + 0.13 * len(below)
  height = 3.3 + top + bottom
  figure.set_figheight(height)
  figure.text(0.12 / width, 1 - 0.1 / height, "\n".join(above), fontsize=10.5, va="top")
  figure.text(0.12 / width, 0.08 / height, "\n".join(below), fontsize=7.5, color=_GREY, va="bottom")
  for i, axis in enumerate(axes):
    left = sum(margins[:i]) + i * _PANEL + _LEFT * (i + 1)
    axis.set_position((left / width, bottom / height, _PANEL / width, 3.3 / height))


_CONTROLS = (
  "faint: controls with the same weights (dashed: only the last tokens, as many as trained on; dotted: attention windowed to them)"
)
_FAINT = "thin: the same encoding as trained"


def _margin(curves: Sequence[Series]) -> float:
  """Inches that the names right of a panel need."""
  return 0.6 + 0.066 * max((len(c.label) + 3 for c in curves), default=0)


def _limits(curves: Sequence[Sequence[tuple[float, float, float, float]]], log: bool) -> tuple[float, float]:
  """The vertical range: all of it with the bands, unless the worst curve or a band is so far away that the others would be flat."""
  ys = [y for points in curves for _, y, _, _ in points]
  low, high = min(ys), max(ys)
  if log:
    # Not to cut a curve just above the limit.
    top = max(y for y in ys if y <= 1.5 * _TALLEST * low) if high > 2 * _TALLEST * low else high
    first, last = _banded(curves, top)
    low, top = max(min(low, first), low / 1.5), min(max(top, last), 1.5 * top)
    pad = (top / low) ** 0.06 if top > low else 1.1
    return low / pad, top * pad
  middle = sorted(max(y for _, y, _, _ in points) for points in curves)[len(curves) // 2]
  top = min(high, low + 2.5 * max(middle - low, 0.2 * low))
  first, last = _banded(curves, top)
  reach = max(top - low, 0.2 * low)
  low, top = max(min(low, first), low - reach), min(max(top, last), top + reach)
  pad = 0.06 * (top - low) or 0.1
  return low - pad, top + pad


def _banded(curves: Sequence[Sequence[tuple[float, float, float, float]]], top: float) -> tuple[float, float]:
  """The ends of the bands of all points up to `top`."""
  shown = [(low, high) for points in curves for _, y, low, high in points if y <= top]
  return min(low for low, _ in shown), max(high for _, high in shown)


def _panel(axis: Any, xs: Sequence[float], limits: tuple[float, float], log: bool) -> None:
  from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

  axis.set_xscale("log", base=2)
  axis.set_xlim(min(xs) / 1.12, max(xs) * 1.12)
  first, last = math.ceil(math.log2(min(xs))), math.floor(math.log2(max(xs)))
  axis.xaxis.set_major_locator(FixedLocator([2.0**e for e in range(first, last + 1)] or sorted(set(xs))))
  axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tag(round(x))))
  axis.xaxis.set_minor_locator(NullLocator())
  if log:
    axis.set_yscale("log")
    subs = (1, 2, 5) if limits[1] / limits[0] > 30 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    axis.yaxis.set_major_locator(LogLocator(subs=subs, numticks=30))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
  axis.set_ylim(*limits)
  axis.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
  axis.set_axisbelow(True)
  axis.tick_params(labelsize=8.5, labelleft=True, length=3, color="#999999")
  for side in ("top", "right"):
    axis.spines[side].set_visible(False)
  for side in ("left", "bottom"):
    axis.spines[side].set_color("#999999")


def _train_lines(axis: Any, curves: Sequence[Series]) -> None:
  for length in sorted({c.train_length for c in curves}):
    axis.axvline(length, color=_GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1, label="_train")
    text = f"trained at {tag(length)} "
    axis.text(length * 1.03, 1.0, text, transform=axis.get_xaxis_transform(), fontsize=7.5, color=_GREY, va="top", ha="left", rotation=90)


def _curve(axis: Any, c: Series, look: Look, points: Sequence[tuple[float, float, float, float]], faint: bool = False) -> None:
  x, y, low, high = (list(column) for column in zip(*points, strict=True))
  if c.control:
    dashes = (0, (4, 2)) if c.control == "truncate" else (0, (1, 1.5))
    axis.plot(x, y, color=look.colour, linestyle=dashes, linewidth=0.8, alpha=0.45, zorder=2, label=c.label)
    return
  if faint:
    axis.plot(x, y, color=look.colour, linewidth=1.0, alpha=0.4, zorder=2, label=f"_{c.label}")
    return
  axis.fill_between(x, low, high, color=look.colour, alpha=0.13, linewidth=0, zorder=2)
  axis.plot(x, y, color=look.colour, linestyle=look.dashes, linewidth=1.6, marker=look.marker, markersize=4.5,
            markeredgecolor="white", markeredgewidth=0.5, zorder=3, label=c.label)  # fmt: skip


def _labels(axis: Any, drawn: Sequence[tuple[Series, Look, list]], limits: tuple[float, float], log: bool) -> None:
  """Names in the right margin in the order of the curves' ends, each with a piece of its line; no two overlap."""
  scale = math.log if log else float
  low, high = map(scale, limits)
  # Of two curves that leave through the top, the one that ends higher is named first.
  ends = sorted(drawn, key=lambda d: d[2][-1][1])
  wanted = [min((scale(points[-1][1]) - low) / (high - low), 1.0) for _, _, points in ends]
  for (c, look, points), height in zip(ends, spread(wanted, 0.052), strict=True):
    transform = axis.transAxes
    axis.plot([1.015, 1.08], [height] * 2, transform=transform, clip_on=False, color=look.colour, linestyle=look.dashes, linewidth=1.6,
              marker=look.marker, markevery=[1], markersize=4.5, markeredgecolor="white", markeredgewidth=0.5, label="_key")  # fmt: skip
    worst = max(y for _, y, _, _ in points)
    text = c.label + (f" ↑{number(worst)}" if worst > limits[1] else "")
    axis.text(1.1, height, text, transform=transform, fontsize=8, va="center", color=look.colour)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
  """Ascending heights as close to the wanted ones as a distance of `gap` allows, from 0 upwards, at most 1 if there is room.

  Example:
    >>> spread([0.5, 0.5, 1.0], 0.1)
    [0.45, 0.55, 1.0]
  """
  blocks: list[list[float]] = []  # [sum of wanted heights as if for the lowest, count]
  for height in wanted:
    blocks.append([height, 1])
    while len(blocks) > 1 and _start(blocks[-2]) + blocks[-2][1] * gap > _start(blocks[-1]):
      total, count = blocks.pop()
      blocks[-1] = [blocks[-1][0] + total - count * blocks[-1][1] * gap, blocks[-1][1] + count]
  placed = [_start(block) + i * gap for block in blocks for i in range(int(block[1]))]
  over = max(0.0, (placed[-1] if placed else 0.0) - 1.0)
  floor = 0.0
  result = []
  for height in placed:
    height = max(height - over, floor)
    result.append(round(height, 6))
    floor = height + gap
  return result


def _start(block: Sequence[float]) -> float:
  return block[0] / block[1]


def save(figure: Any, path: str | os.PathLike) -> list[Path]:
  """Writes PATH.png and PATH.svg; the same figure gives the same bytes."""
  from matplotlib import rc_context

  Path(path).parent.mkdir(parents=True, exist_ok=True)
  written = [Path(f"{path}.{kind}") for kind in ("png", "svg")]
  with rc_context({"svg.hashsalt": "posx", "svg.fonttype": "none"}):
    figure.savefig(written[0])
    figure.savefig(written[1], metadata={"Date": None})
  return written
