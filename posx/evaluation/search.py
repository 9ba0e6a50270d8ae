"""The search for LongRoPE's divisors on a trained run: its loss at the target length decides, on documents that no test is made of."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from posx import data, extensions, positions
from posx.encodings.base import Encoding
from posx.encodings.combine import Chain
from posx.encodings.layers import of_period
from posx.encodings.rope import RoPE
from posx.errors import UserError
from posx.evaluation import protocols, rows, subject
from posx.evaluation.losses import window_losses
from posx.evaluation.windows import place
from posx.extensions import search
from posx.files import append_rows, read_rows, write_atomic

DOCUMENTS = 4


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is searched for and how long.

  Attributes:
    factor: target length / trained length; sets LongRoPE's gain and, times 1.25, the largest divisor.
    length: tokens of a window; 0 for factor x trained length.
    documents: the longest ones of the split; 0 for those that are long enough, four at most.
    targets: the last tokens of a window, which the loss is of; 0 for as many as the trained length.
    population: candidates in every round, half of which are kept.
    rounds: how often.
    seed: of all random choices.
    split: of the text.
  """

  factor: float
  length: int = 0
  documents: int = 0
  targets: int = 0
  population: int = 16
  rounds: int = 20
  seed: int = 0
  split: str = "validation"

  def __post_init__(self):
    for name, least in (("population", 4), ("rounds", 0)):
      if getattr(self, name) < least:
        raise UserError(f"--{name} must be at least {least}, got {getattr(self, name)}")
    search.check(self.factor, population=self.population, parents=self.population // 2, rounds=self.rounds)
    for name in ("length", "documents", "targets", "seed"):
      if getattr(self, name) < 0:
        raise UserError(f"--{name} must not be negative, got {getattr(self, name)}")


def run(workdir: str | Path, settings: Settings, *, step: int | None = None, say: Callable[[str], None] = print) -> dict[str, Any]:
  """Searches, and returns what it writes to WORKDIR/search: the divisors, their loss, that of PI, NTK-aware scaling and YaRN.

  Every loss that the model was asked for is kept in a file as soon as it is known, and never computed again: not after an
  interruption, nor by a longer search or one with another seed.

  Args:
    workdir: the folder of a finished run.
    settings: of the search.
    step: which checkpoint; None for the last.
    say: receives the lines of progress and of the end.

  Raises:
    UserError: for a folder, a model or a text that it cannot search on.
  """
  loaded = subject.load(workdir, {}, split=settings.split, step=step)
  rope = _rope(loaded)
  asked = _Asked(loaded, settings)
  say(asked.title)
  began, fresh = time.time(), len(asked.known)

  def progress(round_: int, best: search.Factors, loss: float, count: int) -> None:
    new = len(asked.known) - fresh
    pace = f", {(time.time() - began) / new:.2f} s each" if new else ""
    say(f"round {round_} of {settings.rounds}: loss {loss:.4f}, {count} candidates, {new} of them new{pace}")

  sizes = (rope.rotary_dim or loaded.model.dims.head_dim, rope.base, settings.factor, loaded.model.dims.train_length)
  found = search.search(
    asked, rotary_dim=sizes[0], base=sizes[1], factor=sizes[2], original_length=sizes[3], population=settings.population,
    parents=settings.population // 2, rounds=settings.rounds, seed=settings.seed, progress=progress,
  )  # fmt: skip
  rivals = {"as trained": asked.under(None), **{n: asked.under(extensions.make(n, factor=settings.factor)) for n in search.starts(*sizes)}}
  made = {
    "about": asked.about, **dataclasses.asdict(settings), "length": asked.length, "documents": len(asked.tokens), "targets": asked.targets,
    "factors": found.factors, "loss": found.loss, "history": found.history, "candidates": found.evaluations,
    "others": rivals, "command": asked.command(found),
  }  # fmt: skip
  path = asked.path.with_name(f"{asked.path.stem}-{_digest(dataclasses.asdict(settings))}.json")
  write_atomic(path, json.dumps(_finite(made), indent=1, allow_nan=False) + "\n")
  for line in summary(made, path):
    say(line)
  return made


class _Asked:
  """The loss of divisors at the target length, kept in a file; constants are arguments, so all of them share one program."""

  def __init__(self, loaded: subject.Subject, settings: Settings):
    self.loaded, self.factor, trained = loaded, settings.factor, loaded.model.dims.train_length
    self.length = settings.length or round(settings.factor * trained)
    if self.length <= trained:
      raise UserError(f"divisors act beyond the trained length of {trained} tokens, got --length={self.length}; give more")
    enough = int((loaded.corpus.lengths > self.length).sum())
    documents = settings.documents or min(DOCUMENTS, max(enough, 1))
    self.tokens, self.names = data.segments(loaded.corpus, length=self.length, documents=documents)
    self.targets = settings.targets or min(trained, self.length)
    self.windows = place(self.length, self.length, self.length, self.targets)
    digest = {"tokens": protocols.target_hash(self.tokens), "params": rows.digest(loaded.params)}
    self.about = {
      "run": loaded.workdir.resolve().name, "step": loaded.step, "encoding": repr(loaded.model.encoding), "split": loaded.corpus.split,
      "length": self.length, "targets": self.targets, "factor": self.factor, "trained": trained, **digest,
    }  # fmt: skip
    self.path = loaded.workdir / "search" / f"{self.length}-{_digest(self.about)}.jsonl"
    try:
      self.path.parent.mkdir(exist_ok=True)
    except OSError as error:
      raise UserError(f"{self.path.parent} cannot be written: {error.strerror or error}; losses are kept there") from error
    self.params = jax.device_put(loaded.params)
    self.known = {tuple(row["factors"]): _number(row["loss"]) for row in read_rows(self.path)}

  @property
  def title(self) -> str:
    what = f"{len(self.tokens)} documents of {self.loaded.corpus.split}, the last {self.targets} of {self.length} tokens each"
    return f"{self.loaded.label} of {self.loaded.workdir}: {what}" + (f"; {len(self.known)} losses known" if self.known else "")

  def __call__(self, factors: search.Factors) -> float:
    if factors not in self.known:
      self.known[factors] = self.under(search.longrope(factors, self.factor))
      append_rows(self.path, [_finite({"factors": factors, "loss": self.known[factors]})])
    return self.known[factors]

  def under(self, extension: Any) -> float:
    """The loss under an extension, or None for the model as trained."""
    model = self.loaded.model
    if extension is not None:
      model = dataclasses.replace(model, encoding=extensions.apply(extension, model.encoding))
    losses = window_losses(model, self.params, self.tokens, self.windows, scored=self.windows.needed)
    return protocols.measure(protocols.sliding(losses, self.windows)).loss

  def command(self, found: search.Found) -> str:
    """Evaluates the divisors on the split of the run's evaluations; on this one where that has no document of the length."""
    settings = self.loaded.config.eval
    other = data.load(self.loaded.config.data, settings.split)
    enough = int((other.lengths > self.length).sum())
    where = f"--documents={min(settings.documents or enough, enough)}"
    if not enough:
      where = f"--split={self.loaded.corpus.split} --documents={len(self.tokens)}"
    lengths = f"{self.loaded.model.dims.train_length},{self.length}"
    return (
      f"python -m experiments.evaluate --workdir={self.loaded.workdir} --lengths={lengths} {where} "
      f"--extension=longrope --extension.factor={self.factor:g} --extension.long_factors={','.join(map(repr, found.factors))}"
    )


def summary(made: dict[str, Any], path: Path) -> list[str]:
  """The end of a search in words."""
  named = {"longrope, searched": made["loss"], **made["others"]}
  width = max(map(len, named))
  lines = [f"loss at {made['length']} tokens, {made['split']}, factor {made['factor']:g}"]
  lines += [f"  {name:{width}}  {loss:.4f}  perplexity {_exp(loss):.2f}" for name, loss in named.items()]
  better = [name for name, loss in made["others"].items() if loss <= made["loss"]]
  if better:
    lines.append(f"these divisors are no better than {', '.join(better)}; search longer (--rounds, --population) or with more --targets")
  return [*lines, "divisors " + " ".join(f"{x:.4g}" for x in made["factors"]), f"wrote {path}", "evaluate with them:", made["command"]]


def _rope(loaded: subject.Subject) -> RoPE:
  """The RoPE of the run, of which there must be one, not extended.

  Raises:
    UserError: if there is none, or layers have different ones.
  """
  drawn = positions.in_evaluation(loaded.config.positions)
  if drawn != positions.CONSECUTIVE:
    raise UserError(f"the search reads windows at consecutive positions, and evaluations of this run draw {drawn} ones")
  if loaded.extension is not None:
    raise UserError(f"{loaded.workdir} was trained under {type(loaded.extension).name}; divisors are searched for on RoPE as it is alone")
  layers = [part for part, window in of_period(loaded.model.encoding.split()[1]) if not window]
  ropes = {part for layer in layers for part in _parts(layer) if isinstance(part, RoPE)}
  if len(ropes) != 1:
    what = "no RoPE without a window" if not ropes else f"RoPEs that differ ({', '.join(map(repr, ropes))})"
    raise UserError(f"{loaded.workdir} has {what}: its encoding is {loaded.label}; LongRoPE's divisors are those of one RoPE")
  return next(iter(ropes))


def _parts(encoding: Encoding) -> list[Encoding]:
  return [inner for part in encoding.parts for inner in _parts(part)] if isinstance(encoding, Chain) else [encoding]


def _digest(about: Any) -> str:
  return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]


def _finite(tree: Any) -> Any:
  """The same for JSON: null where a number is not finite."""
  if isinstance(tree, dict):
    return {name: _finite(x) for name, x in tree.items()}
  if isinstance(tree, (list, tuple)):
    return [_finite(x) for x in tree]
  return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _number(value: float | None) -> float:
  return math.nan if value is None else value


def _exp(loss: float) -> float:
  with np.errstate(over="ignore"):
    return float(np.exp(np.float64(loss)))
