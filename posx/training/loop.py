"""The training loop: from where the run folder stands to the last step, stoppable and resumable at any point."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from posx import positions, runtime
from posx.checkpoint import Checkpoints, unflatten
from posx.config import ConfigDict
from posx.errors import PosxError, Stopped, UserError
from posx.metrics import Writer
from posx.rundir import RunDir
from posx.study import cost, speed
from posx.training import finetune, follow, optimiser, report, update
from posx.training import mesh as meshes

VALIDATION_BATCHES = 8


class Diverged(PosxError):
  """The loss is no number any more."""


def train(config: ConfigDict, workdir: str | Path, *, init_from: str = "", corpus: Any = None, validation: Any = None) -> None:
  """Trains a configuration in its run folder; goes on from the last checkpoint if there is one.

  Args:
    config: a checked configuration.
    workdir: the run folder; new, or of this very configuration.
    init_from: run folder whose last parameters are the first of this run; in place of `config.train.init_from`.
    corpus: the text to train on; None loads the train split of config.data.
    validation: the text of `eval_every`; None loads the validation split.

  Raises:
    UserError: if the folder holds something else, the text is not prepared, sizes do not fit.
    BusyError: if a live process trains there.
    CorruptError: if a checkpoint cannot be read or written.
    Diverged: if the loss becomes nan or infinite.
    Stopped: after SIGTERM or SIGINT, with a checkpoint saved; the same call goes on.
  """
  from posx import data, decoder

  config = finetune.resolve(config, workdir, init_from)
  mesh = meshes.make(config.train.mesh)
  update.check_batch(config, mesh)
  corpus = data.load(config.data, "train") if corpus is None else corpus
  if config.train.eval_every and validation is None:
    validation = data.load(config.data, "validation")
  model = decoder.from_config(config, corpus.vocab_size)
  params, source = None, {"init_from": config.train.init_from}
  if config.train.init_from and Checkpoints.none(RunDir(workdir).checkpoints):
    params, source = finetune.parameters(config, model)

  with follow.quiet(), follow.rundir(workdir) as run, _Signals() as signals:
    run.acquire(config, {**source, **_surroundings()})
    with run.recording():
      _Trainer(config, run, model, mesh, corpus, validation, signals).run(params)


def _surroundings() -> dict[str, Any]:
  import platform
  from importlib.metadata import version

  versions = {name: version(name) for name in ("posx", "jax", "flax", "optax", "numpy")}
  return {
    "command": shlex.join(sys.argv),
    "versions": {"python": platform.python_version(), **versions},
    "devices": [d.device_kind for d in jax.local_devices()],
  }


class _Trainer:
  def __init__(self, config: ConfigDict, run: RunDir, model: Any, mesh: Any, corpus: Any, validation: Any, signals: _Signals):
    self.signals = signals
    self.config, self.folder, self.model, self.mesh, self.corpus, self.validation = config, run, model, mesh, corpus, validation
    self.checkpoints = Checkpoints(run.checkpoints, writable=follow.leads())
    self._held_out: list[update.Batch] = []
    self._mean_loss: Callable | None = None

  def run(self, params: Any) -> None:
    steps = self.config.train.steps
    start = follow.agreed(self.checkpoints.latest())
    if start == steps:
      if self.folder.status().get("state") != "done":
        self.folder.update(state="done", step=steps, steps=steps)
      print(f"run {self.folder.path} is done: {steps} steps; nothing to do")
      return
    self.folder.update(state="running", step=start or 0, steps=steps)
    if start is not None:
      state = self._restored(start)
    else:
      state = update.initial(self.model, self.config, self.mesh)
      if params is not None:
        state = state._replace(params=meshes.put(params, self.mesh))
        # With step 0 on the disk a resume need not find the other run again.
        self._save(0, state)
    print(report.summary(state.params, self.config, self.folder.path, start or 0), flush=True)
    self._loop(state, start or 0)

  def _restored(self, step: int) -> update.State:
    flat, meta = self.checkpoints.restore(step, "params", "optimizer")
    was, now = meta["data"]["fingerprint"], self.corpus.fingerprint
    if was != now:
      raise UserError(f"the text is not that of step {step} of {self.folder.path} (fingerprint {was}, now {now}); give another --workdir")
    what, like = f"checkpoint {self.folder.checkpoints / str(step)}", update.shapes(self.model, self.config)
    parts = {name: unflatten(getattr(like, name), flat[name], what) for name in ("params", "optimizer")}
    return meshes.put(update.State(**parts), self.mesh)

  def _save(self, step: int, state: update.State) -> None:
    data = {"fingerprint": self.corpus.fingerprint, "seed": self.config.seed, "step": step}
    params, optimizer = meshes.on_host((state.params, state.optimizer))
    if follow.leads():
      self.checkpoints.save(step, params, optimizer, self.config, data)
    self.folder.update(step=step)

  def _batch(self, corpus: Any, seed: int, step: int, drawn: str) -> update.Batch:
    from posx import data

    train = self.config.train
    batch = data.batch(corpus, seed=seed, step=step, batch_size=train.batch_size, length=train.length, packing=self.config.data.packing)
    batch = positions.in_batch(batch, drawn, self.config.positions, seed=seed, first=step * train.batch_size)
    return meshes.place(follow.flags(batch, bool(self.signals.received)), self.mesh, train.accumulate)

  def _batches(self, start: int) -> Iterator[tuple[int, update.Batch]]:
    """Batches of the steps from `start` on; the next one is made and sent to the devices while one is in use."""
    drawn = self.config.positions.train
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
      ahead = thread.submit(self._batch, self.corpus, self.config.seed, start, drawn)
      for step in range(start, self.config.train.steps):
        batch = ahead.result()
        if step + 1 < self.config.train.steps:
          ahead = thread.submit(self._batch, self.corpus, self.config.seed, step + 1, drawn)
        yield step, batch

  def _loop(self, state: update.State, start: int) -> None:
    train, began = self.config.train, time.perf_counter()
    writer, progress = follow.writer(self.folder.path, start, self.config), report.Progress(self.config, start)
    step_function, waiting = None, None
    with writer, contextlib.closing(progress):
      for step, batch in self._batches(start):
        if step_function is None:
          step_function = self._compiled(state, batch, progress)
        state, metrics = step_function(state, batch)
        done, stop = step + 1, follow.stops(self.signals.received, waiting and waiting[1])
        # Numbers of a step are read while the next one runs, so that the devices never wait for the host.
        if waiting is not None:
          self._finish(*waiting, writer, progress)
        waiting = (done, metrics, {})
        last = done == train.steps
        saving = last or stop or _due(done, train.checkpoint_every)
        evaluating = train.eval_every and (last or _due(done, train.eval_every))
        if saving or evaluating:
          jax.block_until_ready(metrics)
          with progress.pause():
            extra = {"validation_loss": self._validate(state)} if evaluating else {}
          self._finish(done, metrics, extra, writer, progress)
          waiting = None
        if saving:
          with progress.pause():
            self._save(done, state)
        if stop and not last:
          raise Stopped(f"stopped at step {done} of {train.steps} by {stop}, checkpoint saved; run the same command again to go on")
    self.folder.update(state="done", step=train.steps, eta_s=0.0)
    self._note_speed(progress)
    print(f"done: {train.steps} steps in {report.duration(time.perf_counter() - began)}")
    print(f"next: python -m experiments.evaluate --workdir={self.folder.path} --lengths={','.join(map(str, self.config.eval.lengths))}")

  def _note_speed(self, progress: report.Progress) -> None:
    """Keeps how fast it was, for the estimates of later studies."""
    steps, seconds = progress.timed()
    if follow.leads():
      flops = 3 * cost.forward(self.config, self.config.train.length) * self.config.train.batch_size * steps
      speed.note("train", self.config, flops, seconds, runtime.chips())

  def _compiled(self, state: update.State, batch: update.Batch, progress: report.Progress) -> Callable:
    began = time.perf_counter()
    compiled = update.make_update(self.model, self.config, self.mesh).lower(state, batch).compile()
    progress.say(f"compiled in {report.duration(time.perf_counter() - began)}")
    return compiled

  def _finish(self, step: int, metrics: dict[str, jax.Array], extra: dict[str, float], writer: Writer, progress: report.Progress) -> None:
    """Waits for the step, checks that its numbers are numbers, shows and logs them."""
    values = {name: float(metrics[name]) for name in ("loss", "gradient_norm", "parameter_norm")}
    if wrong := [name for name, value in values.items() if not math.isfinite(value)]:
      raise Diverged(self._diverged(step, wrong[0], values[wrong[0]]))
    progress.advance(step, values["loss"])
    train = self.config.train
    if extra or step == train.steps or _due(step, train.log_every):
      rate, speed = float(optimiser.learning_rate(step - 1, train)), progress.speed(step)
      writer.write(step, **values, **extra, learning_rate=rate, **({"tokens_per_second": speed} if speed else {}))
      progress.log(step, {"loss": values["loss"], **extra, "learning_rate": rate})
      self.folder.update(step=step, loss=values["loss"], tokens_per_second=speed, eta_s=progress.remaining(step))

  def _diverged(self, step: int, name: str, value: float) -> str:
    cure = "lower train.learning_rate or train.clip_norm and give a new --workdir"
    good = self.checkpoints.latest()
    kept = f"the checkpoint of step {good} is kept, --init_from={self.folder.path} starts from it" if good else "no checkpoint yet"
    return f"{name.replace('_', ' ')} became {value} at step {step}; {kept}; {cure}"

  def _validate(self, state: update.State) -> float:
    if self._mean_loss is None:
      # The same batches every time: the seed is fixed and the steps start at 0.
      self._held_out = [
        self._batch(self.validation, 0, n, positions.in_evaluation(self.config.positions)) for n in range(VALIDATION_BATCHES)
      ]
      self._mean_loss = update.mean_loss(self.model, self.mesh)
    sums = [self._mean_loss(state.params, batch) for batch in self._held_out]
    return sum(float(s) for s, _ in sums) / sum(float(w) for _, w in sums)


def _due(step: int, every: int) -> bool:
  return every > 0 and step % every == 0


class _Signals:
  """Notes the first SIGTERM or SIGINT instead of dying of it; a second SIGINT interrupts as ever."""

  def __init__(self) -> None:
    self.received = ""
    self._before: dict[int, Any] = {}

  def _note(self, number: int, frame: Any) -> None:
    del frame
    self.received = signal.Signals(number).name
    # print() may not be called here: the signal may have come in the middle of another one.
    os.write(2, f"{self.received}: stopping after this step, with a checkpoint (Ctrl-C once more: at once)\n".encode())
    signal.signal(signal.SIGINT, signal.default_int_handler)

  def __enter__(self) -> _Signals:
    # Only the main thread may set handlers; in another one the caller is in charge.
    if threading.current_thread() is threading.main_thread():
      self._before = {n: signal.signal(n, self._note) for n in (signal.SIGTERM, signal.SIGINT)}
    return self

  def __exit__(self, *exc: object) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
