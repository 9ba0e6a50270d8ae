"""Shared by all tests: numbers from elsewhere (see oracles/README.md), and the textbook use of an encoding, slow and plain on purpose."""

import itertools
import json
import pathlib
from typing import NamedTuple

import jax
import numpy as np
import pytest

from posx.testing.textbook import DIMS, Bound

FOLDER = pathlib.Path(__file__).parent / "oracles"


MAPS = pathlib.Path("/proc/self/maps")
_count = itertools.count(1)


@pytest.fixture(autouse=True)
def few_programs():
  """Drops compiled programs before they use up the memory maps of a process, of which Linux gives 65,530: beyond, XLA crashes."""
  yield
  if next(_count) % 20 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > 20_000:
    jax.clear_caches()


@pytest.fixture(scope="session")
def texts():
  """texts(folder, config, n): a configuration, c.py, and four small texts of n numbers each beside it."""

  def write(folder, config, n):
    (folder / "c.py").write_text(config)
    for name in ("one", "two", "three", "four"):
      (folder / f"{name}.txt").write_text(" ".join(f"{name} {i * i}" for i in range(n)))

  return write


@pytest.fixture(scope="module")
def compiled_quickly():
  """For modules of many small programs that run once: compiling them is what takes the time, so they are not optimised.

  What users get is compiled in all other modules and by the commands that tests run.
  """
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)
  jax.clear_caches()


@pytest.fixture(scope="session")
def tiny_run():
  """tiny_run(folder, encoding, name) -> folder/name: two steps of one small layer on four short texts; POSX_CACHE is the caller's."""

  def make(folder, encoding, name):
    from posx import config as configs
    from posx import data, training

    for who in ("one", "two", "three", "four"):
      (folder / f"{who}.txt").write_text(" ".join(f"{who} {n * n}" for n in range(60)))
    config = configs.default(encoding)
    config.model.update(num_layers=1, model_dim=16, num_heads=2, mlp_dim=16)
    config.data.update(name="text", path=str(folder / "*.txt"))
    config.train.update(length=32, batch_size=2, steps=2, warmup_steps=1, checkpoint_every=0)
    config.eval.update(lengths=(32,), last_k=0, split="train")
    data.prepare(config.data)
    training.train(config, folder / name)
    return folder / name

  return make


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

  def case(one: dict) -> Case:
    return Case(one["id"], one["params"], one["kwargs"], shared | {n: held[key] for n, key in one["arrays"].items()})

  return [case(one) for one in listed["cases"]]


@pytest.fixture(scope="session")
def oracle():
  """oracle(name) -> its cases."""
  return _read


@pytest.fixture(scope="session")
def dims():
  return DIMS


@pytest.fixture(scope="session")
def bind():
  """bind(encoding, ...) -> its textbook use."""
  return Bound
