"""The report: one HTML file that holds curves, tables, rankings and the origin of every run, and opens anywhere.

No server and no network: Vega-Lite, the numbers and the styles are inside, and the content security policy allows no more.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from posx.errors import UserError
from posx.files import read_json
from posx.study import answered, names, published, ranking, results, series, table
from posx.study.looks import looks
from posx.study.points import Point
from posx.study.results import Row
from posx.study.series import Series

_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("state.js", "charts.js", "report.js")
# Outlines of matplotlib's markers within -1 .. 1, for the curves and for their keys.
_SHAPES = {
  "o": "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z",
  "s": "M-.9,-.9L.9,-.9L.9,.9L-.9,.9Z",
  "D": "M0,-1.1L1.1,0L0,1.1L-1.1,0Z",
  "^": "M0,-1L1,.8L-1,.8Z",
  "v": "M0,1L1,-.8L-1,-.8Z",
  "<": "M-1,0L.8,-1L.8,1Z",
  ">": "M1,0L-.8,-1L-.8,1Z",
  "P": "M-.4,-1L.4,-1L.4,-.4L1,-.4L1,.4L.4,.4L.4,1L-.4,1L-.4,.4L-1,.4L-1,-.4L-.4,-.4Z",
  "X": "M0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0L-1,-.6L-.6,-1Z",
  "p": "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z",
  "*": "M0,-1.2L.26,-.37L1.14,-.37L.43,.14L.71,.97L0,.46L-.71,.97L-.43,.14L-1.14,-.37L-.26,-.37Z",
  "h": "M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z",
}


def collect(rows: Sequence[Row], title: str) -> dict[str, Any]:
  """Everything that the page shows, as plain data.

  Args:
    rows: of `series.read`.
    title: of the page.
  """
  return {
    "title": title,
    "latest": max((row.get("written", "") for row in rows), default=""),
    "texts": [_text(results.select(rows, data=data, split=split), f"{data} ({split})") for data, split in table.texts(rows)],
    "grids": answered.grids(rows),
    **_runs(rows),
  }


def _text(rows: Sequence[Row], name: str) -> dict[str, Any]:
  by_protocol = {protocol: series.choose(rows, protocol)[1] for protocol in series.protocols(rows)}
  curves = {protocol: series.curves(chosen) for protocol, chosen in by_protocol.items()}
  return {
    "name": name,
    "protocols": [_protocol(protocol, by_protocol[protocol], curves[protocol]) for protocol in by_protocol],
    "disagreements": ranking.disagreements(curves),
    "positions": _positions(rows),
  }


def _protocol(name: str, rows: Sequence[Row], curves: Sequence[Series]) -> dict[str, Any]:
  fitting = published.matching(name)
  beside = {each.name: published.curves([each]) for each in fitting}
  # One set of looks, so that no published curve looks like another one on the page.
  styles = iter(looks([*curves, *(c for each in beside.values() for c in each)]))
  return {
    "name": name,
    "title": table.describe(name),
    "caption": table.caption(rows, name, curves),
    "notes": table.notes(curves),
    "lengths": sorted({length for c in curves for length in c.points}),
    "curves": [_curve(c, next(styles)) for c in curves],
    "ranking": [_ranked(curves, length) for length in ranking.lengths(curves)],
    "published": [
      {
        "name": each.name, "title": each.title, "source": each.source, "setup": each.setup, "note": each.note,
        "trained": each.train_length, "curves": [_curve(c, next(styles)) for c in beside[each.name]],
      }
      for each in fitting
    ],
  }  # fmt: skip


def _curve(c: Series, look: Any) -> dict[str, Any]:
  dash = list(look.dashes[1]) if isinstance(look.dashes, tuple) else []
  style = {"colour": look.colour, "dash": [2 * d for d in dash], "shape": _SHAPES[look.marker]}
  what = {"label": c.label, "family": c.family, "extension": c.extension, "control": c.control, "trained": c.train_length}
  return {**what, **style, "points": [_point(where, p) for where, p in c.points.items()]}


def _point(where: Any, p: Point) -> dict[str, Any]:
  bucket = {"from": where[0], "to": where[1], "x": (where[0] + where[1]) / 2} if isinstance(where, tuple) else {"x": where}
  ppl = p.perplexity
  return {
    **bucket,
    "loss": p.loss, "bits": p.bits, "ratio": p.ratio, "stderr": p.stderr, "documents_stderr": p.over_documents,
    "perplexity": ppl if ppl is None or ppl < 1e300 else None,
    "shown": table.number(ppl, p.note), "tokens": p.tokens, "documents": p.documents, "seeds": p.seeds, "note": p.note,
  }  # fmt: skip


def _ranked(curves: Sequence[Series], length: int) -> dict[str, Any]:
  places = ranking.order(curves, length)
  return {
    "length": length,
    "places": [
      {
        "rank": place.rank, "label": place.label, "perplexity": table.number(place.point.perplexity), "told": place.told,
        "than": place.than,
        "difference": place.difference and {"mean": place.difference.mean, "half": place.difference.half, "p": place.difference.p},
      }
      for place in places
    ],
  }  # fmt: skip


def _positions(rows: Sequence[Row]) -> list[dict[str, Any]]:
  """Loss by position in the windows of each length."""
  buckets = [row for row in results.select(rows, protocol="bucket") if row["loss"] is not None]
  made = []
  for length in sorted({row["length"] for row in buckets}, reverse=True):
    at = series.curves(results.select(buckets, length=length), rows)
    made.append({"length": length, "curves": [_curve(c, look) for c, look in zip(at, looks(at), strict=True)]})
  return made


def _runs(rows: Iterable[Row]) -> dict[str, Any]:
  """Each run's settings where they differ, what all have in common, environment and command."""
  first = {row["run"]: row for row in reversed(list(rows))}
  homes = {run: Path(row[series.FOLDER]) if row.get(series.FOLDER) else None for run, row in reversed(first.items())}
  flats = {run: names.flatten(read_json(home / "config.json") or {}) if home else {} for run, home in homes.items()}
  known = [flat for flat in flats.values() if flat]
  keys = names.differing(known)
  made = []
  for run, home in homes.items():
    settings = {key: names.spell(flats[run][key]) for key in keys if key in flats[run]}
    row = first[run]
    made.append(
      {
        "run": run, "label": row.get(series.LABEL, run), "seed": row["seed"], "settings": settings, "kept": bool(flats[run]),
        "origin": (read_json(home / "origin.json") if home else None) or {},
      }
    )  # fmt: skip
  common = {key: names.spell(value) for key, value in (known[0] if known else {}).items() if key not in keys}
  return {"runs": made, "differing": keys, "common": common}


@functools.cache
def _library() -> str:
  """Vega, Vega-Lite and Vega-Embed as one script."""
  try:
    import vl_convert
  except ImportError:
    raise UserError(
      "the report needs vl-convert-python, which is not installed: pip install -e '.[report]' at the root of the repository"
    ) from None
  return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def render(data: dict[str, Any]) -> str:
  """The page.

  Raises:
    UserError: if the library that holds Vega-Lite is not installed.
  """
  scripts = [_library(), "\n".join((_PAGE / name).read_text(encoding="utf-8") for name in _SCRIPTS)]
  scripts = [script.replace("</script", "<\\/script") for script in scripts]
  hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts)
  policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
  parts = {
    "POLICY": policy,
    "TITLE": html.escape(data["title"]),
    "STYLE": (_PAGE / "report.css").read_text(encoding="utf-8"),
    # A name may hold anything: inside a script only '<' could end it.
    "DATA": json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
    "LIBRARY": scripts[0],
    "SCRIPT": scripts[1],
  }
  page = (_PAGE / "report.html").read_text(encoding="utf-8")
  # Cut once, so that no part is looked into for marks of others.
  pieces = page.split("@@")
  return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))
