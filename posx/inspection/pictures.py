"""Pictures of an encoding: what it adds by distance, the map of 2,048 tokens, wavelengths, and what softmax makes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from posx.inspection.landscape import DIMS, Landscape

GREY, LIGHT, ORANGE, BLUE, GREEN = "#555555", "#999999", "#D55E00", "#0072B2", "#009E73"  # Okabe and Ito
_WIDTH, _HEIGHT = 3.45, 2.95  # inches of a panel

Panel = Callable[[Any, Any], None]


def figure(now: Landscape, before: Landscape | None, title: str, trained: int = DIMS.train_length) -> Any:
  """The panels that have something to show, side by side.

  Args:
    now: of the encoding, extended or not.
    before: of the encoding without its extension, drawn in grey; None where there is none.
    title: above the panels.
    trained: the trained length, marked by a line.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  panels = _panels(now, before, trained)
  drawn = Figure(figsize=(_WIDTH * len(panels) + 0.35, _HEIGHT + 0.35), dpi=100, facecolor="white", layout="constrained")
  FigureCanvasAgg(drawn)
  note = " (parameters at random: as they start they add nothing)" if now.moved else ""
  drawn.suptitle(title + note, x=0.01, ha="left", fontsize=10)
  for axis, panel in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
    panel(drawn, axis)
  return drawn


def _panels(now: Landscape, before: Landscape | None, trained: int) -> list[Panel]:
  panels: list[Panel] = []
  changed = before is not None and now.added.shape == before.added.shape and not _same(now.added, before.added)
  if np.nanmax(np.abs(now.added)) > 1e-6 or changed or now.input is None:
    panels += [
      lambda figure, axis: _kernel(axis, now, before, trained),
      lambda figure, axis: _map(figure, axis, now),
      lambda figure, axis: _reach(axis, now, before, trained),
    ]
  if now.input is not None:
    panels += [lambda figure, axis: _similarity(figure, axis, now.input), lambda figure, axis: _near(axis, now, before, trained)]
  if now.wavelengths is not None and not (
    before is not None and before.wavelengths is not None and np.array_equal(now.wavelengths, before.wavelengths)
  ):
    panels.append(lambda figure, axis: _spectrum(axis, now, before, trained))
  return panels


def _same(a: np.ndarray, b: np.ndarray) -> bool:
  return a.shape == b.shape and bool(np.allclose(a, b, atol=1e-6, equal_nan=True))


def _dress(axis: Any, title: str, x: str, y: str) -> None:
  axis.set_title(title, loc="left", fontsize=9, color=GREY)
  axis.set_xlabel(x, fontsize=8.5)
  axis.set_ylabel(y, fontsize=8.5)
  axis.tick_params(labelsize=7.5, length=3, color=LIGHT)
  for side in ("top", "right"):
    axis.spines[side].set_visible(False)
  for side in ("left", "bottom"):
    axis.spines[side].set_color(LIGHT)


