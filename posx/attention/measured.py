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
MOST_QUERIES = 64
"""Beyond these the whole matrix of scores is not considered, however fast: it would hold more than the keys and values it is of."""

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
  """While it lasts, this plan is the fastest that was measured, for every size that it may serve: to measure or test one of them."""
  token = _ONLY.set(plan)
  try:
    yield
  finally:
    _ONLY.reset(token)


def hook_of(encoding: Encoding) -> str:
  """How the table calls what an encoding does to scores and values: 'none', 'distance', 'elementwise' or 'rows' by the form it claims.

  What adds to the values needs every weight, so it is 'elementwise' at least; a bias that is a product of a number of the query
  and one of the key is 'separable'.
  """
  if encoding.uses("on_values") and encoding.form != "rows":
    return "elementwise"
  return "separable" if encoding.form == "distance" and encoding.uses("separable") else encoding.form


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
