"""Published curves of perplexity against length, each with its source and its protocol, to be shown beside one's own.

Texts, tokenisers and models are those of the papers: shapes compare, levels do not.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from posx import errors
from posx.errors import UserError
from posx.study.points import Point
from posx.study.series import Series

_FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Published:
  """One table of a paper.

  Attributes:
    name: the name of its file.
    title: paper and text in a few words.
    source: where it is printed.
    setup: model, text, training.
    protocol: as `posx.study.series.choose` takes it; '' where the source does not say enough.
    protocol_as_published: in the words of the source.
    train_length: tokens trained on.
    lengths: tokens evaluated at.
    perplexity: encoding or extension -> a perplexity for each length, None where there is none.
    std: standard deviation over seeds, where it is printed.
    note: what to know.
  """

  name: str
  title: str
  source: str
  setup: str
  protocol: str
  protocol_as_published: str
  train_length: int
  lengths: tuple[int, ...]
  perplexity: Mapping[str, tuple[float | None, ...]]
  std: Mapping[str, tuple[float | None, ...]]
  note: str


@functools.cache
def load() -> tuple[Published, ...]:
  """All published curves, in the order of their names."""
  return tuple(_read(path) for path in sorted(_FOLDER.glob("*.json")))


def _read(path: Path) -> Published:
  fields = json.loads(path.read_text(encoding="utf-8"))
  columns = {name: {row: tuple(values) for row, values in fields[name].items()} for name in ("perplexity", "std")}
  return Published(**{**fields, **columns, "name": path.stem, "lengths": tuple(fields["lengths"])})


def matching(protocol: str) -> list[Published]:
  """Those measured under this protocol, number included; any others must not stand beside it."""
  return [each for each in load() if each.protocol and each.protocol == protocol]


def choose(names: Iterable[str], protocol: str) -> list[Published]:
  """The named ones.

  Raises:
    UserError: for a name that is not there, or one measured under another protocol.
  """
  known = {each.name: each for each in load()}
  chosen = []
  for name in names:
    if name not in known:
      raise UserError(errors.unknown("published curves", name, known))
    if known[name].protocol != protocol:
      fitting = ", ".join(each.name for each in matching(protocol)) or "none"
      raise UserError(
        f"{name} was measured under another protocol ({known[name].protocol_as_published}) than {protocol}; those that match: {fitting}"
      )
    chosen.append(known[name])
  return chosen


def curves(published: Iterable[Published]) -> list[Series]:
  """The curves, as 'alibi (KERPLE, ArXiv)'; a standard deviation over seeds becomes the error of one seed's loss."""
  return [Series(f"{row} ({each.title})", "", "", each.train_length, _points(each, row)) for each in published for row in each.perplexity]


def _points(each: Published, row: str) -> dict[int, Point]:
  points = {}
  for i, (length, value) in enumerate(zip(each.lengths, each.perplexity[row], strict=True)):
    if value is not None:
      spread = each.std[row][i] if row in each.std else None
      points[length] = Point(math.log(value), None if spread is None else spread / value, None, None, 0, 0, 0)
  return points
