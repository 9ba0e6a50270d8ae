"""The gallery: every entry of both catalogues on one page, with a table of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posx import encodings, extensions
from posx.errors import UserError
from posx.fields import fields
from posx.inspection import entry, facts, pictures
from posx.inspection.entry import Entry
from posx.inspection.landscape import DIMS, LENGTH
from posx.inspection.text import verdict
from posx.testing import pairs
from posx.testing.measures import SHIFT

FACTOR = LENGTH / DIMS.train_length

HEAD = """\
# Gallery

Written by `python -m experiments.inspect --all` from the code; nothing here is typed by hand.

Pictures are of {heads} heads of {channels} channels, {model} wide, trained on {trained} tokens and looked at up to {length:,}, with the
parameters that they start from. *Added to the score of equal tokens* is the score of two equal tokens minus what it is without
positions, seen from the last token. *Attention paid to equal tokens* is what softmax makes of that if all tokens are equal: the
share that goes to keys up to a distance. Grey is the encoding without the extension.

In the tables, *longest position* is the last one that is not refused, *shift error* how much scores (or the input) change when all
positions grow by {shift:,}, relative to their size, *norm error* how much queries and keys change their norms, *decays to* the
distance up to which no head of the picture ever rises, *order* what attention without a mask knows of the order of words, *lines*
the lines of code of its file (of its class, for an extension).
"""


def entries() -> list[Entry]:
  """Every encoding of the catalogue."""
  return [entry.of(name, encodings.make(name)) for name in encodings.CATALOGUE]


def extended() -> list[Entry]:
  """Every extension of the catalogue, each on the encoding that most extensions extend, of those it accepts."""
  count = {name: sum(cls.accepts(encodings.make(name)) for cls in extensions.CATALOGUE.values()) for name in encodings.CATALOGUE}
  trained = {e.name: e for e in entries()}
  found = []
  for name, cls in extensions.CATALOGUE.items():
    on = trained[max(facts.accepted(cls), key=lambda n: count[n])]
    values = settings(cls)
    made = extensions.apply(extensions.make(name, **values), on.encoding)
    found.append(entry.of(name, made, cls, on, [f"{field}={_spell(value)}" for field, value in values.items()]))
  return found


def settings(cls: type) -> dict[str, object]:
  """The defaults where they say what to do at `LENGTH`; else a factor for that length, and divisors for each pair of channels."""
  lists = {n: v for n, v in pairs.settings(cls, DIMS).items() if isinstance(v, tuple)}
  own: dict[str, object] = {"factor": FACTOR} if "factor" in fields(cls) and fields(cls)["factor"][1] == 0 else {}
  name = getattr(cls, "name", cls.__name__)
  try:
    extensions.make(name, **own, **lists)
  except UserError as error:
    raise UserError(f"{name} cannot be shown by its defaults: {error}") from error
  return own | lists


def _spell(value: object) -> str:
  if isinstance(value, tuple):
    return f"{value[0]:g},{value[1]:g},...,{value[-1]:g}"
  return f"{value:g}" if isinstance(value, float) else str(value)


def write(folder: Path) -> str:
  """Writes FOLDER/gallery.md and the pictures in FOLDER/gallery; returns what was written, in words."""
  ours, theirs = entries(), extended()
  sizes = {
    "heads": DIMS.num_heads,
    "channels": DIMS.head_dim,
    "model": DIMS.model_dim,
    "trained": DIMS.train_length,
    "length": LENGTH,
    "shift": SHIFT,
  }
  page = [HEAD.format(**sizes), "## Encodings\n", table(ours), "\n## Extensions\n", table(theirs)]
  written = 0
  for each in (*ours, *theirs):
    kind = "encoding" if each.trained is None else "extension"
    path = pictures.save(each.figure(), folder / "gallery" / f"{kind}_{each.name}")
    written += path.stat().st_size
    page.append(section(each, f"gallery/{path.name}"))
  wanted = {f"{'encoding' if e.trained is None else 'extension'}_{e.name}.png" for e in (*ours, *theirs)}
  for stale in (folder / "gallery").glob("*.png"):
    if stale.name not in wanted:
      stale.unlink()
  (folder / "gallery.md").write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")
  return f"{folder / 'gallery.md'}: {len(ours)} encodings, {len(theirs)} extensions, pictures of {written / 1e6:.1f} MB"


def table(shown: Sequence[Entry]) -> str:
  """The comparison in Markdown."""
  one = shown[0].trained is None
  head = [
    "name",
    "idea",
    "learned" if one else "on",
    "acts on",
    "longest position",
    "shift error",
    "norm error",
    "decays to",
    "order",
    "lines",
  ]
  lines = [head, ["---"] * len(head), *(_row(e) for e in shown)]
  return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _row(e: Entry) -> list[str]:
  numbers = f"{entry.parameters(e.encoding):,}"
  return [
    f"[`{e.name}`](#{anchor(e)})",
    facts.idea(e.cls),
    numbers if e.trained is None else e.trained.name,
    facts.places(e.encoding),
    e.longest,
    e.shift_error,
    e.norm_error,
    e.decay,
    verdict(e),
    str(e.lines),
  ]


def anchor(e: Entry) -> str:
  """The heading's anchor, as Markdown pages make it."""
  return e.name if e.trained is None else f"extension-{e.name}"


def section(e: Entry, picture: str) -> str:
  """One entry's heading, words, picture and figures."""
  title = e.name if e.trained is None else f"Extension {e.name}"
  listed = [f"| {name} | {value} |" for name, value in e.measured.items()]
  orders = "; ".join(f"{said} {free:.2g} / {causal:.2g}" for said, free, causal in e.orders)
  return "\n".join(
    [
      f"\n## {title}\n",
      facts.formula(e.cls),
      f"\n![{e.title}]({picture})\n",
      "| measured | |\n| --- | --- |",
      *listed,
      f"| claims | {e.claims()} |",
      f"| change of a word from 'dog bites man', without a mask / causal | {orders} |",
      f"| source | {facts.source(e.cls)} |",
    ]
  )
