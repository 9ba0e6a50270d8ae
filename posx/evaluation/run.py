"""Evaluates one run: losses per token for each length and control, kept in files, then a row for each protocol."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posx import config as configs
from posx import data, decoder
from posx.checkpoint import restore_params
from posx.errors import UserError
from posx.evaluation import protocols, rows
from posx.evaluation.losses import window_losses
from posx.evaluation.protocols import Measure, measure
from posx.evaluation.windows import Windows, place
from posx.study import results


@dataclasses.dataclass(frozen=True)
class Request:
  """One array of losses: what the model is and where its windows lie."""

  extension: str  # '' or the extension's representation
  control: str
  length: int
  windows: Windows
  window: int | None  # attention limited to so many tokens


def evaluate(workdir: str | Path, changes: Mapping[str, Any], *, step: int | None = None, output: str = "", download: bool = False, say: Callable[[str], None] = print) -> list[results.Row]:
  """Evaluates the run in `workdir`; appends rows to its results and returns them.

  Args:
    workdir: the run folder.
    changes: overrides of the run's `eval`, `data` and `extension` sections.
    step: which checkpoint; None for the last.
    output: where rows go; '' for results.jsonl of the run folder.
    download: whether the data set may be downloaded.
    say: receives a line for each length.

  Raises:
    UserError: for a setting that does not fit the run or the text; nothing is written then.
  """
  params, trained, step = restore_params(workdir, step)
  config = configs.from_json(configs.to_json(trained))
  configs.override(config, changes)
  configs.check(config)
  settings = config.eval
  lengths = sorted(set(settings.lengths))
  if not lengths or lengths[0] < 1:
    raise UserError(f"eval.lengths must be positive tokens, got {tuple(settings.lengths)}")
  if settings.last_k > lengths[0]:
    raise UserError(f"eval.last_k={settings.last_k} exceeds the shortest length {lengths[0]}; give at most {lengths[0]}, or 0 to leave it out")
  corpus = data.load(config.data, settings.split, download=download)
  tokens, names = data.segments(corpus, length=lengths[-1], documents=settings.documents)
  model = decoder.from_config(config, corpus.vocab_size)
  params = params if "params" in params else {"params": params}
  job = _Job(Path(workdir), config, model, params, corpus, tokens, step, say)
  made = [row for length in lengths for row in job.rows(length)]
  results.append(output or Path(workdir) / results.FILE, made)
  job.summary(names)
  return made


class _Job:
  """The evaluation of one (weights, extension, text): knows its windows, its stored losses and its rows."""

  def __init__(self, workdir: Path, config, model, params, corpus, tokens, step, say):
    self.config, self.model, self.params, self.tokens, self.step = config, model, params, tokens, step
    self.corpus, self.say, self.workdir = corpus, say, workdir
    self.total = tokens.shape[1] - 1
    self.trained = config.train.length
    self.targets = min(config.eval.targets or min(config.eval.lengths), self.total)
    self.plain = decoder.from_config(config, corpus.vocab_size, encoding=configs.encoding(configs.override(_copy(config), {"extension.name": ""})))
    self.extension = configs.extension(config)
    self.seconds = self.computed = 0.0
    folder = workdir / "losses"
    try:
      folder.mkdir(exist_ok=True)
    except OSError as error:
      raise UserError(f"{folder} cannot be written: {error.strerror or error}; losses are kept there") from error
    limit = self.model.encoding.max_context
    self.context = (limit or self.trained) if limit is not None else 0
    for length in config.eval.lengths:
      if not self.context:
        self.model.encoding.check(self.model.dims, length)

  def rows(self, length: int) -> list[results.Row]:
    """All rows of one length: the model, then its controls."""
    controls = [c for c in self.config.eval.controls if self.extension is None]
    reference = self._truncated() if "truncate" in self.config.eval.controls or self.context else None
    losses, windows = reference if self.context else self._full(length)
    made = self._rows(length, "", losses, windows, reference)
    if "truncate" in controls:
      made += self._rows(length, "truncate", *reference, reference)
    if "window" in controls:
      losses, windows = self._full(length, window=self.trained)
      made += self._rows(length, "window", losses, windows, reference)
    return made

  def _full(self, length: int, window: int | None = None):
    """(losses, windows) at a length, with attention limited to `window` tokens or not."""
    windows = place(self.total, length, min(self.config.eval.stride or length, length), self.targets)
    return self._losses(self.plain if window else self.model, windows, None if window and length <= window else window), windows

  def _truncated(self):
    """(losses, windows) of the plain model that is only ever fed the last tokens of its trained length."""
    length = min(self.context or self.trained, self.total)
    windows = place(self.total, length, max(1, length // 2), self.targets)
    return self._losses(self.plain, windows, None), windows

  def _losses(self, model, windows: Windows, window: int | None) -> np.ndarray:
    about = {
      "encoding": repr(model.encoding), "window": window, "step": self.step, "windows": dataclasses.asdict(windows),
      "tokens": protocols.target_hash(self.tokens, self.tokens.shape[1]), "data": self.corpus.fingerprint,
    }  # fmt: skip
    about = json.dumps(about, sort_keys=True)
    path = self.workdir / "losses" / f"{windows.length}-{hashlib.sha256(about.encode()).hexdigest()[:16]}.npz"
    if path.exists():
      with np.load(path) as kept:
        return kept["losses"]
    started = time.time()
    losses = window_losses(dataclasses.replace(model, window=window or model.window), self.params, self.tokens, windows)
    self.seconds += time.time() - started
    self.computed += losses.size
    temporary = path.with_suffix(f".{os.getpid()}.tmp.npz")
    np.savez(temporary, losses=losses, about=about, starts=np.asarray(windows.starts))
    os.replace(temporary, path)
    limited = f", attention to the last {window}" if window else ""
    name = f" + {self.config.extension.name}" if self.extension is not None and model is self.model else ""
    self.say(f"{self.config.encoding.name}{name} at {windows.length} tokens{limited}: {losses.shape[1]} windows of {losses.shape[0]} documents in {time.time() - started:.1f} s")
    return losses

  def _rows(self, length: int, control: str, losses: np.ndarray, windows: Windows, reference) -> list[results.Row]:
    if control == "truncate" or (self.context and control == ""):
      chosen = self._truncated_selections(length, losses, windows)
    else:
      chosen = list(rows.selections(losses, windows, self.config.eval.last_k))
    made = []
    for protocol, picked in chosen:
      bound = self._reference(reference, picked.shape[1])
      made.append(self._row(length, control, protocol, measure(picked), bound, picked.shape[1]))
    if control in ("", "window") and not self.context:
      for (first, last), picked in protocols.buckets(losses, windows).items():
        made.append(self._row(length, control, {"protocol": "bucket", "bucket": f"{first}-{last}"}, measure(picked), None, self.targets))
    return made

  def _truncated_selections(self, length: int, losses, windows):
    """The truncated model under the names of the protocols of this length: it scores the same targets."""
    whole = protocols.sliding(losses, windows)
    stride = self.config.eval.stride
    yield {"protocol": "nonoverlapping", "stride": length}, whole
    if stride and stride < length:
      yield {"protocol": "sliding", "stride": stride}, whole
    if self.config.eval.last_k:
      yield {"protocol": "last_k", "k": self.config.eval.last_k}, whole[:, whole.shape[1] - self.config.eval.last_k :]

  def _reference(self, reference, targets: int) -> Measure | None:
    """What truncation makes of the last `targets` targets."""
    if reference is None:
      return None
    whole = protocols.sliding(*reference)
    return measure(whole[:, whole.shape[1] - targets :])

  def _row(self, length: int, control: str, protocol: dict[str, Any], result: Measure, reference: Measure | None, targets: int) -> results.Row:
    scored = self.tokens[:, self.tokens.shape[1] - targets :]
    name = type(self.extension).name if self.extension is not None else ""
    factor = getattr(self.extension, "factor", None)
    if factor == 0:
      factor = max(1.0, length / (self.extension.original_length or self.trained))
    return {
      "run": self.workdir.resolve().name,
      "seed": self.config.seed,
      "encoding": self.config.encoding.name,
      "extension": name if control == "" else "",
      "factor": factor if control == "" else None,
      "train_length": self.trained,
      "length": length,
      **protocol,
      "control": control,
      **rows.fields(result, reference, max(1, self.corpus.num_bytes(scored)) / scored.size),
      "target_hash": protocols.target_hash(self.tokens, targets),
      "context": "no separator before the first token",
      "data": self.corpus.dataset,
      "split": self.corpus.split,
      "step": self.step,
      "params": int(sum(np.size(x) for x in _leaves(self.params))),
    }

  def summary(self, names) -> None:
    speed = f"{self.computed / self.seconds:,.0f} tokens/s" if self.seconds else "all losses were there already"
    self.say(f"{len(names)} documents, the last {self.targets} tokens of each scored at every length; {speed}")


def _copy(config):
  return configs.from_json(configs.to_json(config))


def _leaves(tree):
  return [leaf for value in tree.values() for leaf in _leaves(value)] if isinstance(tree, Mapping) else [tree]
