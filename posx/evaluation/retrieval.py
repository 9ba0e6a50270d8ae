"""Recall of a fact far back: a key is written into a text at some depth and asked for at its end, under teacher forcing.

    ... text ... The pass key of Ada is 40718. ... text ... The pass key of Ada is 40718

Scored are the digits after the question. The control 'wrong_key' has the same window and the same digits after the question,
but other digits in the fact: what the first gains over it can only come from the fact. With several facts the key of one
name is asked for among those of others (associative recall). A run of the task that trains recall (posx/data/synthetic.py) is asked
in the words of its task.

Reference:
  Mohtashami, Jaggi, "Landmark Attention", 2023, section 4.2 (passkey). arXiv:2305.16300
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from posx import data
from posx.data import synthetic
from posx.data.shuffle import key as hashed
from posx.data.shuffle import permute
from posx.data.store import Corpus
from posx.data.synthetic import TaskCorpus
from posx.errors import UserError
from posx.evaluation import answers, protocols
from posx.evaluation.subject import Subject
from posx.study.results import Row

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal")
DIGITS = 5
_BEFORE, _AFTER = "\nThe pass key of {} is ", ".\n"


class Prompt(NamedTuple):
  """One window of each kind, and what is scored after their last inputs.

  Attributes:
    tokens: int32 [t], the fact holds the key.
    wrong: int32 [t], the fact holds another key; all else is the same.
    targets: int32 [5], the key.
    distance: from the first digit in the fact to the place that must predict it, in tokens.
  """

  tokens: np.ndarray
  wrong: np.ndarray
  targets: np.ndarray
  distance: int


def keys(corpus: Corpus, filler: np.ndarray, count: int, seed: int) -> list[np.ndarray]:
  """Different keys, as tokens, none of which stands in the filler."""
  found: list[np.ndarray] = []
  attempt = 0
  while len(found) < count:
    number = int(permute(np.array([attempt]), 10**DIGITS, hashed("keys", seed))[0])
    # digit by digit, so that a key has as many tokens under every tokenizer
    tokens = np.concatenate([corpus.encode(digit) for digit in f"{number:0{DIGITS}d}"]).astype(np.int32)
    attempt += 1
    if not contains(filler, tokens):
      found.append(tokens)
  return found


def contains(tokens: np.ndarray, part: np.ndarray) -> bool:
  """Whether `part` stands somewhere in `tokens`."""
  if len(part) > len(tokens):
    return False
  return bool((np.lib.stride_tricks.sliding_window_view(tokens, len(part)) == part).all(1).any())


def prompt(corpus: Corpus, filler: np.ndarray, *, length: int, depth: float, facts: int = 1, seed: int = 0) -> Prompt:
  """A window of exactly `length` input tokens.

  Args:
    corpus: encodes the facts.
    filler: int32, at least `length` tokens of text.
    length: t.
    depth: where the fact that is asked for stands in the filler; 0 at its start, 1 right before the question.
    facts: how many names have keys; the others are spread evenly.
    seed: names the keys and which name is asked for.

  Raises:
    UserError: if facts and question do not fit into the window, or for a depth or number of facts out of range.
  """
  if not 0 <= depth <= 1 or not 1 <= facts <= len(NAMES):
    raise UserError(f"a prompt needs a depth in 0 .. 1 and 1 to {len(NAMES)} facts, got {depth} and {facts}")
  drawn = keys(corpus, filler[:length], facts + 1, seed)
  names = [NAMES[i] for i in permute(np.arange(facts), len(NAMES), hashed("names", seed)).tolist()]
  pieces = [(corpus.encode(_BEFORE.format(name)).astype(np.int32), key) for name, key in zip(names, drawn, strict=False)]
  end = corpus.encode(_AFTER).astype(np.int32)
  question, asked = pieces[0]
  written = [np.concatenate([before, key, end]) for before, key in pieces]
  room = length - sum(map(len, written)) - len(question) - (len(asked) - 1)
  if room < 0:
    raise UserError(f"{facts} facts and a question need {length - room} tokens, got a window of {length}; take a longer one")
  places = [round(depth * room), *(round((i + 0.5) / (facts - 1) * room) for i in range(facts - 1))]
  parts, start, at = [], 0, 0
  for i in np.argsort(places, kind="stable").tolist():
    parts += [filler[start : places[i]], written[i]]
    start = places[i]
    if i == 0:
      at = sum(map(len, parts)) - len(end) - len(asked)
  tokens = np.concatenate([*parts, filler[start:room], question, asked[:-1]]).astype(np.int32)
  wrong = tokens.copy()
  wrong[at : at + len(asked)] = drawn[-1]
  return Prompt(tokens, wrong, asked, length - len(asked) - at)


def _task_prompt(corpus: TaskCorpus, *, length: int, depth: float, pairs: int, seed: int) -> Prompt:
  """The same of the task that trains it, whose key is one token."""
  if corpus.task.name != "recall":
    raise UserError(f"the task {corpus.task.name!r} recalls nothing; give a run of a text or of task:recall")
  made = synthetic.recall_at(hashed("recall at", seed), length=length, depth=depth, pairs=pairs)
  tokens = made.tokens.astype(np.int32)
  wrong = tokens.copy()
  wrong[made.place] = made.wrong
  return Prompt(tokens, wrong, tokens[made.place : made.place + 1], length - 1 - made.place)


def evaluate(
  subject: Subject,
  *,
  lengths: Sequence[int],
  depths: Sequence[float],
  documents: int,
  facts: int = 1,
  seed: int = 0,
  say: Callable[[str], None] = print,
) -> list[Row]:
  """Rows for every length and depth: the key, and the control with a wrong one.

  Args:
    subject: the run, of a text or of task:recall.
    lengths: of the windows, tokens.
    depths: 0 .. 1.
    documents: how many texts, the longest ones, every one with a key of its own; or instances of the task.
    facts: 1 for a pass key, more for associative recall.
    seed: names the keys.
    say: receives a line for each length.

  Raises:
    UserError: if a window is too short for the facts, the text too short for a window, or the encoding cannot serve one.
  """
  corpus = subject.corpus
  if isinstance(corpus, TaskCorpus):
    one = lambda i, length, depth: _task_prompt(corpus, length=length, depth=depth, pairs=facts, seed=hashed(seed, i))
  else:
    fillers, _ = data.segments(corpus, length=max(lengths), documents=documents)
    one = lambda i, length, depth: prompt(corpus, fillers[i], length=length, depth=depth, facts=facts, seed=hashed(seed, i))
    documents = len(fillers)
  protocol, made = "passkey" if facts == 1 else "recall", []
  for length in sorted(lengths):
    for depth in sorted(depths):
      prompts = [one(i, length, depth) for i in range(documents)]
      targets = np.stack([p.targets for p in prompts])
      places = np.arange(length - targets.shape[1], length)
      windows = np.stack([p.tokens for p in prompts] + [p.wrong for p in prompts])
      drawn = answers.positions(subject.config, len(prompts), length)  # the same for a window and its control
      drawn = None if drawn is None else np.concatenate([drawn, drawn])
      scores = answers.score(subject.model, subject.params, windows, np.concatenate([targets, targets]), places, drawn)
      for control, half in (("", slice(None, len(prompts))), ("wrong_key", slice(len(prompts), None))):
        made.append({
          **subject.identity(length),
          **answers.Scores(scores.losses[half], scores.ranks[half]).fields(),
          "protocol": protocol,
          "control": control,
          "k": facts,
          "depth": float(depth),
          "distance": round(float(np.mean([p.distance for p in prompts]))),
          "target_hash": protocols.target_hash(targets),
        })  # fmt: skip
    right, wrong = (np.mean([row["loss"] for row in made if (row["length"], row["control"]) == (length, c)]) for c in ("", "wrong_key"))
    bits = (wrong - right) / np.log(2)
    say(f"{subject.label} at {length} tokens, {len(depths)} depths: {bits:+.3f} bits a token of the key over a wrong one")
  return made
