"""The page docs/conformance.md from what was measured; nothing in it is typed by hand but its words."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Sequence

from conformance import angles, extensions, models, oracles, rotary, scores, vectors
from conformance.rows import Comparison, Result

PACKAGES = ("transformers", "x-transformers", "rotary-embedding-torch", "torch", "jax", "numpy")
PARTS = {
  "Positions in the input": vectors.COMPARISONS,
  "Queries and keys": rotary.COMPARISONS,
  "Scores": scores.COMPARISONS,
  "Context extensions": extensions.COMPARISONS,
  "Whole models": models.COMPARISONS,
}
WORDS = {
  "Positions in the input": "What is added to an input of zeros.",
  "Queries and keys": (
    "Vectors of standard normal numbers after the rotation. Where the peer has other vectors for the same scores, the weights are compared."
  ),
  "Scores": "A bias itself, or the weights after the softmax. T5's buckets are whole numbers: 0 is equality.",
  "Context extensions": (
    "Differences relative to the definition; 64 channels, base 10,000 (Llama 3: 500,000), trained length 4,096 (Llama 3: 8,192)."
  ),
  "Whole models": (
    "A Llama of 3 layers with random weights, trained length 32, given 48 tokens; the same weights in `posx.decoder.Decoder`. "
    "Logits have a standard deviation near 1. The definition is the model in float64 NumPy."
  ),
}
HEAD = ("method", "compared", "peer", "posx − definition", "peer − definition", "posx − peer", "")


def number(x: float) -> str:
  return "NaN" if math.isnan(x) else "0" if x == 0 else f"{x:.1e}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def row(comparison: Comparison, result: Result) -> tuple[str, ...]:
  measured = (result.posx, result.peer, result.between)
  return (f"`{comparison.method}`", comparison.compared, comparison.peer, *map(number, measured), comparison.note or "agrees")


def versions() -> dict[str, str]:
  return {name: importlib.metadata.version(name) for name in PACKAGES}


def alone() -> dict[str, str]:
  """Method without a peer here -> what is known of it otherwise."""
  from posx.encodings import CATALOGUE as ENCODINGS
  from posx.extensions import CATALOGUE as EXTENSIONS

  compared = {comparison.method for each in PARTS.values() for comparison in each}
  files = sorted((oracles.TESTS / "oracles").glob("*.json"))
  found = {}
  for name in (*ENCODINGS, *EXTENSIONS):
    if name not in compared:
      peers = [peer for path in files if path.stem.endswith(f"_{name}") for peer in json.loads(path.read_text())["peers"].values()]
      found[name] = "recorded numbers of " + "; ".join(dict.fromkeys(peers)) if peers else ""
  return found


def render(measured: dict[str, list[tuple[Comparison, Result]]], errors: dict[float, dict[str, list[float]]], unnoticed: list[str]) -> str:
  parts = [INTRODUCTION.format(versions=", ".join(f"{name} {v}" for name, v in versions().items()), machine=platform.machine())]
  for title, found in measured.items():
    parts.append(f"## {title}\n\n{WORDS[title]}\n\n{table(HEAD, [row(*each) for each in found])}")
  head = ("base", "library", *(f"up to {n:,}" for n in angles.UP_TO))
  lines = [(f"{base:,.0f}", name, *map(number, each)) for base, by_name in errors.items() for name, each in by_name.items()]
  parts.append(f"{ANGLES}\n\n{table(head, lines)}")
  parts.append(without_peer())
  parts.append(recorded(unnoticed))
  return "\n\n".join(parts) + "\n"


def without_peer() -> str:
  """The section of methods that no library here has."""
  rest = alone()
  known = [f"- `{name}`: {text}" for name, text in rest.items() if text]
  names = ", ".join(f"`{name}`" for name, text in rest.items() if not text)
  return "\n".join([ALONE, "", *known, f"- the definition in float64 alone: {names}"])


def relisted(text: str) -> str:
  """The page with that section up to date and all that was measured as it is."""
  before, found, rest = text.partition(ALONE)
  if not found:
    raise ValueError("the page has no section of methods without a peer; measure it anew")
  return before + without_peer() + "\n\n" + rest[rest.index("## ") :]


def recorded(unnoticed: list[str]) -> str:
  held = oracles.cases()
  total = oracles.count(held)
  lines = [
    (f"`{file}`", str(len(each)), str(oracles.count({file: each})), str(sum(u.split()[0] == file for u in unnoticed)))
    for file, each in held.items()
  ]
  text = [RECORDED.format(total=total, files=len(held), noticed=total - len(unnoticed)), ""]
  text.append(table(("file", "cases", "arrays", "unnoticed"), lines))
  if unnoticed:
    text += ["", UNNOTICED, "", *(f"- `{each}`" for each in unnoticed)]
  return "\n".join(text)


INTRODUCTION = """\
# Conformance

posx beside other implementations of the same methods, in one process, on the same float32 inputs.
`scripts/conformance` measures everything here and writes this page.
`scripts/conformance --check` measures and fails where a line is no longer true.

Versions: {versions}; CPU, {machine}.

Each number is the largest difference over all elements. The definition is the formula of the paper in float64 NumPy,
written apart from posx in `conformance/definitions.py`.
A line marked "definition" compares two different formulas; one marked "precision" compares one formula that the peer computes less exactly.
All other lines agree within the limits of `conformance/`, for most of them 2e-6 from the definition."""

ANGLES = """\
## Exact angles

The largest error of cosines and sines of RoPE, 128 channels, against float64.
posx is measured at every position, the peers at the last 16,384 up to the one named.
posx makes the angles of integer positions from two tables in float64; the peers multiply position and frequency in float32.
posx claims 1e-6."""

ALONE = """\
## Methods without a peer here

None of these libraries has them, or only in another form. Tests compare them with"""

RECORDED = """\
## Recorded numbers

The tests need none of these libraries: numbers of theirs, of authors' code and of float64 references are kept under `tests/oracles`.
There are {total} arrays in {files} files. Each was altered alone, and for {noticed} of them a test failed."""

UNNOTICED = """\
Altered without notice. Some cannot decide a test: limits (`atol`), masks, and numbers for what posx refuses,
an odd count of rotated channels or a factor of 1."""
