"""Answers: log-probability, rank and exact match against plain softmax over the model's own logits; windows of a task as rows."""

from __future__ import annotations

import numpy as np
import pytest

from posx import config as configs
from posx import decoder
from posx.data import synthetic
from posx.errors import UserError
from posx.evaluation import answers, tasks
from posx.study import results


@pytest.fixture(scope="module")
def small():
  """(configuration, model, parameters) of an untrained model of a task."""
  import jax

  config = configs.default("learned")
  config.model.update(num_layers=1, model_dim=16, num_heads=2, mlp_dim=32)
  config.data.name = "task:copy"
  config.train.length = 16
  config.eval.update(lengths=(16, 24), documents=5, last_k=0, controls=())
  corpus = synthetic.load("task:copy", "test")
  model = decoder.from_config(config, corpus.vocab_size)
  params = model.init(jax.random.key(0), np.zeros((1, 16), np.int32))
  return config, model, params, corpus


def test_scores_are_those_of_the_logits(small):
  _, model, params, _ = small
  rng = np.random.default_rng(0)
  tokens, places = rng.integers(0, 19, (3, 16)).astype(np.int32), np.array([2, 7, 15])
  logits = np.asarray(model.apply(params, tokens), np.float64)[:, places]
  targets = np.stack([logits[:, 0].argmax(-1), logits[:, 1].argmin(-1), rng.integers(0, 19, 3)], 1).astype(np.int32)
  scores = answers.score(model, params, tokens, targets, places)
  own = np.take_along_axis(logits, targets[..., None], -1)
  np.testing.assert_allclose(scores.losses, np.log(np.exp(logits).sum(-1)) - own[..., 0], atol=1e-5)
  np.testing.assert_array_equal(scores.ranks, (logits > own).sum(-1))
  assert (scores.ranks[:, 0] == 0).all() and (scores.ranks[:, 1] == 18).all()


def test_fields_count_whole_answers():
  fields = answers.Scores(np.array([[1.0, 3.0], [0.0, 0.0]], np.float32), np.array([[0, 2], [0, 0]])).fields()
  assert (fields["accuracy"], fields["exact"], fields["rank"], fields["loss"]) == (0.75, 0.5, 0.5, 1.0)
  assert fields["perplexity"] is None and fields["tokens"] == 4 and fields["documents"] == 2


def test_a_model_that_prefers_nothing_is_never_right(small):
  import jax

  _, model, params, _ = small
  flat = jax.tree.map(np.zeros_like, params)
  scores = answers.score(model, flat, np.zeros((2, 4), np.int32), np.zeros((2, 2), np.int32), np.array([1, 3]))
  assert (scores.ranks == 18).all()
  broken = jax.tree.map(lambda x: np.full_like(x, np.nan), params)
  fields = answers.score(model, broken, np.zeros((2, 4), np.int32), np.zeros((2, 2), np.int32), np.array([1, 3])).fields()
  assert fields["exact"] == 0 and fields["loss"] is None and "nan" in fields["note"]


def test_rows_of_a_task(small, tmp_path):
  config, _, params, corpus = small
  said: list[str] = []
  made = tasks.evaluate(tmp_path, config, config, params, corpus, 7, "note", said.append)
  results.append(tmp_path / results.FILE, made)  # which checks every field
  first, second = made
  # 16 tokens hold 7 symbols, their copy and the mark between; the end is answered too
  assert (first["protocol"], first["items"], first["tokens"], first["documents"]) == ("task", 7, 5 * 8, 5)
  assert first["data"] == "task:copy" and first["loss"] > 0 and first["perplexity"] is None
  assert second["loss"] is None and "23 positions" in second["note"] and len(said) == 1
  with pytest.raises(UserError, match="23 positions"):
    tasks.evaluate(tmp_path, config, config, params, corpus, 7, "error")


def test_instances_have_to_be_counted(small, tmp_path):
  config, _, params, corpus = small
  other = configs.from_json(configs.to_json(config))
  other.eval.documents = 0
  with pytest.raises(UserError, match=r"give eval\.documents"):
    tasks.evaluate(tmp_path, other, config, params, corpus, 7, "note")
