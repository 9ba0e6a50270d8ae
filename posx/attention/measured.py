"""Which plan is faster: what was measured, in one small table beside this file.

    python -m benchmarks.plans

measures every plan on this machine and writes the table's rows of its backend. Backends that nobody measured have none, and take
the rules that `attend` and `tiled` state.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
import math
import pathlib
from collections.abc import Iterator, Mapping

from posx.encodings.base import Encoding

TABLE = pathlib.Path(__file__).with_name("measured.json")
LARGEST_DENSE = 256 * 256
"""Scores of a head above which the whole matrix is not considered, however fast: its memory grows with their number."""

TIE = 1.1
"""So much slower may strips be than tiles. Alone in the cache, as here, tiles of 512 tokens are 5 % faster; in a training step, where
other work comes between, they were up to 3 % slower."""

_ONLY: contextvars.ContextVar[str | None] = contextvars.ContextVar("only", default=None)


@functools.cache
def table() -> dict[str, dict]:
  """backend -> {"command", "machine", "rows"}; a row has "hook", "queries", "keys" and the milliseconds of each plan."""
  return json.loads(TABLE.read_text())


@contextlib.contextmanager
def only(plan: str) -> Iterator[None]:
  """While it lasts, this plan is the fastest that was measured, for every size: to measure or test one of them."""
  token = _ONLY.set(plan)
  try:
    yield
  finally:
    _ONLY.reset(token)


def hook_of(encoding: Encoding, form: str) -> str:
  """How the table calls a score hook: by its form, or 'separable' for a bias that is a product of a number of either side."""
  return "separable" if form == "distance" and encoding.uses("separable") else form


def milliseconds(backend: str, hook: str, queries: int, keys: int) -> Mapping[str, float]:
  """Plan -> milliseconds of a forward and backward pass, where sizes are nearest to those asked for; {} if nothing was measured.

  Args:
    backend: 'cpu', 'gpu' or 'tpu'.
    hook: what `hook_of` says.
    queries: tokens.
    keys: tokens.
  """
  plan = _ONLY.get()
  return _nearest(backend, hook, queries, keys) if plan is None else {plan: 0.0}


@functools.cache
def _nearest(backend: str, hook: str, queries: int, keys: int) -> Mapping[str, float]:
  rows = [row for row in table().get(backend, {"rows": []})["rows"] if row["hook"] == hook]
  if not rows:
    return {}
  away = lambda row: abs(math.log(row["queries"] / queries)) + abs(math.log(row["keys"] / keys))
  return min(rows, key=away)["milliseconds"]
