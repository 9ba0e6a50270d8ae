"""Pages of a run at experiment trackers, W&B and MLflow, beside metrics.jsonl and TensorBoard: `train.track` names them.

Where the pages are is set as ever for these libraries: WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME. Project and
experiment are 'posx' where nothing is said. A page has the configuration, and the paths of the run folder and of its checkpoints.

tracking.json in the run folder keeps the ids of the pages, so that a resume goes on there, and the last step that an earlier process
logged: steps that happen again after a resume give the same numbers again and are left out.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posx import config as configs
from posx.config import ConfigDict
from posx.errors import UserError, unknown
from posx.files import read_json, read_rows, write_atomic

PROJECT = "posx"
FILE = "tracking.json"
_PARAMS_AT_ONCE = 100
"""MLflow takes no more in one call."""


def check(names: Sequence[str]) -> None:
  """Raises UserError for a tracker that is unknown or given twice."""
  for name in names:
    if name not in PAGES:
      raise UserError(unknown("tracker in config.train.track", name, sorted(PAGES)))
  if len(set(names)) < len(names):
    raise UserError(f"config.train.track names a tracker twice: {', '.join(names)}")


def installed(names: Sequence[str]) -> None:
  """Raises UserError for a tracker whose package is missing. Apart from `check`: a run can be evaluated where it is."""
  for name in names:
    if importlib.util.find_spec(name) is None:
      raise UserError(f"config.train.track={name} needs the package {name}; install it: pip install -c constraints.txt -e '.[{name}]'")


class Page:
  """A run's page at one tracker. Training goes on without it if the tracker fails: metrics.jsonl has everything.

  Attributes:
    name: of the tracker.
    id: of the page; the tracker's own.
    place: where it is.
    way: what to do if there is none.
  """

  name = ""
  id = ""
  place = ""
  way = ""

  def __init__(self, logged: int):
    self._logged = logged
    self._open = True

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Sends the values that are finite, unless an earlier process did."""
    if step > self._logged:
      self._attempt(f"from step {step} on", self.send, step, {n: v for n, v in values.items() if math.isfinite(v)})

  def close(self, ended: str) -> None:
    """Says how the run ended: 'done', 'stopped' or 'failed'."""
    self._attempt("its end", self.end, ended)

  def _attempt(self, what: str, call: Any, *args: Any) -> None:
    if not self._open:
      return
    try:
      call(*args)
    except Exception as error:
      self._open = False
      print(f"warning: the page at {self.name} lacks {what}: {_line(error)}; metrics.jsonl has all steps", file=sys.stderr, flush=True)

  def send(self, step: int, values: Mapping[str, float]) -> None:
    raise NotImplementedError

  def end(self, ended: str) -> None:
    raise NotImplementedError


class WandB(Page):
  """A run of Weights & Biases."""

  name = "wandb"
  way = "; or WANDB_MODE=offline, and `wandb sync` later"

  def __init__(self, folder: Path, config: ConfigDict, known: str, logged: int):
    super().__init__(logged)
    import wandb

    paths = _paths(folder)
    self._run = wandb.init(
      project=os.environ.get("WANDB_PROJECT", PROJECT),
      dir=str(folder),
      id=known or None,
      resume="allow",
      name=folder.resolve().name,
      config=config.to_dict(),
      notes=_note(paths),
      # What is printed stays as it is: progress lines are no log.
      settings=wandb.Settings(console="off", silent=True),
    )
    self._run.summary.update(paths)
    self.id, self.place = self._run.id, str(self._run.settings.sync_dir if self._run.offline else self._run.url)

  def send(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log(dict(values), step=step)

  def end(self, ended: str) -> None:
    self._run.finish(exit_code={"done": 0, "stopped": 75}.get(ended, 1))


class MLflow(Page):
  """A run of MLflow."""

  name = "mlflow"
  way = "; MLFLOW_TRACKING_URI names the server"

  def __init__(self, folder: Path, config: ConfigDict, known: str, logged: int):
    super().__init__(logged)
    from mlflow.tracking import MlflowClient

    self._client = MlflowClient()
    if known:
      run = self._client.get_run(known)
      self._client.update_run(known, status="RUNNING")
    else:
      run = self._create(folder, config)
    self.id, self.place = run.info.run_id, f"{self._client.tracking_uri} run {run.info.run_id}"

  def _create(self, folder: Path, config: ConfigDict) -> Any:
    from mlflow.entities import Param

    name, paths = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT), _paths(folder)
    experiment = self._client.get_experiment_by_name(name)
    of = experiment.experiment_id if experiment else self._client.create_experiment(name)
    tags = {f"{PROJECT}.{what}": path for what, path in paths.items()}
    run = self._client.create_run(of, run_name=folder.resolve().name, tags={**tags, "mlflow.note.content": _note(paths)})
    params = [Param(field, str(value)) for field, value in configs.flat(config.to_dict()).items()]
    for first in range(0, len(params), _PARAMS_AT_ONCE):
      self._client.log_batch(run.info.run_id, params=params[first : first + _PARAMS_AT_ONCE])
    self._client.log_artifact(run.info.run_id, str(folder / "config.json"))
    return run

  def send(self, step: int, values: Mapping[str, float]) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    self._client.log_batch(self.id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

  def end(self, ended: str) -> None:
    self._client.set_terminated(self.id, {"done": "FINISHED", "stopped": "KILLED"}.get(ended, "FAILED"))


PAGES: dict[str, type[WandB] | type[MLflow]] = {each.name: each for each in (WandB, MLflow)}


def pages(folder: Path, config: ConfigDict) -> list[Page]:
  """The pages of `config.train.track`: new ones, or those that an earlier process of this run opened.

  To be called before metrics.jsonl is cut back to the last checkpoint: it says what was logged.

  Raises:
    UserError: if a tracker opens no page, for example because nobody is logged in.
  """
  if not config.train.track:
    return []
  known: dict[str, Any] = read_json(folder / FILE) or {"logged": 0}
  known["logged"] = max([known["logged"], *(row["step"] for row in read_rows(folder / "metrics.jsonl"))])
  opened: list[Page] = []
  for name in config.train.track:
    try:
      page = PAGES[name](folder, config, known.get(name, ""), known["logged"])
    except Exception as error:
      for earlier in opened:
        earlier.close("failed")
      way = f"; without {name!r} in {folder / FILE} a new one is opened" if name in known else ""
      raise UserError(f"config.train.track={name} opens no page: {_line(error)}{way or PAGES[name].way}") from error
    known[name] = page.id
    opened.append(page)
    # After each, lest the next one's failure lose it.
    write_atomic(folder / FILE, json.dumps(known))
    print(f"{name}: {page.place}", flush=True)
  return opened


def _paths(folder: Path) -> dict[str, str]:
  return {"folder": str(folder.resolve()), "checkpoints": str(folder.resolve() / "checkpoints")}


def _note(paths: Mapping[str, str]) -> str:
  return "\n".join(f"{what}: {path}" for what, path in paths.items())


def _line(error: Exception) -> str:
  return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
