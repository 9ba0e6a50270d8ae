"""How the curves of a figure look, so that each can be told from all others, by colour-blind readers too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from posx.study.series import Series

# Okabe and Ito's colours, told apart by colour-blind readers; their yellow is too faint for a line on white.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F")
_HOME = {"nope": 7, "sinusoidal": 1, "learned": 6, "t5": 2, "rope": 5, "alibi": 3, "kerple": 4, "fire": 0}
_PUBLISHED = " ("  # in names such as 'kerple_log (KERPLE, ArXiv)'
_MARKERS = "osD^vPX<>p*h"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2, 2, 2)), (0, (3, 1, 1, 1, 1, 1)))


@dataclasses.dataclass(frozen=True)
class Look:
  """How one curve is drawn: a colour for the encoding, dashes and marker for the extension."""

  colour: str
  dashes: Any
  marker: str


def looks(curves: Sequence[Series]) -> list[Look]:
  """One look a curve, all distinct; the well-known encodings have the same colour in every figure."""
  families = list(dict.fromkeys(c.family for c in curves))
  own = [f for f in families if _PUBLISHED not in f]
  slots = {f: _HOME[f] for f in own if f in _HOME}
  free = [i for i in range(len(_COLOURS)) if i not in slots.values()] or list(range(len(_COLOURS)))
  for place, family in enumerate(f for f in own if f not in slots):
    slots[family] = free[place % len(free)]
  # Published curves take the colour of the encoding they are of, and leave the others to one's own.
  for place, family in enumerate(f for f in families if f not in slots):
    slots[family] = _HOME.get(family.partition(_PUBLISHED)[0].partition("_")[0], free[place % len(free)])
  made = []
  for c in curves:
    peers = [f for f in families if slots[f] == slots[c.family]]
    extensions = list(dict.fromkeys(o.extension for o in curves if o.family == c.family and not o.control))
    style = extensions.index(c.extension) if c.extension in extensions else 0
    # Families that must share a colour differ in marker and dashes, as extensions do.
    step = style + len(extensions) * peers.index(c.family)
    marker = _MARKERS[(families.index(c.family) + style) % len(_MARKERS)]
    made.append(Look(_COLOURS[slots[c.family]], _DASHES[step % len(_DASHES)], marker))
  return made
