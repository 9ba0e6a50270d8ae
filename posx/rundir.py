"""The folder of one run: its configuration, its lock, its status, its rows.

    config.json      the resolved configuration
    origin.json      where the run came from: command, versions, initial weights
    status.json      state, step, loss, speed; replaced atomically
    lock             held by the live process
    metrics.jsonl    one line per logged step
    results.jsonl    one line per result
    checkpoints/     the states of the run, see `posx.checkpoint`
    tensorboard/     event files
    tracking.json    ids of its pages at trackers, see `posx.tracking`
    losses/          losses per token, of the evaluation

Nothing else marks a folder as a run: one without config.json that holds anything is foreign, and left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posx import config as configs
from posx.errors import BusyError, UserError
from posx.files import read_json, write_atomic

_OURS = {"config.json", "origin.json", "status.json", "lock"}
"""What a run leaves when it ends before its first step."""


_FREE = ("train.track",)
"""Fields that may change when a run is resumed: they change no number of it."""


def _explain(differences: Mapping[str, tuple[Any, Any]]) -> str:
  """The differences as 'field: was -> is'."""
  return ", ".join(f"{field}: {was!r} -> {now!r}" for field, (was, now) in differences.items())


class RunDir:
  """One run folder. Use as a context manager: the lock is held inside and goes with the process, however it ends."""

  def __init__(self, path: str | Path):
    self.path = Path(path)
    self.started = time.time()
    self._lock: Any = None
    self._status: dict[str, Any] = {}

  @property
  def checkpoints(self) -> Path:
    return self.path / "checkpoints"

  def config(self) -> configs.ConfigDict:
    """The configuration of the run.

    Raises:
      UserError: if this is no run folder, or one of another version of posx.
      CorruptError: if the file cannot be read.
    """
    values = read_json(self.path / "config.json")
    if values is None:
      raise UserError(f"{self.path} is not a run folder: it has no config.json; give the --workdir of a training run")
    return configs.from_json(json.dumps(values))

  def status(self) -> dict[str, Any]:
    """The last status written; {} before the first."""
    return read_json(self.path / "status.json") or {}

  def acquire(self, config: configs.ConfigDict, origin: Mapping[str, Any]) -> bool:
    """Takes the lock and makes the folder this run's, or finds that it is.

    Args:
      config: the resolved configuration.
      origin: provenance; its `init_from` must be that of the run if the folder has one.

    Returns:
      Whether the folder held this run already.

    Raises:
      UserError: if the folder is foreign or cannot be written, or holds a run with another configuration; nothing is written then.
      BusyError: if a live process has the lock.
    """
    if self.path.exists() and not self.path.is_dir():
      raise UserError(f"workdir {self.path} is a file; give a folder")
    try:
      known = self._known(config, origin)
      self.path.mkdir(parents=True, exist_ok=True)
      self._take_lock()
      if not known and not self._known(config, origin):
        write_atomic(self.path / "origin.json", json.dumps(origin, indent=2))
        write_atomic(self.path / "config.json", configs.to_json(config))
      return known
    except OSError as error:
      self.release()
      raise UserError(f"workdir {self.path} cannot be written: {error.strerror or error}; give another --workdir") from error

  def _known(self, config: configs.ConfigDict, origin: Mapping[str, Any]) -> bool:
    if not (self.path / "config.json").exists():
      foreign = sorted(n for n in (os.listdir(self.path) if self.path.exists() else ()) if n not in _OURS and not n.startswith("."))
      if foreign:
        raise UserError(f"workdir {self.path} is not a run folder (it holds {', '.join(foreign[:3])}); give a new or empty folder")
      return False
    differences = {field: pair for field, pair in configs.diff(self.config(), config).items() if field not in _FREE}
    if differences:
      raise UserError(
        f"workdir {self.path} holds a run with another configuration: {_explain(differences)}; a run keeps its configuration: "
        f"give another --workdir (and --init_from={self.path} to start from its weights)"
      )
    was = (read_json(self.path / "origin.json") or {}).get("init_from", "")
    if origin.get("init_from", "") not in ("", was):
      raise UserError(f"workdir {self.path} holds a run with --init_from={was!r}, not {origin['init_from']!r}; give another --workdir")
    return True

  def _take_lock(self) -> None:
    self._lock = open(self.path / "lock", "a+", encoding="utf-8")
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      self._lock.seek(0)
      owner = self._lock.read().strip() or "another process"
      self.release()
      raise BusyError(f"workdir {self.path} is in use by {owner}; wait for it, stop it, or give another --workdir") from error
    self._lock.truncate(0)
    self._lock.write(f"process {os.getpid()} on {socket.gethostname()}")
    self._lock.flush()

  def release(self) -> None:
    """Gives the lock back."""
    if self._lock is not None:
      self._lock.close()
      self._lock = None

  def __enter__(self) -> RunDir:
    return self

  def __exit__(self, *exc: object) -> None:
    self.release()

  def update(self, **changes: Any) -> None:
    """Replaces status.json by the last status with these changes; numbers that are not finite become null."""
    self._status.update(changes)
    now = {"pid": os.getpid(), "host": socket.gethostname(), "started": self.started, "updated": time.time()}
    status = {"state": "running", "step": 0, "steps": 0, "loss": None, "tokens_per_second": None, "eta_s": None, "error": None}
    status.update({**now, **self._status})
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in status.items()}
    write_atomic(self.path / "status.json", json.dumps(finite, allow_nan=False))

  @contextlib.contextmanager
  def recording(self):
    """Writes how the run ended, when it ends by an exception, into the status."""
    try:
      yield self
    except BaseException as error:
      stopped = getattr(error, "exit_code", None) == 75 or isinstance(error, KeyboardInterrupt)
      with contextlib.suppress(OSError):
        self.update(state="stopped" if stopped else "failed", eta_s=None, error=None if stopped else f"{type(error).__name__}: {error}")
      raise
