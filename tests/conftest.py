"""Shared by all tests: numbers from elsewhere (see oracles/README.md)."""

import json
import pathlib
from typing import NamedTuple

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parent / "oracles"


class Case(NamedTuple):
  """One case of an oracle: what it is, its settings, the call that made its reference, and its arrays by name."""

  id: str
  params: dict
  kwargs: dict
  arrays: dict


def _read(name: str) -> list[Case]:
  listed = json.loads((FOLDER / f"{name}.json").read_text())
  with np.load(FOLDER / f"{name}.npz") as stored:
    held = {key: stored[key] for key in stored.files}
  shared = {n: held[key] for n, key in listed["shared"].items()}
  return [
    Case(case["id"], case["params"], case["kwargs"], shared | {n: held[key] for n, key in case["arrays"].items()})
    for case in listed["cases"]
  ]


@pytest.fixture(scope="session")
def oracle():
  """oracle(name) -> its cases."""
  return _read
