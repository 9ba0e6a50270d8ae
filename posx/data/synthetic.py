"""Tasks with one right answer and as many items as one likes: copy, reverse, sort, addition, parity, induction, recall.

A task is trained like a text, by `data.name='task:copy'`; nothing is prepared, nothing is stored. A row is one instance:
a question of n items, then its answer, padded to the window. In training n is uniform over all that fit the window; an
evaluation fills the window. Only the answer is learned from.

Instance number i of a split is a pure function of (task, split, seed, i, n). The keys of the three splits differ, so an
instance of some size is not met again by accident.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from posx.data.shuffle import digest, key, mix, permute
from posx.data.store import Corpus
from posx.errors import UserError, unknown

PREFIX = "task:"
SPLITS = ("train", "validation", "test")
VERSION = 1

PAD, IS, END = 0, 1, 2
"""Token ids that mean the same in every task: padding, 'the answer follows', 'the answer ends'."""
_MARKS = ("_", "=", ".")
_FIRST = len(_MARKS)

RECALL_PAIRS = 4
_KEYS = 8


class Instance(NamedTuple):
  """Input tokens [t], what should follow each [t], and where that is part of the answer (bool [t])."""

  tokens: np.ndarray
  targets: np.ndarray
  answer: np.ndarray


@dataclasses.dataclass(frozen=True)
class Task:
  """A family of instances by number of items.

  Attributes:
    name: as in `data.name`, without 'task:'.
    symbols: the text of each token id.
    least: the smallest number of items.
    size: number of items -> input tokens of such an instance.
    make: (64-bit key, number of items) -> the instance.
  """

  name: str
  symbols: tuple[str, ...]
  least: int
  size: Callable[[int], int]
  make: Callable[[int, int], Instance]

  def items(self, length: int) -> int:
    """The most items of which an instance fits into a window.

    Raises:
      UserError: if the smallest instance does not fit.
    """
    if self.size(self.least) > length:
      raise UserError(f"task {self.name!r} needs windows of at least {self.size(self.least)} tokens, got {length}")
    # Sizes are linear in the items, so the last that fits is found at once.
    first, each = self.size(self.least), self.size(self.least + 1) - self.size(self.least)
    return self.least + (length - first) // each

  def rows(self, numbers: np.ndarray, *, seed: int, split: str, length: int, full: bool) -> dict[str, np.ndarray]:
    """Instances by number, padded to the window.

    Args:
      numbers: which instances, int64 [b].
      seed: names the sequence of instances.
      split: 'train', 'validation' or 'test'.
      length: t, tokens of a window.
      full: as many items as fit, or a number of items of each row's own.

    Returns:
      'tokens' and 'targets' int32 [b, t]; 'weights' float32 [b, t], 1 on the answer and 0 elsewhere.
    """
    most = self.items(length)
    out = {name: np.zeros((len(numbers), length), np.int32) for name in ("tokens", "targets")}
    weights = np.zeros((len(numbers), length), np.float32)
    for row, number in enumerate(np.asarray(numbers).tolist()):
      own = key("task", VERSION, self.name, split, seed, number)
      n = most if full else self.least + int(_draw(own, "items", 1, most - self.least + 1)[0])
      made = self.make(own, n)
      t = len(made.tokens)
      out["tokens"][row, :t], out["targets"][row, :t], weights[row, :t] = made.tokens, made.targets, made.answer
    return {**out, "weights": weights}


def _draw(own: int, what: str, n: int, below: int) -> np.ndarray:
  """n independent integers in 0 .. below - 1."""
  return (mix(np.arange(n), key(own, what)) % np.uint64(below)).astype(np.int64)


def _answered(question: np.ndarray, answer: np.ndarray) -> Instance:
  """The next token is the target; those of the answer count."""
  whole = np.concatenate([question, answer])
  return Instance(whole[:-1], whole[1:], np.arange(1, len(whole)) >= len(question))


# The tasks.


def _transformed(symbols: int, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[int, int], Instance]:
  """x1 .. xn = change(x1 .. xn) and the end, which is part of the answer: the model must know when to stop."""

  def make(own: int, n: int) -> Instance:
    x = _FIRST + _draw(own, "symbols", n, symbols)
    return _answered(np.append(x, IS), np.append(change(x), END))

  return make


def _addition(own: int, n: int) -> Instance:
  """a + b = s in decimal, the least digit first, s of n + 1 digits."""
  a, b = (_draw(own, name, n, 10) for name in "ab")
  s, carry = np.zeros(n + 1, np.int64), 0
  for i in range(n):
    carry, s[i] = divmod(int(a[i] + b[i]) + carry, 10)
  s[n] = carry
  plus = _FIRST + 10
  return _answered(np.concatenate([_FIRST + a, [plus], _FIRST + b, [IS]]), _FIRST + s)


def _parity(own: int, n: int) -> Instance:
  """After each bit the parity of all bits so far; every place is part of the answer."""
  bits = _draw(own, "bits", n, 2)
  return Instance(_FIRST + bits, _FIRST + np.cumsum(bits) % 2, np.ones(n, bool))


def _induction(own: int, n: int) -> Instance:
  """n items, then one of them that stands there once: what followed it is the answer."""
  asked, place = int(_draw(own, "asked", 1, 16)[0]), int(_draw(own, "place", 1, n - 1)[0])
  items = _draw(own, "symbols", n, 15)
  items += items >= asked
  items[place] = asked
  return _answered(_FIRST + np.append(items, asked), _FIRST + items[place + 1 : place + 2])


def _planted(own: int, n: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """n items of noise with a pair 'key value' at each of the places: (items, keys, values)."""
  noise = _FIRST + _KEYS
  items = noise + _draw(own, "noise", n, _KEYS)
  keys = _FIRST + permute(np.arange(len(places)), _KEYS, key(own, "keys"))
  values = noise + _draw(own, "values", len(places), _KEYS)
  items[places], items[places + 1] = keys, values
  return items, keys, values


def _recall(own: int, n: int) -> Instance:
  """Pairs 'key value' at random places among n items of noise; then every key again, in another order, with its value."""
  places = 2 * permute(np.arange(RECALL_PAIRS), n // 2, key(own, "places"))
  items, keys, values = _planted(own, n, places)
  order = permute(np.arange(RECALL_PAIRS), RECALL_PAIRS, key(own, "order"))
  asked = np.stack([keys[order], values[order]], 1).reshape(-1)
  made = _answered(items, asked)
  return made._replace(answer=made.answer & (np.arange(1, n + len(asked)) % 2 == (n + 1) % 2))


class Asked(NamedTuple):
  """An instance of recall that ends with one key: input tokens, the place of its value among them, and another value."""

  tokens: np.ndarray
  place: int
  wrong: int


def recall_at(own: int, *, length: int, depth: float, pairs: int = RECALL_PAIRS) -> Asked:
  """Recall of the pair at a depth: 0 at the start of the window, 1 right before the key that asks; the other pairs at random places.

  Raises:
    UserError: for a depth outside 0 .. 1, or pairs that the window or the alphabet cannot hold.
  """
  room = (length - 1) // 2
  if not 0 <= depth <= 1 or not 1 <= pairs <= min(_KEYS, room):
    most = min(_KEYS, room)
    raise UserError(f"recall in a window of {length} tokens needs a depth in 0 .. 1 and 1 to {most} pairs, got {depth} and {pairs}")
  mine = round(depth * (room - 1))
  others = permute(np.arange(pairs - 1), room - 1, key(own, "places")) if pairs > 1 else np.zeros(0, np.int64)
  places = 2 * np.append(mine, others + (others >= mine))
  items, keys, values = _planted(own, length - 1, places)
  step = 1 + int(_draw(own, "wrong", 1, _KEYS - 1)[0])
  wrong = _FIRST + _KEYS + (int(values[0]) - _FIRST - _KEYS + step) % _KEYS
  return Asked(np.append(items, keys[0]), int(places[0]) + 1, wrong)


def _task(name: str, symbols: str, least: int, size: Callable[[int], int], make: Callable[[int, int], Instance]) -> Task:
  return Task(name, (*_MARKS, *symbols), least, size, make)


_LETTERS = "abcdefghijklmnop"

TASKS = {
  task.name: task
  for task in (
    _task("copy", _LETTERS, 1, lambda n: 2 * n + 1, _transformed(16, lambda x: x)),
    _task("reverse", _LETTERS, 1, lambda n: 2 * n + 1, _transformed(16, lambda x: x[::-1])),
    _task("sort", _LETTERS, 1, lambda n: 2 * n + 1, _transformed(16, np.sort)),
    _task("addition", "0123456789+", 1, lambda n: 3 * n + 2, _addition),
    _task("parity", "01", 1, lambda n: n, _parity),
    _task("induction", _LETTERS, 2, lambda n: n + 1, _induction),
    _task("recall", "ABCDEFGH" + "abcdefgh", 2 * RECALL_PAIRS, lambda n: n + 2 * RECALL_PAIRS - 1, _recall),
  )
}


# As a corpus.


@dataclasses.dataclass(frozen=True)
class Symbols:
  """The tokenizer of a task: one symbol, one token."""

  symbols: tuple[str, ...]

  @property
  def vocab_size(self) -> int:
    return len(self.symbols)

  def encode(self, text: str) -> np.ndarray:
    return np.asarray([self.symbols.index(symbol) for symbol in text], np.int32)

  def decode(self, tokens: np.ndarray) -> str:
    return "".join(self.symbols[i] for i in np.asarray(tokens).reshape(-1).tolist())

  def token_bytes(self) -> np.ndarray:
    return np.asarray([len(symbol) for symbol in self.symbols], np.int32)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TaskCorpus(Corpus):
  """A corpus without documents, whose batches are made. `posx.data.batch` takes it like any other.

  Attributes:
    task: makes the instances.
  """

  task: Task


def is_task(name: str) -> bool:
  """Whether a `data.name` names a task."""
  return name.startswith(PREFIX)


def find(name: str) -> Task:
  """The task of a `data.name`, 'task:copy'.

  Raises:
    UserError: if there is none of that name; lists the known ones.
  """
  short = name.removeprefix(PREFIX)
  if short not in TASKS:
    raise UserError(unknown("task", short, TASKS))
  return TASKS[short]


def check_packing(packing: str) -> None:
  """Raises UserError unless rows are one instance each."""
  if packing != "documents":
    raise UserError(f"a task has one instance in a window: data.packing must be 'documents', got {packing!r}")


def load(name: str, split: str) -> TaskCorpus:
  """The corpus of a task.

  Raises:
    UserError: for an unknown task or split.
  """
  task = find(name)
  if split not in SPLITS:
    raise UserError(f"task {task.name!r} has no split {split!r}; it has {', '.join(SPLITS)}")
  return TaskCorpus(
    tokens=np.zeros(0, np.uint8),
    offsets=np.zeros(1, np.int64),
    names=(),
    tokenizer=Symbols(task.symbols),
    fingerprint=digest("task", VERSION, task.name, split),
    split=split,
    dataset=name,
    task=task,
  )