def _distances(axis: Any, trained: int, length: int) -> None:
  axis.set_xscale("symlog", linthresh=1, base=4)
  axis.set_xlim(0, length)
  ticks = [0, *(4**n for n in range(0, 8) if 4**n <= length)]
  axis.set_xticks(ticks, [f"{t:,}" if t < 1024 else f"{t // 1024}K" for t in ticks])
  axis.minorticks_off()
  if trained < length:
    axis.axvline(trained, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    axis.text(trained * 0.93, 0.99, f"trained: {trained}", transform=axis.get_xaxis_transform(), fontsize=6.5, color=GREY,
              rotation=90, ha="right", va="top")  # fmt: skip


def _colours(count: int) -> list[Any]:
  from matplotlib import colormaps

  # Viridis without its palest end, which is faint on white.
  return [colormaps["viridis"](x) for x in np.linspace(0.0, 0.85, count)]


def _lines(axis: Any, x: np.ndarray, ys: np.ndarray, before: np.ndarray | None) -> None:
  if before is not None:
    for n, y in enumerate(_distinct(before)):
      axis.plot(x[: y.size], y, color="#BBBBBB", linewidth=1.1, zorder=2, label="without" if n == 0 else None)
  lines = _distinct(ys)
  for n, (y, colour) in enumerate(zip(lines, _colours(len(lines)), strict=True)):
    label = f"head {n + 1}" if len(lines) > 1 else "all heads"
    axis.plot(x[: y.size], y, color=colour, linewidth=1.2, zorder=3, label=label if n in (0, len(lines) - 1) else None)
  axis.legend(fontsize=6.5, frameon=False, loc="best", handlelength=1.4)


def _distinct(ys: np.ndarray) -> np.ndarray:
  """One line where all heads have the same."""
  return ys[:1] if np.allclose(ys, ys[:1], atol=1e-6, equal_nan=True) else ys


def _kernel(axis: Any, now: Landscape, before: Landscape | None, trained: int) -> None:
  _lines(axis, np.arange(now.kernel.shape[1]), now.kernel, None if before is None else before.kernel)
  _distances(axis, trained, now.kernel.shape[1])
  shown = np.concatenate([now.kernel.ravel(), [] if before is None else before.kernel.ravel()])
  low, high = np.nanpercentile(shown, 1), np.nanmax(shown)
  # The steepest head would flatten all others.
  low = max(low, -12.0) if low < -12 else np.nanmin(shown)
  pad = max(0.07 * (high - low), 0.02)
  axis.set_ylim(low - pad, high + pad)
  _dress(axis, "added to the score of equal tokens", "distance in tokens", "logits")


def _map(figure: Any, axis: Any, now: Landscape) -> None:
  last = now.added[-1]
  blocks = last[:, : last.shape[1] // 8 * 8].reshape(last.shape[0], -1, 8)
  # A mean of eight keys has no moiré of the fast pairs.
  shown = np.where(np.isnan(blocks).all(2), np.nan, np.nansum(blocks, 2) / np.maximum((~np.isnan(blocks)).sum(2), 1))
  low, high = np.nanpercentile(shown, [2, 100])
  image = axis.imshow(
    shown, extent=(0, last.shape[1], last.shape[1], 0), aspect="auto", cmap="cividis", interpolation="nearest",
    vmin=min(low, high - 0.02), vmax=high,
  )  # fmt: skip
  bar = figure.colorbar(image, ax=axis, shrink=0.9, pad=0.02)
  bar.ax.tick_params(labelsize=7, length=2, color=LIGHT)
  bar.outline.set_visible(False)
  _dress(axis, f"the same, head {now.added.shape[0]}, {last.shape[1]:,} tokens", "key", "query")


def _reach(axis: Any, now: Landscape, before: Landscape | None, trained: int) -> None:
  def shares(kernel: np.ndarray) -> np.ndarray:
    w = np.exp(np.where(np.isnan(kernel), -np.inf, kernel) - np.nanmax(kernel, axis=1, keepdims=True))
    return np.cumsum(w / w.sum(1, keepdims=True), axis=1)

  _lines(axis, np.arange(now.kernel.shape[1]), shares(now.kernel), None if before is None else shares(before.kernel))
  _distances(axis, trained, now.kernel.shape[1])
  axis.set_ylim(-0.02, 1.04)
  _dress(axis, "attention paid to equal tokens", "up to this distance", "share")


def _cosines(x: np.ndarray) -> np.ndarray:
  unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
  return unit @ unit.T


def _similarity(figure: Any, axis: Any, entered: np.ndarray | None) -> None:
  assert entered is not None
  n = entered.shape[0]
  image = axis.imshow(_cosines(entered[:: max(1, n // 256)]), extent=(0, n, n, 0), aspect="auto", cmap="cividis", interpolation="nearest")
  bar = figure.colorbar(image, ax=axis, shrink=0.9, pad=0.02)
  bar.ax.tick_params(labelsize=7, length=2, color=LIGHT)
  bar.outline.set_visible(False)
  _dress(axis, f"similarity of {n:,} positions (cosine)", "position", "position")


def _near(axis: Any, now: Landscape, before: Landscape | None, trained: int) -> None:
  assert now.input is not None
  middle = now.input.shape[0] // 2
  if before is not None and before.input is not None:
    axis.plot(
      _cosines(before.input)[before.input.shape[0] // 2, before.input.shape[0] // 2 :], color="#BBBBBB", linewidth=1.1, label="without"
    )
  axis.plot(_cosines(now.input)[middle, middle:], color=BLUE, linewidth=1.2, label=f"seen from position {middle:,}")
  axis.legend(fontsize=6.5, frameon=False)
  _distances(axis, trained, now.input.shape[0] - middle)
  _dress(axis, "similarity by distance", "distance in tokens", "cosine")


def _spectrum(axis: Any, now: Landscape, before: Landscape | None, trained: int) -> None:
  assert now.wavelengths is not None
  if before is not None and before.wavelengths is not None:
    axis.plot(before.wavelengths, ".-", color="#BBBBBB", linewidth=1.0, markersize=4, label="without")
  turning = np.isfinite(now.wavelengths)
  pairs = np.arange(now.wavelengths.size)
  axis.plot(pairs[turning], now.wavelengths[turning], ".-", color=ORANGE if before is not None else BLUE, linewidth=1.0, markersize=4,
            label="wavelength" if before is None else "extended")  # fmt: skip
  axis.set_yscale("log")
  if not turning.all():
    axis.text(0.98, 0.03, f"{(~turning).sum()} pairs stand still", transform=axis.transAxes, fontsize=6.5, color=GREY, ha="right")
  for length, colour in ((trained, GREY), (now.added.shape[2], GREEN)):
    axis.axhline(length, color=colour, linewidth=0.9, linestyle=(0, (2, 2)))
    axis.text(0, length * 1.12, f"{length:,} tokens", fontsize=6.5, color=colour)
  axis.legend(fontsize=6.5, frameon=False, loc="lower right" if turning.all() else "upper left")
  _dress(axis, "wavelength of each pair of channels", "pair", "tokens for a turn")


def save(drawn: Any, path: str | os.PathLike) -> Path:
  """Writes PATH.png in the 256 colours of `_palette`, a third of the size; the same figure gives the same bytes."""
  from PIL import Image

  target = Path(f"{path}.png")
  target.parent.mkdir(parents=True, exist_ok=True)
  drawn.canvas.draw()
  whole = Image.fromarray(np.asarray(drawn.canvas.buffer_rgba())[..., :3])
  whole.quantize(palette=_palette(), dither=Image.Dither.NONE).save(target, optimize=True)
  return target


def _palette() -> Any:
  """An image whose palette has the colours of maps and lines, and those of lines towards white."""
  from matplotlib import colormaps
  from matplotlib.colors import to_rgb
  from PIL import Image

  lines = np.array([to_rgb(c) for c in (BLUE, ORANGE, GREEN)] + [colour[:3] for colour in _colours(8)])
  fading = [line + (1 - line) * share for line in lines for share in np.linspace(0, 0.9, 9)]
  greys = np.linspace(0, 1, 33)[:, None].repeat(3, axis=1)
  colours = np.concatenate([colormaps["cividis"](np.linspace(0, 1, 124))[:, :3], greys, fading])
  image = Image.new("P", (1, 1))
  image.putpalette(np.round(255 * colours).astype(np.uint8).ravel().tolist())
  return image
