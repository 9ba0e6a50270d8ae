"""Figures of probes: attention against length, gradients and learned kernels against distance; a line a head, a colour a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posx.study.series import tag

_GREY = "#555555"
_LAYERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1, 1.5)))


def _figure(panels: int, title: str) -> tuple[Any, Sequence[Any]]:
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(1.2 + 3.5 * panels, 3.9), dpi=150, facecolor="white", layout="constrained")
  FigureCanvasAgg(figure)
  axes = figure.subplots(1, panels, squeeze=False)[0]
  figure.suptitle(title, fontsize=10, x=0.02, ha="left")
  for axis in axes:
    axis.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8.5, length=3, color="#999999")
    for side in ("top", "right"):
      axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
      axis.spines[side].set_color("#999999")
  return figure, axes


def _lengths(axis: Any, xs: Sequence[float], trained: int, linear: int = 0) -> None:
  """A logarithmic scale of tokens; with `linear`, one that holds 0 and is linear up to there."""
  from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

  if linear:
    axis.set_xscale("symlog", base=2, linthresh=linear)
  else:
    axis.set_xscale("log", base=2)
  low, high = max(1, min(x for x in xs if x)), max(xs)
  powers = [2**n for n in range(32) if low <= 2**n <= high]
  ticks = powers[-1 :: -max(1, -(-len(powers) // 7))][::-1]
  axis.xaxis.set_major_locator(FixedLocator([0, *ticks] if linear else ticks))
  axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tag(round(x))))
  axis.xaxis.set_minor_locator(NullLocator())
  if low <= trained <= high:
    axis.axvline(trained, color=_GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    axis.text(trained * 1.04, 0.99, f"trained at {tag(trained)} ", transform=axis.get_xaxis_transform(), fontsize=7, color=_GREY,
              va="top", rotation=90)  # fmt: skip


def _colour(layer: int) -> str:
  return _LAYERS[layer % len(_LAYERS)]


def _legend(figure: Any, layers: int, more: Sequence[tuple[str, str, Any]] = ()) -> None:
  from matplotlib.lines import Line2D

  lines = [Line2D([], [], color=_colour(n), label=f"layer {n + 1}") for n in range(layers)]
  lines += [Line2D([], [], color=colour, linestyle=dashes, label=label) for label, colour, dashes in more]
  figure.legend(handles=lines, loc="outside right upper", fontsize=8, frameon=False)


def attention(found: Mapping[str, Any], label: str, trained: int) -> Any:
  """Mean distance, entropy and weight on the first token of the last queries, against the length of the window."""
  import numpy as np

  lengths = found["lengths"]
  figure, axes = _figure(3, f"attention of {label}, last queries of the window; dashed grey: equal weights")
  even = {"distance": (lengths - 1) / 2, "entropy": np.log2(lengths), "sink": 1 / lengths}
  names = {"distance": "mean distance, tokens", "entropy": "entropy, bits", "sink": "weight on the first token"}
  for axis, (name, text) in zip(axes, names.items(), strict=True):
    axis.plot(lengths, even[name], color="#999999", linestyle=(0, (4, 2)), linewidth=1)
    _, layers, heads = found[name].shape
    for layer in range(layers):
      for head in range(heads):
        axis.plot(lengths, found[name][:, layer, head], color=_colour(layer), linewidth=1.3, marker="o", markersize=3, alpha=0.85)
    if name == "distance":
      axis.set_yscale("log")
    if name == "sink":
      axis.set_ylim(-0.02, max(0.1, 1.08 * float(found[name].max())))
    _lengths(axis, lengths.tolist(), trained)
    axis.set_title(text, loc="left", fontsize=9, color=_GREY)
    axis.set_xlabel("tokens in the window", fontsize=9)
  _legend(figure, found["distance"].shape[1])
  return figure


def receptive(found: Mapping[str, Any], label: str, trained: int) -> Any:
  """The gradient by distance, averaged over octaves, and how much of it lies within a distance."""
  import itertools

  import numpy as np

  distance, gradient = found["distance"], found["gradient"]
  figure, axes = _figure(2, f"effective receptive field of {label}: the last losses of a window and the inputs before them")
  edges = np.unique(np.concatenate([[0, 1], np.round(2 ** np.arange(1, np.log2(len(gradient)), 0.5)).astype(int), [len(gradient)]]))
  spans = list(itertools.pairwise(edges.tolist()))
  means = [gradient[a:b].mean() for a, b in spans]
  middle = [(a + b - 1) / 2 for a, b in spans]
  axes[0].plot(middle, means, color=_colour(0), linewidth=1.5, marker="o", markersize=3)
  axes[0].set_yscale("log")
  axes[0].set_title("|d loss / d input|, mean", loc="left", fontsize=9, color=_GREY)
  axes[1].plot(distance, np.cumsum(gradient) / gradient.sum(), color=_colour(0), linewidth=1.5)
  axes[1].set_ylim(0, 1.02)
  axes[1].set_title("share of the gradient within that distance", loc="left", fontsize=9, color=_GREY)
  for axis in axes:
    _lengths(axis, distance.tolist(), trained, linear=1)
    axis.set_xlim(left=0)
    axis.set_xlabel("tokens before the target", fontsize=9)
  return figure


def kernels(found: Mapping[str, Any], label: str, trained: int) -> Any:
  """What is added to the scores against distance, for the last query of windows of each length."""
  import numpy as np

  lengths = found["lengths"].tolist()
  figure, axes = _figure(len(lengths), f"bias that {label} adds to the scores, last query of the window")
  for axis, length in zip(axes, lengths, strict=True):
    bias = found[f"bias_{length}"]
    picked = np.unique(np.round(np.geomspace(1, length, 200)).astype(int)) - 1
    for layer in range(bias.shape[0]):
      for head in range(bias.shape[1]):
        axis.plot(
          picked, bias[layer, head, picked], color=_colour(layer), linestyle=_DASHES[head % len(_DASHES)], linewidth=1.2, alpha=0.85
        )
    _lengths(axis, picked.tolist(), trained, linear=1)
    axis.set_xlim(left=0)
    axis.set_title(f"window of {tag(length)}", loc="left", fontsize=9, color=_GREY)
    axis.set_xlabel("distance, tokens", fontsize=9)
  axes[0].set_ylabel("logits", fontsize=9)
  heads = found[f"bias_{lengths[0]}"].shape[1]
  _legend(figure, found[f"bias_{lengths[0]}"].shape[0], [(f"head {n + 1}", _GREY, _DASHES[n]) for n in range(min(heads, len(_DASHES)))])
  return figure
