"""An entry as text for a terminal."""

from __future__ import annotations

import textwrap

from posx.fields import fields
from posx.inspection import facts
from posx.inspection.entry import Entry


def show(entry: Entry) -> str:
  """Formula, fields, claims, what was measured, and the demonstration."""
  parts = [f"{entry.name}\n{'=' * len(entry.name)}\n", facts.formula(entry.cls), f"\nSource: {facts.source(entry.cls)}"]
  parts += ["\nFields", *(_fields(entry) or ["  none"])]
  parts += ["\nClaims", textwrap.indent(textwrap.fill(entry.claims(), 100), "  ")]
  width = max(map(len, entry.measured))
  parts += ["\nMeasured", *(f"  {name:<{width}}  {value}" for name, value in entry.measured.items())]
  parts += ["", demonstration(entry)]
  return "\n".join(parts)


def _fields(entry: Entry) -> list[str]:
  said = facts.described(entry.cls)
  rows = [(f"{name}={facts.spell(default)}", said[name]) for name, (_, default) in fields(entry.cls).items()]
  width = max((len(left) for left, _ in rows), default=0)
  wrap = lambda text: textwrap.fill(text, 100, subsequent_indent=" " * (width + 4)) if text else ""
  return [f"  {left:<{width}}  {wrap(right)}".rstrip() for left, right in rows]


def verdict(entry: Entry) -> str:
  """What the demonstration shows, in one sentence."""
  mirror, *others = [free for _, free, _ in entry.orders]
  if max(mirror, *others) < 1e-5:
    return "without a mask every sentence is a bag of words"
  if mirror < 1e-5:
    return "without a mask a sentence and its mirror image are the same; other orders differ"
  return "every order differs, with and without a mask"


def demonstration(entry: Entry) -> str:
  """'dog bites man' and its permutations: does a word come out of attention as it did before?"""
  head = ("change of a word's output from 'dog bites man' in", "no mask", "causal mask")
  lines = [f"{head[0]:<52}{head[1]:>10}{head[2]:>14}"]
  lines += [f"  {said:<50}{free:>10.2g}{causal:>14.2g}" for said, free, causal in entry.orders]
  from posx.encodings.base import Encoding
  from posx.inspection.entry import of

  if entry.encoding != Encoding():
    nothing = of("nope", Encoding())
    lines += [f"  {said + ', no encoding':<50}{free:>10.2g}{causal:>14.2g}" for said, free, causal in nothing.orders[:1]]
  return "\n".join([*lines, f"  {verdict(entry)}"])
