"""How many of the numbers kept under tests/oracles decide a test: each is altered, and some test has to notice."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[1] / "tests"


def _load(path: Path) -> Any:
  spec = importlib.util.spec_from_file_location(f"conformance_{path.stem}", path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def cases() -> dict[str, list[Any]]:
  """File of oracles -> its cases, as the tests get them."""
  read = _load(TESTS / "conftest.py")._read
  return {path.stem: read(path.stem) for path in sorted((TESTS / "oracles").glob("*.json"))}


def count(held: dict[str, list[Any]]) -> int:
  """Arrays of all cases; one that several cases share counts in each."""
  return sum(len(case.arrays) for each in held.values() for case in each)


def tests() -> Iterator[tuple[str, Callable[[Callable[[str], Any]], None]]]:
  """(name, call) of every test that asks for the oracles; `call` takes the function that gives them."""
  conftest = _load(TESTS / "conftest.py")
  for path in sorted(TESTS.rglob("test_*.py")):
    if "oracle" not in path.read_text(encoding="utf-8"):
      continue
    for name, test in inspect.getmembers(_load(path), inspect.isfunction):
      asks = list(inspect.signature(test).parameters)
      if name.startswith("test_") and "oracle" in asks:
        fixtures = {"bind": conftest.Bound, "dims": conftest.DIMS}
        rest = {ask: fixtures[ask] for ask in asks if ask != "oracle"}
        yield f"{path.name}::{name}", lambda oracle, test=test, rest=rest: test(oracle=oracle, **rest)


def altered(x: np.ndarray) -> np.ndarray:
  """Another array of that shape and dtype; unevenly, for what a softmax does not see."""
  if x.dtype == bool:
    return ~x
  if np.issubdtype(x.dtype, np.integer):
    return x + 1
  return (x + np.linspace(0.5, 1.5, x.size).reshape(x.shape)).astype(x.dtype)


def passes(call: Callable[[Callable[[str], Any]], None], given: list[Any]) -> bool:
  try:
    call(lambda name: given)
  except Exception:
    return False
  return True


def unnoticed(held: dict[str, list[Any]]) -> list[str]:
  """'file case array' of every array that can be altered while all tests still pass."""
  users: dict[str, list[Any]] = {name: [] for name in held}
  for name, call in tests():
    asked: list[str] = []
    call(lambda file, asked=asked: asked.append(file) or held[file])
    if len(set(asked)) != 1:
      raise ValueError(f"{name} reads {sorted(set(asked))}; one file of oracles a test can be followed")
    users[asked[0]].append(call)
  found = []
  for file, listed in held.items():
    for case in listed:
      # A test that can do with this case alone is asked about it alone, which is quicker.
      alone = [(call, [case] if passes(call, [case]) else listed) for call in users[file]]
      for name, x in case.arrays.items():
        other = case._replace(arrays=case.arrays | {name: altered(x)})
        if all(passes(call, [other if each is case else each for each in given]) for call, given in alone):
          found.append(f"{file} {case.id} {name}")
  return found
