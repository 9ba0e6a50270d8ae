"""Evaluates one run: losses per token for each length and control, kept in files, then a row for each protocol."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posx import config as configs
from posx import data, decoder, positions
from posx.checkpoint import restore_params
from posx.data.synthetic import TaskCorpus
from posx.errors import UserError
from posx.evaluation import protocols, rows, tasks
from posx.evaluation.losses import chips_of, window_losses
from posx.evaluation.protocols import Measure, measure
from posx.evaluation.windows import Windows, fitting, place
from posx.study import cost, results, speed


def evaluate(
  workdir: str | Path,
  changes: Mapping[str, Any],
  *,
  step: int | None = None,
  output: str = "",
  download: bool = False,
  beyond: str = "error",
  say: Callable[[str], None] = print,
) -> list[results.Row]:  # fmt: skip
  """Evaluates the run in `workdir`; appends rows to its results and returns them.

  Args:
    workdir: the run folder.
    changes: overrides of the run's `eval`, `data` and `extension` sections.
    step: which checkpoint; None for the last.
    output: where rows go; '' for results.jsonl of the run folder.
    download: whether the data set may be downloaded.
    beyond: what to do with a length that the encoding cannot serve: 'error', or 'note' for rows without a number.
    say: receives a line for each length.

  Raises:
    UserError: for a setting that does not fit the run or the text; nothing is written then.
  """
  params, trained, step = restore_params(workdir, step)
  config = configs.from_json(configs.to_json(trained))
  configs.override(config, changes)
  _fit(config.eval, changes, say)
  configs.check(config)
  settings = config.eval
  lengths = sorted(set(settings.lengths))
  if not lengths or lengths[0] < 1:
    raise UserError(f"eval.lengths must be positive tokens, got {tuple(settings.lengths)}")
  if settings.last_k > lengths[0]:
    raise UserError(f"eval.last_k={settings.last_k} exceeds the shortest length {lengths[0]}; give at most that, or 0 to leave it out")
  if output and Path(output).is_dir():
    raise UserError(f"{output} is a folder; --output names the file that rows are added to")
  _check_text(config, trained)
  corpus = data.load(config.data, settings.split, download=download)
  params = params if "params" in params else {"params": params}
  if isinstance(corpus, TaskCorpus):
    made = tasks.evaluate(Path(workdir), config, trained, params, corpus, step, beyond, say)
    results.append(output or Path(workdir) / results.FILE, made)
    return made
  tokens, names = data.segments(corpus, length=lengths[-1], documents=settings.documents)
  if settings.targets > tokens.shape[1] - 1:
    raise UserError(f"eval.targets={settings.targets} exceeds the longest window of {lengths[-1]} tokens; give at most that, or 0")
  job = _Job(Path(workdir), config, trained, params, corpus, tokens, step, say, beyond)
  made = [row for length in lengths for row in job.rows(length)]
  results.append(output or Path(workdir) / results.FILE, made)
  job.summary(names)
  return made


class Picked(NamedTuple):
  """What one protocol takes out: losses [documents, targets], and the tokens they are of."""

  protocol: dict[str, Any]
  losses: np.ndarray
  scored: np.ndarray


class _Job:
  """The evaluation of one (weights, extension, text): knows its windows, its stored losses and its rows."""

  def __init__(self, workdir: Path, config, trained, params, corpus, tokens, step, say, beyond):
    self.config, self.params, self.tokens, self.step = config, params, tokens, step
    self.corpus, self.say, self.workdir = corpus, say, workdir
    self.total = tokens.shape[1] - 1
    self.trained = config.train.length
    self.targets = min(config.eval.targets or min(config.eval.lengths), self.total)
    self.model = decoder.from_config(config, corpus.vocab_size)
    self.plain = decoder.from_config(trained, corpus.vocab_size)
    self.extension = configs.extension(config)
    self.drawn = positions.in_evaluation(config.positions)
    self.digest = rows.digest(params)
    self.seconds = self.computed = self.flops = 0.0
    limit = self.model.encoding.max_context
    self.context = (limit or self.model.dims.train_length) if limit is not None else 0
    self.refused: dict[int, str] = {}
    for length in config.eval.lengths if not self.context else ():
      try:
        self._check(length)
      except ValueError as error:
        if beyond == "error":
          raise
        self.refused[length] = str(error)
    if "window" in config.eval.controls and self.drawn not in positions.GAPLESS:
      say(f"the window control is left out: positions that are {self.drawn} leave gaps, and a window of positions would hold fewer tokens")
    folder = workdir / "losses"
    try:
      folder.mkdir(exist_ok=True)
    except OSError as error:
      raise UserError(f"{folder} cannot be written: {error.strerror or error}; losses are kept there") from error

  def _check(self, length: int) -> None:
    """Raises UserError if the encoding, or the range that positions are drawn from, cannot serve this length."""
    most = self.config.positions.range
    if self.drawn != positions.CONSECUTIVE and length > most:
      raise UserError(
        f"{length} tokens cannot have different positions of positions.range={most}; take shorter lengths, a run that was trained with a "
        "larger range, or --positions=consecutive"
      )
    self.model.encoding.check(self.model.dims, length if self.drawn == positions.CONSECUTIVE else self.model.reach)

  def rows(self, length: int) -> list[results.Row]:
    """All rows of one length: the model, then its controls."""
    controls = self.config.eval.controls
    reference = self._reference(length) if "truncate" in controls else []
    if length in self.refused:
      made = self._without_number(length)
    elif self.context and length > self.context:
      made = self._rows(length, "", self._fed(length, self.context), reference)
    else:
      made = self._rows(length, "", self._picked(*self._full(self.model, length), by_position=True), reference)
    if self.model.encoding != self.plain.encoding:
      return made
    if "truncate" in controls:
      made += self._rows(length, "truncate", self._reference(length), reference)
    if "window" in controls and length not in self.refused and self.drawn in positions.GAPLESS:
      made += self._rows(length, "window", self._picked(*self._full(self.plain, length, window=self.trained), by_position=True), reference)
    return made

  def _full(self, model, length: int, window: int | None = None):
    """(losses, windows) at a length, with attention limited to `window` tokens or not."""
    windows = place(self.total, length, min(self.config.eval.stride or length, length), self.targets)
    scored = 0 if self._by_position(windows.length) else _needed(windows, self.config.eval.last_k)
    return self._losses(model, windows, None if window and length <= window else window, scored), windows

  def _picked(self, losses: np.ndarray, windows: Windows, by_position: bool = False) -> list[Picked]:
    """What every protocol takes out of the losses, and the tokens that these losses are of."""
    targets, k = windows.cut(self.tokens), self.config.eval.last_k
    both = zip(rows.selections(losses, windows, k), rows.selections(targets, windows, k), strict=True)
    picked = [Picked(protocol, found, scored) for (protocol, found), (_, scored) in both]
    if by_position and self._by_position(windows.length):
      parts = protocols.buckets(losses, windows), protocols.buckets(targets, windows)
      picked += [Picked({"protocol": "bucket", "bucket": f"{a}-{b}"}, parts[0][a, b], parts[1][a, b]) for a, b in parts[0]]
    return picked

  def _by_position(self, length: int) -> bool:
    """Whether windows of this length tell losses by position, for which all of their losses are computed."""
    return not 0 <= self.config.eval.buckets < length

  def _fed(self, length: int, context: int) -> list[Picked]:
    """The plain model that is only ever fed its last tokens: `context` of them, or at least 7/8 of that, before each target."""
    windows = place(self.total, context, max(1, context // 8), max(self.targets, self.config.eval.last_k))
    whole = protocols.sliding(self._losses(self.plain, windows, None, windows.needed), windows)
    return [
      Picked(protocol, whole[:, whole.shape[1] - n :], self.tokens[:, self.tokens.shape[1] - n :])
      for protocol in self._protocols(length)
      for n in [protocol.get("k") or self.targets]
    ]

  def _reference(self, length: int) -> list[Picked]:
    """What the plain model makes of the same targets if it forgets all but the last tokens of its trained length."""
    if length <= self.trained:  # there is nothing to forget
      return self._picked(*self._full(self.plain, length))
    return self._fed(length, self.trained)

  def _losses(self, model, windows: Windows, window: int | None, scored: int = 0) -> np.ndarray:
    """Losses [documents, windows, length], kept in a file; nan but for the last `scored` of a window where that is not 0."""
    about = {
      "encoding": repr(model.encoding), "params": self.digest, "window": window, "step": self.step, "windows": dataclasses.asdict(windows),
      "tokens": protocols.target_hash(self.tokens), "data": self.corpus.fingerprint,
    }  # fmt: skip
    place = None
    if self.drawn != positions.CONSECUTIVE:
      about["positions"] = (self.drawn, self.config.positions.range, self.config.positions.chunks, self.config.seed)
      place = lambda document, start: positions.window(
        self.drawn, self.config.positions, windows.length, "eval", self.config.seed, document, start
      )
    if scored:
      about["scored"] = scored
    about = json.dumps(about, sort_keys=True)
    path = self.workdir / "losses" / f"{windows.length}-{hashlib.sha256(about.encode()).hexdigest()[:16]}.npz"
    if path.exists():
      with np.load(path) as kept:
        return kept["losses"]
    started = time.time()
    narrow = min((w for w in (window, model.window) if w), default=None)
    losses = window_losses(dataclasses.replace(model, window=narrow), self.params, self.tokens, windows, positions=place, scored=scored)
    self.seconds += time.time() - started
    self.computed += losses.size
    chips = chips_of(model, losses.shape[0] * losses.shape[1], windows.length)
    self.flops += cost.forward(self.config, windows.length, window or 0) * losses.size / windows.length / chips
    temporary = path.with_suffix(f".{os.getpid()}.tmp.npz")
    np.savez(temporary, losses=losses, about=about, starts=np.asarray(windows.starts))
    os.replace(temporary, path)
    limited = f", attention to the last {window}" if window else ""
    name = f" + {self.config.extension.name}" if self.extension is not None and model is self.model else ""
    size = f"{losses.shape[1]} windows of {losses.shape[0]} documents"
    self.say(f"{self.config.encoding.name}{name} at {windows.length} tokens{limited}: {size} in {time.time() - started:.1f} s")
    return losses

  def _rows(self, length: int, control: str, picked: list[Picked], reference: list[Picked]) -> list[results.Row]:
    bound = {json.dumps(each.protocol): measure(each.losses) for each in reference}
    return [self._row(length, control, each, measure(each.losses), bound.get(json.dumps(each.protocol))) for each in picked]

  def _without_number(self, length: int) -> list[results.Row]:
    """Rows that say why there is no number."""
    targets = {"nonoverlapping": self.targets, "sliding": self.targets, "last_k": self.config.eval.last_k}
    made = []
    for protocol in self._protocols(length):
      n = targets[protocol["protocol"]]
      nothing = Measure(float("nan"), None, n * len(self.tokens), len(self.tokens))
      scored = self.tokens[:, self.tokens.shape[1] - n :]
      made.append({**self._row(length, "", Picked(protocol, np.empty(0), scored), nothing, None), "note": self.refused[length]})
    return made

  def _protocols(self, length: int) -> list[dict[str, Any]]:
    """The protocols over whole windows that are asked for."""
    stride, k = self.config.eval.stride, self.config.eval.last_k
    made: list[dict[str, Any]] = [] if length % (stride or length) else [{"protocol": "nonoverlapping", "stride": length}]
    if stride and stride < length:
      made.append({"protocol": "sliding", "stride": stride})
    return made + ([{"protocol": "last_k", "k": k}] if k else [])

  def _row(self, length: int, control: str, picked: Picked, result: Measure, reference: Measure | None) -> results.Row:
    scored = picked.scored
    # Not by position: those are many rows, and comparisons are over whole windows.
    each = {} if picked.protocol["protocol"] == "bucket" else {"document_losses": rows.document_losses(picked.losses)}
    extension = self.extension if control == "" else None
    return {
      **rows.identity(self.workdir, self.config, self.trained, extension, length, self.corpus, self.step, self.params),
      **picked.protocol,
      "control": control,
      **rows.fields(result, reference, max(1, self.corpus.num_bytes(scored)) / scored.size),
      **each,
      "target_hash": protocols.target_hash(scored),
      "context": "no separator before the first token",
      **({} if self.drawn == positions.CONSECUTIVE else {"positions": self.drawn}),
    }

  def summary(self, names) -> None:
    pace = f"{self.computed / self.seconds:,.0f} tokens/s" if self.seconds else "all losses were there already"
    speed.note("evaluate", self.config, self.flops, self.seconds)
    self.say(f"{len(names)} documents, the last {self.targets} tokens of each scored at every length; {pace}")


def _fit(settings, asked: Mapping[str, Any], say: Callable[[str], None]) -> None:
  """What the run's own settings want of longer windows than these is cut to the shortest one; what was asked for is left alone."""
  if not settings.lengths or min(settings.lengths) < 1:  # these are refused later
    return
  fits = {"targets": fitting(settings.targets, settings.lengths), "last_k": min(settings.last_k, min(settings.lengths))}
  for field, value in fits.items():
    if f"eval.{field}" not in asked and value != settings[field]:
      say(f"eval.{field}={settings[field]} of the run exceeds these windows: {value} are used")
      settings[field] = value


def _check_text(config, trained) -> None:
  """Refuses another text if its tokens would not be those of the model."""
  same = (config.data.name, config.data.path) == (trained.data.name, trained.data.path)
  if not same and config.data.tokenizer != "bytes":
    raise UserError(
      f"the model reads pieces of {trained.data.name!r}, and another text would get pieces of its own; "
      "evaluate on its own data, or train with data.tokenizer=bytes"
    )


def _needed(windows: Windows, last_k: int) -> int:
  """How many of a window's last losses the protocols other than the buckets take."""
  steps = windows.length // windows.stride
  coarse = windows.every(steps)[0].needed if steps * windows.stride == windows.length else 0
  return max(windows.needed, coarse, min(last_k, windows.length))
