"""From a sweep file to a list of runs, each with a resolved config unlike all others and a name that says how.

A sweep file is Python. Either

    def sweep():
      for seed in range(3):
        yield {'config': 'configs/quickstart.py:rope', 'encoding.base': 5e5, 'seed': seed}

or, with the combinators of `posx.study.hyper`,

    def get_hyper(hyper):
      return hyper.product([
        hyper.sweep('config', ['configs/quickstart.py:rope', 'configs/quickstart.py:alibi']),
        hyper.sweep('config.seed', range(3)),
      ])

A file of the second kind that also has `get_config` is its own base config.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from posx.errors import CorruptError, UserError
from posx.study import hyper, names

Load = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]

FILE = "sweep.json"


@dataclasses.dataclass(frozen=True)
class Run:
  """One training and its evaluations.

  Attributes:
    name: unique in the study, safe as the name of a folder.
    config: the base config, 'FILE.py:ARG'.
    overrides: dotted field -> value, on top of the base config.
    settings: the resolved config, nested.
    differs: the fields (dotted) that are not the same in all runs of the study.
  """

  name: str
  config: str
  overrides: Mapping[str, Any]
  settings: Mapping[str, Any]
  differs: Mapping[str, Any]

  @property
  def digest(self) -> str:
    """What was trained: the settings without those of the evaluation, which does not change the weights."""
    return names.digest(names.without(names.flatten(self.settings), "eval"))


def expand(
  spec: str, extra: Mapping[str, Any] | None = None, known: Mapping[str, str] | None = None, load: Load | None = None
) -> list[Run]:
  """All runs of the sweep file `spec` ('FILE.py' or 'FILE.py:ARG').

  Args:
    spec: path of the file; ARG, if given, is the argument of its `sweep`.
    extra: overrides on top of every run.
    known: digest -> name of runs that have a name already; they keep it when the file grows.
    load: (config, overrides) -> resolved settings; `posx.config.load` unless given.

  Raises:
    UserError: if the file is not a sweep, a config does not resolve, or two runs would train the same model.
  """
  load = load or _load
  runs = []
  for number, overrides in enumerate(_overrides(spec), 1):
    overrides = {**overrides, **(extra or {})}
    config = overrides.pop("config")
    try:
      settings = load(config, overrides)
    except UserError as error:
      raise UserError(f"run {number} of {spec} ({_describe(config, overrides)}): {error}") from error
    runs.append(Run("", config, overrides, settings, {}))
  if not runs:
    raise UserError(f"{spec} yields no runs; its sweep() must yield at least one dictionary of overrides")
  _distinct(spec, runs)
  return _named(runs, known or {})


def _named(runs: Sequence[Run], known: Mapping[str, str]) -> list[Run]:
  flats = [names.without(names.flatten(run.settings), "eval") for run in runs]
  keys = names.differing(flats)
  fresh = names.names(flats)
  return [
    dataclasses.replace(run, name=known.get(run.digest, name), differs={k: flat[k] for k in keys if k in flat})
    for run, flat, name in zip(runs, flats, fresh, strict=True)
  ]


def _distinct(spec: str, runs: Sequence[Run]) -> None:
  seen: dict[str, int] = {}
  for number, run in enumerate(runs, 1):
    first = seen.setdefault(run.digest, number)
    if first != number:
      one, two = runs[first - 1], run
      raise UserError(
        f"runs {first} and {number} of {spec} would train the same model: {_describe(one.config, one.overrides)} and "
        f"{_describe(two.config, two.overrides)}; let them differ in a field that training reads, and put lengths and "
        "extensions into config.eval of one run"
      )


def _describe(config: str, overrides: Mapping[str, Any]) -> str:
  return " ".join([config, *(f"{name}={names.spell(value)}" for name, value in overrides.items())])


def _overrides(spec: str) -> list[dict[str, Any]]:
  path, colon, argument = spec.partition(".py:")
  path += ".py" if colon else ""
  module = _execute(path)
  if hasattr(module, "sweep"):
    rows = module.sweep(argument) if argument else module.sweep()
  elif hasattr(module, "get_hyper"):
    rows = module.get_hyper(hyper)
  else:
    raise UserError(f"{path} is not a sweep file: it has neither sweep() nor get_hyper(hyper)")
  own = {"config": spec} if hasattr(module, "get_config") else {}
  return [_clean(path, number, {**own, **_mapping(path, number, row)}) for number, row in enumerate(rows, 1)]


def _mapping(path: str, number: int, row: Any) -> Mapping[str, Any]:
  if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
    raise UserError(f"run {number} of {path} is {row!r}; it must be a dictionary of field -> value")
  return row


def _clean(path: str, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
  clean = {name.removeprefix("config."): value for name, value in row.items()}
  if not isinstance(clean.get("config"), str):
    raise UserError(f"run {number} of {path} names no base config; add 'config': 'configs/NAME.py:ARG'")
  return clean


def _execute(path: str) -> ModuleType:
  if not os.path.isfile(path):
    raise UserError(f"no sweep file {path}; sweeps are under configs/sweeps/")
  module = ModuleType("sweep")
  module.__file__ = path
  try:
    exec(compile(Path(path).read_text(), path, "exec"), module.__dict__)
  except Exception as error:
    raise UserError(f"{path} does not run: {type(error).__name__}: {error}") from error
  return module


def _load(config: str, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
  from posx import config as configs

  return configs.load(config, dict(overrides)).to_dict()


def read_known(folder: str | os.PathLike) -> dict[str, str]:
  """digest -> name of the runs that the study in `folder` has had so far."""
  path = Path(folder) / FILE
  if not path.exists():
    return {}
  try:
    return {run["digest"]: run["name"] for run in json.loads(path.read_text())["runs"]}
  except (ValueError, KeyError, TypeError) as error:
    raise CorruptError(f"{path} cannot be read ({error}): remove it; finished runs are still recognised by their folders") from error


def write(folder: str | os.PathLike, spec: str, runs: Sequence[Run]) -> None:
  """Records the runs, beside those that the study had before.

  Raises:
    UserError: if a name belongs to a run with other settings.
  """
  path = Path(folder) / FILE
  old = json.loads(path.read_text())["runs"] if path.exists() else []
  by_name = {run["name"]: run for run in old}
  for run in runs:
    was = by_name.get(run.name)
    if was and was["digest"] != run.digest and (Path(folder) / "runs" / run.name).exists():
      changed = names.differing([names.flatten(was["settings"]), names.flatten(run.settings)])
      changed = [key for key in changed if not key.startswith("eval.")]
      raise UserError(
        f"{folder} has a run {run.name} with another {', '.join(changed)}: use a new --workdir, or remove {folder}/runs/{run.name}"
      )
    by_name[run.name] = {
      "name": run.name,
      "digest": run.digest,
      "config": run.config,
      "overrides": dict(run.overrides),
      "settings": run.settings,
    }
  scratch = path.with_name(path.name + ".new")
  scratch.write_text(json.dumps({"sweep": spec, "runs": list(by_name.values())}, indent=1) + "\n")
  scratch.replace(path)
