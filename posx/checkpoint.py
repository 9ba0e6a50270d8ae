"""Checkpoints: the state of a run after a step, written with Orbax, complete or not there at all.

A state is saved as two flat dictionaries of NumPy arrays, 'params' and 'optimizer', keyed by path. Nothing of it tells on
how many devices it was made, so it restores on any number. A CRC of every part is kept beside it: the array files
themselves do not notice a flipped bit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posx.config import ConfigDict, to_json
from posx.errors import CorruptError, UserError
from posx.rundir import RunDir

_KEEP = 2
"""If the newest cannot be read, there is one before it."""


def flatten(tree: Any) -> dict[str, np.ndarray]:
  """path -> a copy of the array on the host, e.g. 'layers/mlp/up/kernel'."""
  import jax

  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  # On a CPU device_get returns a view of the buffer, which the next update donates.
  return {path_text(path): np.array(jax.device_get(leaf)) for path, leaf in leaves}


def path_text(path: tuple) -> str:
  """'a/b/0' of a JAX key path."""
  return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def unflatten(like: Any, flat: Mapping[str, np.ndarray], what: str) -> Any:
  """The tree of the structure of `like` (arrays or shapes) with the arrays of `flat`.

  Raises:
    UserError: if a path is lacking or superfluous, or a shape differs; names the parameter and both shapes.
  """
  import jax

  leaves, structure = jax.tree_util.tree_flatten_with_path(like)
  wanted = {path_text(path): leaf for path, leaf in leaves}
  for path, leaf in wanted.items():
    if path not in flat:
      raise UserError(f"{what} has no {path!r} of shape {tuple(leaf.shape)}, which the model needs; it is of another configuration")
    if tuple(flat[path].shape) != tuple(leaf.shape):
      raise UserError(f"{what}: {path!r} has shape {tuple(flat[path].shape)}, the model needs {tuple(leaf.shape)}")
  if more := sorted(set(flat) - set(wanted)):
    raise UserError(f"{what} has {more[0]!r} of shape {tuple(flat[more[0]].shape)}, which the model does not have")
  return jax.tree_util.tree_unflatten(structure, [flat[path] for path in wanted])


def _digest(flat: Mapping[str, np.ndarray]) -> int:
  total = 0
  for path in sorted(flat):
    total = zlib.crc32(np.ascontiguousarray(flat[path]).view(np.uint8).reshape(-1).data, zlib.crc32(path.encode(), total))
  return total


class Checkpoints:
  """The checkpoints of one run folder."""

  def __init__(self, folder: Path, *, writable: bool = True):
    import orbax.checkpoint as ocp

    self.folder = Path(folder).absolute()
    # Synchronous: on the host it costs as much as starting the asynchronous writer, and a full disk is noticed at once.
    # What a killed writer left unfinished goes when the next writer starts; a reader touches nothing.
    alone = self._alone(writable)
    options = ocp.CheckpointManagerOptions(
      max_to_keep=_KEEP,
      create=writable and alone is None,
      cleanup_tmp_directories=writable,
      enable_async_checkpointing=False,
      multiprocessing_options=alone or ocp.options.MultiprocessingOptions(),
    )
    self._manager = ocp.CheckpointManager(self.folder, options=options)
    self._args = ocp.args

  @staticmethod
  def none(folder: Path) -> bool:
    """Whether no checkpoint has been written to a folder yet; nothing is made there."""
    return not folder.is_dir() or not any(each.name.isdigit() for each in folder.iterdir())

  def _alone(self, writable: bool) -> Any:
    """Options of a manager that does not wait for the other processes of a run: one writes, each reads for itself. None for one process."""
    import jax
    import orbax.checkpoint as ocp

    if jax.process_count() == 1:
      return None
    if writable:
      self.folder.mkdir(parents=True, exist_ok=True)
    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}")

  def latest(self) -> int | None:
    """The last step saved, or None."""
    return self._manager.latest_step()

  def steps(self) -> list[int]:
    """All steps that can be restored, in rising order."""
    return sorted(self._manager.all_steps())

  def save(self, step: int, params: Any, optimizer: Any, config: ConfigDict, data: Mapping[str, Any]) -> None:
    """Writes the state after `step` updates; returns when it is on the disk.

    Args:
      step: updates done.
      params: the parameters.
      optimizer: the state of the optimiser.
      config: the resolved configuration.
      data: what says where the data stand.

    Raises:
      CorruptError: if the disk refuses (full, gone).
    """
    parts = {"params": flatten(params), "optimizer": flatten(optimizer)}
    meta = {"step": step, "config": json.loads(to_json(config)), "data": dict(data), "crc32": {n: _digest(p) for n, p in parts.items()}}
    args = {name: self._args.StandardSave(part) for name, part in parts.items()}  # type: ignore[call-arg]
    try:
      self._manager.save(step, args=self._args.Composite(**args, meta=self._args.JsonSave(meta)), force=True)
    except (OSError, ValueError) as error:
      raise CorruptError(f"checkpoint of step {step} cannot be written to {self.folder}: {error}; free the disk and run again") from error

  def restore(self, step: int, *parts: str) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """The parts ('params', 'optimizer') of one step, flat, and its meta data.

    Raises:
      CorruptError: if it cannot be read or its checksum is wrong; names the folder and the step to go back to.
    """
    folder = self.folder / str(step)
    before = [s for s in self.steps() if s < step]
    cure = f"delete that folder to go on from step {before[-1]}" if before else "delete that folder to start again; no earlier step is kept"
    args = {name: self._args.StandardRestore() for name in parts}  # type: ignore[call-arg]
    try:
      found = self._manager.restore(step, args=self._args.Composite(**args, meta=self._args.JsonRestore()))
      flat = {name: {path: np.asarray(value) for path, value in found[name].items()} for name in parts}
      meta = found["meta"]
      wrong = [name for name in parts if _digest(flat[name]) != meta["crc32"][name]]
    except Exception as error:  # Orbax and TensorStore raise many kinds for one thing: what is on the disk cannot be read.
      raise CorruptError(f"checkpoint {folder} cannot be read ({type(error).__name__}: {str(error)[:200]}); {cure}") from error
    if wrong:
      raise CorruptError(f"checkpoint {folder} is damaged: the checksum of its {wrong[0]} is wrong; {cure}")
    return flat, meta

  def close(self) -> None:
    self._manager.close()


def restore_params(workdir: str | Path, step: int | None = None) -> tuple[dict[str, Any], ConfigDict, int]:
  """The parameters of a run, for evaluation.

  Args:
    workdir: the run folder.
    step: which checkpoint; None for the last.

  Returns:
    (params as nested dictionaries of NumPy arrays, configuration, step).

  Raises:
    UserError: if this is no run folder, or has no such checkpoint.
    CorruptError: if the checkpoint cannot be read.
  """
  run = RunDir(workdir)
  config = run.config()
  checkpoints = Checkpoints(run.checkpoints, writable=False) if run.checkpoints.is_dir() else None
  steps = checkpoints.steps() if checkpoints else []
  if checkpoints is None or not steps:
    raise UserError(f"{run.path} has no checkpoint yet; its state is {run.status().get('state', 'not started')!r}")
  if step is not None and step not in steps:
    raise UserError(f"{run.path} has no checkpoint of step {step}; it has {', '.join(map(str, steps))}")
  step = steps[-1] if step is None else step
  flat, meta = checkpoints.restore(step, "params")
  checkpoints.close()
  return _nest(flat["params"]), config, int(meta["step"])


def _nest(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
  nested: dict[str, Any] = {}
  for path, value in flat.items():
    *parents, name = path.split("/")
    place = nested
    for parent in parents:
      place = place.setdefault(parent, {})
    place[name] = value
  return nested
