"""What the runs of a study took: seconds of training, of evaluation and of compilation, kept in each run folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from posx.files import read_json, write_atomic

FILE = "spent.json"


@contextlib.contextmanager
def spending(folder: str | os.PathLike, phase: str, counter) -> Iterator[None]:
  """Adds what happens inside to the folder's account, whether it ends well or not.

  Args:
    folder: of the run.
    phase: 'training' or 'evaluation'.
    counter: of `runtime.count_compilations`.
  """
  began, programs, compiling = time.monotonic(), counter.programs, counter.seconds
  try:
    yield
  finally:
    path = Path(folder) / FILE
    account = read_json(path) or {}
    new = {phase: time.monotonic() - began, "programs": counter.programs - programs, "compilation": counter.seconds - compiling}
    if path.parent.exists():
      write_atomic(path, json.dumps({**account, **{name: account.get(name, 0) + value for name, value in new.items()}}))


def summary(folders: Sequence[str | os.PathLike]) -> str:
  """A line about all runs together; '' if nothing is known."""
  from posx.training.report import duration

  accounts = [account for folder in folders if (account := read_json(Path(folder) / FILE))]
  total = {name: sum(account.get(name, 0) for account in accounts) for name in ("training", "evaluation", "programs", "compilation")}
  whole = total["training"] + total["evaluation"]
  if not whole:
    return ""
  shares = ", ".join(f"{name} {total[name] / whole:.0%}" for name in ("training", "evaluation"))
  compiled = f"{total['programs']} programs compiled in {duration(total['compilation'])} of these ({total['compilation'] / whole:.0%})"
  return f"{len(accounts)} runs took {duration(whole)} of their processes: {shares}; {compiled}"
