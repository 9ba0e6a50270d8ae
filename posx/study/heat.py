"""Heat maps of recall: how much likelier a key is where the window holds it, by length of the window and depth of the key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from posx.study.results import Row
from posx.study.series import tag

_GREY = "#555555"


def grid(rows: Sequence[Row], field: str, control: str = "") -> tuple[list[int], list[float], list[list[float | None]]]:
  """(lengths, depths, values [depth][length]) of one run's rows; None where there is none."""
  lengths, depths = sorted({row["length"] for row in rows}), sorted({row["depth"] for row in rows})
  held = {(row["depth"], row["length"]): row.get(field) for row in rows if row["control"] == control}
  return lengths, depths, [[held.get((depth, length)) for length in lengths] for depth in depths]


def gained(rows: Sequence[Row]) -> list[list[float | None]]:
  """Bits a token of the key is likelier than under the wrong-key control, [depth][length]."""
  right, wrong = (grid(rows, "loss", control)[2] for control in ("", "wrong_key"))
  pairs = [zip(*lines, strict=True) for lines in zip(right, wrong, strict=True)]
  return [[None if a is None or b is None else (b - a) / math.log(2) for a, b in line] for line in pairs]


def retrieval(rows: Sequence[Row]) -> Any:
  """Of one run: bits a token of the key gains over the wrong-key control, and the share of its tokens that come first."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  lengths, depths, accuracy = grid(rows, "accuracy")
  gain = gained(rows)
  first = rows[0]
  figure = Figure(figsize=(2.6 + 1.3 * len(lengths), 2.2 + 0.34 * len(depths)), dpi=150, facecolor="white", layout="constrained")
  FigureCanvasAgg(figure)
  axes = figure.subplots(1, 2, sharey=True)
  reach = max([0.5, *(abs(x) for line in gain for x in line if x is not None)])
  _map(figure, axes[0], gain, lengths, depths, (-reach, reach), "RdBu", "bits gained a token")
  _map(figure, axes[1], accuracy, lengths, depths, (0.0, 1.0), "Blues", "its tokens that come first")
  axes[0].set_ylabel("depth of the key")
  name = first["encoding"] + (f" + {first['extension']}" if first["extension"] else "")
  title = f"{first['protocol']}, {name}, trained at {tag(first['train_length'])}; {first['documents']} documents of {first['data']}"
  figure.suptitle(title, fontsize=9, x=0.03, ha="left")
  return figure


def _map(
  figure: Any, axis: Any, values: Any, lengths: Sequence[int], depths: Sequence[float], limits: tuple, colours: str, label: str
) -> None:
  import numpy as np

  shown = np.array([[np.nan if x is None else x for x in line] for line in values], float)
  image = axis.imshow(shown, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", origin="lower")
  axis.set_xticks(range(len(lengths)), [tag(n) for n in lengths], fontsize=8)
  axis.set_yticks(range(len(depths)), [f"{d:g}" for d in depths], fontsize=8)
  axis.set_xlabel("tokens in the window", fontsize=9)
  axis.set_title(label, loc="left", fontsize=9, color=_GREY)
  middle, half = (limits[0] + limits[1]) / 2, (limits[1] - limits[0]) / 2
  for (y, x), value in np.ndenumerate(shown):
    dark = abs(value - middle) > 0.6 * half if colours == "RdBu" else value > middle + 0.2 * half
    text = "-" if np.isnan(value) else f"{round(float(value), 2) + 0.0:.2f}"  # no minus before a zero
    axis.text(x, y, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "#222222")
  figure.colorbar(image, ax=axis, fraction=0.05, pad=0.02).ax.tick_params(labelsize=7.5)
