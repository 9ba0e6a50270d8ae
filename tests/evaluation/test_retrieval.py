"""Keys in a text: where they stand, that they stand there once, and what a model that copies and one that cannot make of them."""

from __future__ import annotations

import re
import types

import numpy as np
import pytest

from posx.data import from_texts, synthetic
from posx.errors import UserError
from posx.evaluation import answers, retrieval
from posx.study import results

TEXT = "".join(f"In the year {n} there was much to be said, and {n * n} said it. " for n in range(200))


@pytest.fixture(scope="module")
def corpus():
  return from_texts([TEXT, TEXT[::-1]], ["one", "two"])


@pytest.mark.parametrize("length", [200, 513])
@pytest.mark.parametrize("depth", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("facts", [1, 3])
def test_windows_have_the_length_and_one_key_at_its_depth(corpus, length, depth, facts):
  made = retrieval.prompt(corpus, corpus.document(0), length=length, depth=depth, facts=facts, seed=5)
  text, key = corpus.decode(made.tokens), corpus.decode(made.targets)
  assert len(made.tokens) == length and len(key) == 5 and key.isdigit()
  assert text.count(key) == 1 and text.endswith(key[:-1]) and text.count("The pass key of") == facts + 1
  name = text[: -len(key) + 1].rsplit("The pass key of ", 1)[1].removesuffix(" is ")
  assert f"The pass key of {name} is {key}.\n" in text
  # the question is at the last token before the answer, the first digit of the fact so many tokens before it
  assert length - 5 - made.distance == text.index(key)
  before, asked = (re.sub(r"\nThe pass key of \w+ is \d+\.\n", "", part) for part in text[: -len(key) + 1].split(f"{key}.\n"))
  before, asked = before.rsplit("\nThe", 1)[0], asked.rsplit("\nThe", 1)[0]
  assert TEXT.startswith(before + asked) and len(before) == round(depth * len(before + asked))


def test_the_control_differs_in_the_key_of_the_fact_alone(corpus):
  made = retrieval.prompt(corpus, corpus.document(0), length=300, depth=0.5, facts=2, seed=1)
  differ = np.flatnonzero(made.tokens != made.wrong)
  at = 300 - 5 - made.distance
  assert len(differ) and differ.min() >= at and differ.max() < at + 5
  assert corpus.decode(made.targets) not in corpus.decode(made.wrong)


def test_keys_are_not_in_the_filler(corpus):
  seen = np.concatenate([corpus.encode("0" * 4), *(retrieval.keys(corpus, np.zeros(0, np.int32), 3, seed=2))])
  again = retrieval.keys(corpus, seen, 3, seed=2)
  assert not any(retrieval.contains(seen, key) for key in again)
  assert len({key.tobytes() for key in again}) == 3


@pytest.mark.parametrize(
  ("changes", "message"),
  [({"length": 40}, r"need \d+ tokens, got a window of 40"), ({"depth": 1.5}, r"a depth in 0 \.\. 1"), ({"facts": 9}, "1 to 8 facts")],
)
def test_what_cannot_be_is_refused(corpus, changes, message):
  with pytest.raises(UserError, match=message):
    retrieval.prompt(corpus, corpus.document(0), **{"length": 300, "depth": 0.5, "seed": 1, **changes})


def scored_by(score, corpus, monkeypatch):
  """A run of this corpus whose answers are scored by a function instead of a model."""
  monkeypatch.setattr(answers, "score", score)
  monkeypatch.setattr(answers, "positions", lambda *a: None)
  identity = {
    "run": "r", "seed": 0, "encoding": "rope", "extension": "", "factor": None, "train_length": 64, "data": "t", "split": "test", "step": 1,
    "params": 1,
  }  # fmt: skip
  return types.SimpleNamespace(
    corpus=corpus, model=None, params=None, config=None, label="rope", identity=lambda length: {**identity, "length": length}
  )


def test_a_copier_recalls_every_key_and_a_wrong_key_tells(corpus, monkeypatch):
  """The scorer is replaced by one that repeats what followed the last occurrence of the question; so is nothing else."""

  def copier(model, params, tokens, targets, places, positions):
    ranks = np.empty(targets.shape, np.int32)
    for i, (window, answer) in enumerate(zip(tokens, targets, strict=True)):
      text = corpus.decode(window)
      question = text[text.rindex("\nThe pass key of") : len(text) - len(answer) + 1]
      found = text[text.index(question) + len(question) :][: len(answer)]
      ranks[i] = corpus.encode(found) != answer
    return answers.Scores(np.where(ranks == 0, 0.1, 3.0).astype(np.float32), ranks)

  subject = scored_by(copier, corpus, monkeypatch)
  rows = retrieval.evaluate(subject, lengths=(256, 400), depths=(0.0, 0.5, 1.0), documents=2, facts=2, say=lambda text: None)
  for row in rows:
    results.validate(row)
  assert len(rows) == 2 * 3 * 2 and len({results.key(row) for row in rows}) == len(rows)
  right, wrong = (results.select(rows, control=control) for control in ("", "wrong_key"))
  assert all(row["exact"] == 1 and row["protocol"] == "recall" for row in right)
  assert all(row["exact"] == 0 for row in wrong)
  near, far = right[2]["distance"], right[0]["distance"]
  assert near < far < 256


# The task that trains recall.


@pytest.mark.parametrize("length", [15, 64, 257])
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("pairs", [1, 4, 7])
def test_a_window_of_the_task_asks_for_the_pair_at_its_depth(length, depth, pairs):
  corpus = synthetic.load("task:recall", "test")
  made = retrieval._task_prompt(corpus, length=length, depth=depth, pairs=pairs, seed=3)
  text, value = corpus.decode(made.tokens), corpus.decode(made.targets)
  asked = text[-1]
  assert len(text) == length and len(value) == 1 and value.islower() and asked.isupper()
  assert sum(c.isupper() for c in text) == pairs + 1 and text.count(asked) == 2
  at = text.index(asked)
  assert text[at + 1] == value and made.distance == length - 1 - (at + 1)
  room = (length - 1) // 2
  assert at == 2 * round(depth * (room - 1))
  wrong = corpus.decode(made.wrong)
  assert wrong[at + 1] != value and wrong[at + 1].islower() and wrong[: at + 1] + wrong[at + 2 :] == text[: at + 1] + text[at + 2 :]


def test_a_model_that_looks_a_key_up_recalls_the_tasks_pairs(monkeypatch):
  corpus = synthetic.load("task:recall", "test")

  def looks_up(model, params, tokens, targets, places, positions):
    assert places.tolist() == [tokens.shape[1] - 1]
    found = [window[np.flatnonzero(window[:-1] == window[-1])[0] + 1] for window in tokens]
    ranks = (np.array(found)[:, None] != targets).astype(np.int32)
    return answers.Scores(np.where(ranks == 0, 0.1, 3.0).astype(np.float32), ranks)

  subject = scored_by(looks_up, corpus, monkeypatch)
  rows = retrieval.evaluate(subject, lengths=(32, 100), depths=(0.0, 1.0), documents=5, facts=4, say=lambda text: None)
  assert [row["accuracy"] for row in results.select(rows, control="")] == [1.0] * 4
  assert [row["accuracy"] for row in results.select(rows, control="wrong_key")] == [0.0] * 4
  assert {row["documents"] for row in rows} == {5}


@pytest.mark.parametrize(
  ("task", "changes", "message"),
  [
    ("recall", {"length": 8}, "needs a depth in 0 .. 1 and 1 to 3 pairs, got 0.5 and 4"),
    ("recall", {"depth": -0.1}, "got -0.1 and 4"),
    ("recall", {"pairs": 9}, "1 to 8 pairs, got 0.5 and 9"),
    ("copy", {}, "the task 'copy' recalls nothing; give a run of a text or of task:recall"),
  ],
)
def test_what_the_task_cannot_ask_is_refused(task, changes, message):
  with pytest.raises(UserError, match=message):
    retrieval._task_prompt(synthetic.load(f"task:{task}", "test"), **{"length": 40, "depth": 0.5, "pairs": 4, "seed": 1, **changes})
