"""Synthetic tasks: instances against rules written again in plain Python, windows that are pure functions of (seed, step)."""

from __future__ import annotations

import numpy as np
import pytest

from posx import config as configs
from posx import data
from posx.data import synthetic
from posx.errors import UserError

NAMES = list(synthetic.TASKS)


def settings(name, **more):
  return configs.override(configs.default(), {"data.name": f"task:{name}", "eval.last_k": 0, "eval.lengths": "64", **more})


def shown(batch, row, corpus):
  """(the instance's tokens, its answer) as text; a place that does not count is a space."""
  targets, weights = batch["targets"][row], batch["weights"][row]
  answer = "".join(corpus.decode(t) if w else " " for t, w in zip(targets, weights, strict=True))
  return corpus.decode(batch["tokens"][row]).rstrip("_"), answer.rstrip()


def question_and_answer(name, tokens, answer):
  if name == "parity":
    return tokens, answer
  question, _, given = tokens.partition("=")
  # all of the answer but its last symbol is input as well, and what counts begins after the mark
  assert answer == " " * len(question) + answer.strip() and given == answer.strip()[:-1]
  return question, answer.strip()


RULES = {
  "copy": lambda q: q + ".",
  "reverse": lambda q: q[::-1] + ".",
  "sort": lambda q: "".join(sorted(q)) + ".",
  "addition": lambda q: f"{sum(int(term[::-1]) for term in q.split('+')):0{len(q) // 2 + 1}d}"[::-1],
  "parity": lambda q: "".join(str(q[: i + 1].count("1") % 2) for i in range(len(q))),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("length", [17, 64])
def test_answers_follow_the_rule(name, length):
  corpus = data.load(settings(name).data, "train")
  batch = data.batch(corpus, seed=3, step=2, batch_size=16, length=length)
  sizes = set()
  for row in range(16):
    question, answer = question_and_answer(name, *shown(batch, row, corpus))
    assert answer == RULES[name](question)
    sizes.add(len(question))
  assert len(sizes) > 4, "training sees many sizes"


def test_induction_asks_for_what_followed_the_symbol_that_stands_there_once():
  corpus = synthetic.load("task:induction", "train")
  batch = data.batch(corpus, seed=0, step=0, batch_size=64, length=33)
  places = set()
  for row in range(64):
    tokens, answer = shown(batch, row, corpus)
    items, asked = tokens[:-1], tokens[-1]
    assert items.count(asked) == 1 and not items.endswith(asked)
    assert answer == " " * len(items) + items[items.index(asked) + 1]
    places.add(len(items) - items.index(asked))
  assert min(places) == 2 and max(places) > 24, "asked at all distances"


def test_recall_asks_every_key_once_and_wants_the_symbol_that_followed_it():
  corpus = synthetic.load("task:recall", "train")
  batch = data.batch(corpus, seed=0, step=0, batch_size=16, length=64)
  pairs = synthetic.RECALL_PAIRS
  for row in range(16):
    tokens, answer = shown(batch, row, corpus)
    text, asked = tokens[: -(2 * pairs - 1)], tokens[-(2 * pairs - 1) :]
    keys = asked[::2]
    assert keys.isupper() and len(set(keys)) == pairs and all(text.count(k) == 1 for k in keys)
    assert sum(c.isupper() for c in text) == pairs
    assert answer[len(text) :: 2] == "".join(text[text.index(k) + 1] for k in keys)
    assert answer[: len(text)].strip() == "" and set(answer[len(text) + 1 :: 2]) == {" "}


@pytest.mark.parametrize("name", NAMES)
def test_full_windows_hold_as_many_items_as_fit(name):
  task = synthetic.TASKS[name]
  for length in (task.size(task.least), 33, 48, 512):
    n = task.items(length)
    assert task.size(n) <= length < task.size(n + 1)
    rows = task.rows(np.arange(3), seed=0, split="test", length=length, full=True)
    answers = rows["weights"].sum(1)
    assert (answers == answers[0]).all() and answers[0] >= 1 and rows["tokens"].shape == (3, length)
    assert ((rows["tokens"] != synthetic.PAD).sum(1) == task.size(n)).all()


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_pure_functions_and_differ_by_seed_step_and_split(name):
  def tokens(split="train", **changes):
    arguments = {"seed": 0, "step": 5, "batch_size": 4, "length": 64, **changes}
    return data.batch(synthetic.load(f"task:{name}", split), **arguments)["tokens"]

  np.testing.assert_array_equal(tokens(), tokens())
  for other in (tokens(seed=1), tokens(step=6), tokens("test")):
    assert (other != tokens()).any()
  halves = [tokens(shard=(i, 2)) for i in range(2)]
  np.testing.assert_array_equal(np.concatenate(halves), tokens())
  whole = tokens(step=2, batch_size=8)  # rows 16 .. 23
  np.testing.assert_array_equal(whole[4:], tokens(step=5))


def test_symbols_are_spread_evenly():
  rows = synthetic.TASKS["copy"].rows(np.arange(64), seed=0, split="train", length=129, full=True)
  counts = np.bincount(rows["tokens"][:, :64].reshape(-1), minlength=19)[3:]
  # 4,096 draws of 16 symbols: 256 each, standard deviation 15.5
  assert counts.sum() == 4096 and (abs(counts - 256) < 5 * 15.5).all()


@pytest.mark.parametrize(
  ("name", "changes", "message"),
  [
    ("copi", {}, "unknown task 'copi'; did you mean 'copy'"),
    ("recall", {"train.length": 10}, "task 'recall' needs windows of at least 15 tokens, got 10"),
    ("recall", {"eval.lengths": "12,64"}, "task 'recall' needs windows of at least 15 tokens, got 12"),
    ("copy", {"data.packing": "packed"}, "data.packing must be 'documents', got 'packed'"),
    ("copy", {"data.tokenizer": "sentencepiece", "data.vocab_size": 400}, "has no effect on task 'copy'"),
  ],
)
def test_what_cannot_be_is_refused(name, changes, message):
  with pytest.raises(UserError, match=message):
    configs.check(settings(name, **changes))


def test_there_is_nothing_to_prepare_and_no_other_split():
  with pytest.raises(UserError, match="task:copy needs no preparation"):
    data.prepare(settings("copy").data)
  with pytest.raises(UserError, match="no split 'dev'; it has train, validation, test"):
    data.load(settings("copy").data, "dev")


def test_symbols_are_text_and_back():
  corpus = synthetic.load("task:addition", "test")
  assert corpus.decode(corpus.encode("12+3=")) == "12+3=" and corpus.vocab_size == 14
