"""Who beats whom at a length: curves in order of their loss, tied where a paired test cannot tell them apart."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from posx.study import statistics
from posx.study.points import Point
from posx.study.series import Series, tag
from posx.study.statistics import Difference
from posx.study.table import Cell, describe, number

_MOST = 8  # disagreements that are listed


@dataclasses.dataclass(frozen=True)
class Place:
  """One curve in the order of a length.

  Attributes:
    rank: 1 for the best; curves that cannot be told from the first of their group share its rank.
    than: the curve it was compared with, the first of the group that was the last one when its turn came; '' of the best.
    difference: its loss less that of `than`; None where no paired test could be made.
    told: whether a paired test could be made.
  """

  rank: int
  label: str
  point: Point
  than: str
  difference: Difference | None
  told: bool


def compare(a: Point, b: Point) -> Difference | None:
  """The paired difference a - b; None unless both have a loss of each document, on the same targets."""
  if not a.losses or not b.losses or not a.targets or a.targets != b.targets:
    return None
  return statistics.paired(a.losses, b.losses)


def significant(difference: Difference | None, comparisons: int) -> bool:
  """Whether the difference would rarely be there by chance, when so many are looked at (Bonferroni)."""
  return difference is not None and difference.p is not None and difference.p < statistics.LEVEL / max(1, comparisons)


def order(curves: Sequence[Series], length: int) -> list[Place]:
  """The curves that have a number at a length, best first; controls do not take part."""
  found = [(c.label, p) for c in curves if not c.control and (p := c.points.get(length)) and p.loss is not None]
  found.sort(key=lambda each: (each[1].loss, each[0]))
  places: list[Place] = []
  for i, (label, point) in enumerate(found):
    if not places:
      places.append(Place(1, label, point, "", None, True))
      continue
    first = next(p for p in places if p.rank == places[-1].rank)
    difference = compare(point, first.point)
    told = difference is not None and difference.p is not None
    beaten = significant(difference, len(found) - 1)
    # What cannot be tested keeps a rank of its own and is marked: a tie would be a claim as well.
    places.append(Place(i + 1 if beaten or not told else first.rank, label, point, first.label, difference, told))
  return places


def lengths(curves: Sequence[Series]) -> list[int]:
  """The lengths at which there is something to rank."""
  return sorted({n for c in curves if not c.control for n in c.points})


def lines(curves: Sequence[Series], width: int = 120) -> list[list[Cell]]:
  """One line a length, broken to the width."""
  ranked = {length: order(curves, length) for length in lengths(curves)}
  if not any(len(places) > 1 for places in ranked.values()):
    return []
  untold = any(not place.told for places in ranked.values() for place in places)
  made: list[list[Cell]] = [[("ranking", "head")]]
  for length, places in ranked.items():
    groups = [list(group) for _, group in itertools.groupby(places, key=lambda place: place.rank)]
    parts = [f"{g[0].rank}. " + " = ".join(p.label + ("" if p.told else "?") for p in g) for g in groups]
    missing = [f"{c.label} ({number(None, p.note)})" for c in curves if not c.control and (p := c.points.get(length)) and p.loss is None]
    parts += [f"no number: {', '.join(missing)}"] if missing else []
    made += [[(text, "")] for text in _wrap(f"{tag(length):>5}  ", parts, width)]
  seeds = max(p.point.seeds for places in ranked.values() for p in places)
  over = "documents and seeds" if seeds > 1 else "documents, of one seed"
  made.append([(f"= not told apart by a paired t-test over {over} ({statistics.LEVEL:.0%}, Bonferroni at each length)", "dim")])
  if untold:
    why = "the losses of each document are not known, or the targets are not the same"
    made.append([(f"? not tested: {why}; evaluate again, kept losses are not computed anew", "dim")])
  return made


def _wrap(head: str, parts: Sequence[str], width: int) -> list[str]:
  """Parts after a head, with continuation lines under them."""
  made = [head]
  for part in parts:
    if len(made[-1]) + len(part) > width and made[-1].strip() and made[-1] != head:
      made.append(" " * len(head))
    made[-1] += part + "  "
  return made


def disagreements(by_protocol: Mapping[str, Sequence[Series]]) -> list[str]:
  """Pairs that two protocols put in opposite order, each significantly; one line a length and pair of protocols."""
  made = []
  for (one, first), (two, second) in itertools.combinations(by_protocol.items(), 2):
    for length in sorted(set(lengths(first)) & set(lengths(second))):
      pairs = [f"{a} < {b}" for a, b in _reversed(order(first, length), order(second, length))]
      if pairs:
        more = f" and {len(pairs) - _MOST} more" if len(pairs) > _MOST else ""
        pair = ", ".join(pairs[:_MOST]) + more
        made.append(f"at {tag(length)} {describe(one)} has {pair}; {describe(two)} the other way round")
  return made


def _reversed(one: Sequence[Place], two: Sequence[Place]) -> list[tuple[str, str]]:
  """(better, worse) of the first order that the second has the other way round."""
  at = {place.label: (i, place.point) for i, place in enumerate(two)}
  found = []
  for a, b in itertools.combinations(one, 2):
    if a.label not in at or b.label not in at or at[a.label][0] < at[b.label][0]:
      continue
    both = compare(a.point, b.point), compare(at[b.label][1], at[a.label][1])
    if all(significant(d, len(one) - 1) for d in both):
      found.append((a.label, b.label))
  return found
