"""Samplers of positions: what they may give, how often, that they are functions of their key, and what a model makes of them."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from posx import config as configs
from posx import data, decoder, positions
from posx.errors import UserError
from posx.evaluation.losses import window_losses
from posx.evaluation.windows import place

NAMES = list(positions.SAMPLERS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("length", "span"), [(1, 9), (2, 3), (7, 7), (12, 13), (16, 500)])
def test_positions_rise_strictly_inside_the_span(name, length, span):
  draws = [positions.SAMPLERS[name](length, span, seed, 3) for seed in range(200)]
  for drawn in draws:
    assert drawn.dtype == np.int32 and drawn.shape == (length,)
    assert drawn.min() >= 0 and drawn.max() < span
    assert (np.diff(drawn) > 0).all()
  np.testing.assert_array_equal(draws[5], positions.SAMPLERS[name](length, span, 5, 3))
  if span > length and (name, length) != ("skipwise", 1):
    assert len({drawn.tobytes() for drawn in draws}) > 1


def test_randomized_subsets_are_all_alike():
  """3 of 5: ten subsets, each a tenth of the draws."""
  n = 4000
  draws = [tuple(positions.randomized(3, 5, positions.key(seed)).tolist()) for seed in range(n)]
  counts = {subset: draws.count(subset) for subset in set(draws)}
  assert len(counts) == 10
  assert max(abs(c - n / 10) for c in counts.values()) < 5 * (n * 0.1 * 0.9) ** 0.5


def test_shifts_are_uniform_and_reach_both_ends():
  starts = np.bincount([positions.shifted(3, 8, positions.key(seed))[0] for seed in range(3000)])
  assert starts.shape == (6,) and abs(starts - 500).max() < 5 * (3000 / 6 * 5 / 6) ** 0.5
  assert np.diff(positions.shifted(9, 100, 4)).tolist() == [1] * 8


def test_skips_are_between_chunks_only():
  """Two chunks of 6 tokens in 20 positions: one gap, at a place and of a size that are both uniform (0 .. 14)."""
  places, skips = [], []
  for seed in range(3000):
    drawn = positions.skipwise(6, 20, positions.key(seed))
    assert drawn[0] == 0
    gaps = np.diff(drawn) - 1
    assert (gaps > 0).sum() <= 1
    skips.append(gaps.sum())
    places += (np.flatnonzero(gaps) + 1).tolist()
  assert sorted(set(places)) == [1, 2, 3, 4, 5] and abs(np.bincount(places)[1:] - len(places) / 5).max() < 5 * (3000 / 5) ** 0.5
  assert sorted(set(skips)) == list(range(15)) and abs(np.bincount(skips) - 200).max() < 5 * 200**0.5
  many = [np.count_nonzero(np.diff(positions.skipwise(30, 10_000, seed, 5)) > 1) for seed in range(50)]
  assert max(many) == 4 and min(many) >= 1


def test_stretches_are_even_and_reach_far():
  last = []
  for seed in range(500):
    drawn = positions.scaled(10, 1000, positions.key(seed))
    steps = np.diff(drawn)
    assert steps.max() - steps.min() <= 1
    last.append((drawn[-1] - drawn[0]) / 9)
  # log-uniform in [1, 100]: a third below 100^(1/3), a third above 100^(2/3)
  assert 0.25 < np.mean(np.asarray(last) < 100 ** (1 / 3)) < 0.42 and 0.25 < np.mean(np.asarray(last) > 100 ** (2 / 3)) < 0.42


TEXT = [" ".join(f"{who} says {n * k % 97}." for n in range(60)) for k, who in enumerate(("Ann", "Bob", "Cy", "Di"))]


def settings(encoding="rope", **fields):
  config = configs.default(encoding)
  config.model.update(num_layers=1, model_dim=16, num_heads=2, mlp_dim=32)
  config.train.update(length=16, batch_size=4, steps=4, warmup_steps=1)
  config.eval.update(lengths=(16, 32), last_k=8)
  config.positions.update(fields)
  return config


def test_rows_of_a_batch_are_named_by_their_number():
  """The same row of the run has the same positions whatever the batch it comes in; rows, seeds and samplers differ."""
  config = settings(train="randomized", range=99)
  corpus = data.from_texts(TEXT)
  draw = lambda batch_size, step, seed=0, name="randomized": positions.in_batch(
    data.batch(corpus, seed=seed, step=step, batch_size=batch_size, length=16), name, config.positions, seed=seed, first=step * batch_size
  )
  whole = np.concatenate([draw(4, 0)["positions"], draw(4, 1)["positions"]])
  np.testing.assert_array_equal(np.concatenate([draw(2, step)["positions"] for step in range(4)]), whole)
  others = [draw(8, 0, 1)["positions"], draw(8, 0, 0, "shifted")["positions"]]
  assert len({row.tobytes() for rows in (whole, *others) for row in rows}) == 24
  assert "positions" not in draw(4, 0, 0, "consecutive")
  np.testing.assert_array_equal(draw(4, 0)["tokens"], draw(4, 0, 0, "consecutive")["tokens"])


@pytest.mark.parametrize("name", NAMES)
def test_documents_of_a_packed_window_draw_each_for_itself(name):
  config = settings(train=name, range=64)
  segments = np.array([[1] * 5 + [2] * 1 + [3] * 7 + [0] * 3, [1] * 16])
  batch = {"tokens": np.zeros((2, 16), np.int32), "segments": segments}
  found = positions.in_batch(batch, name, config.positions, seed=0, first=6)["positions"]
  assert found.shape == (2, 16) and found.dtype == np.int32 and not found[0, 13:].any()
  for a, b in ((0, 5), (6, 13)):
    assert (np.diff(found[0, a:b]) > 0).all()
  expected = positions.SAMPLERS[name](7, 64, positions.key("positions", name, "train", 0, 6, 6), config.positions.chunks)
  np.testing.assert_array_equal(found[0, 6:13], expected)


@pytest.mark.parametrize(
  ("encoding", "fields", "model", "message"),
  [
    ("rope", {"train": "randomised"}, {}, r"unknown config.positions.train 'randomised'; did you mean 'randomized'\?"),
    ("rope", {"train": "randomized"}, {}, r"config.positions.range must say from how many positions 'randomized' draws"),
    ("rope", {"eval": "shifted"}, {}, r"config.positions.range must say from how many positions 'shifted' draws"),
    ("rope", {"range": 64}, {}, r"config.positions.range=64 has no effect on consecutive positions"),
    ("rope", {"train": "shifted", "range": 16}, {}, r"config.positions.range=16 must exceed train.length=16"),
    ("rope", {"train": "skipwise", "range": 64, "chunks": 1}, {}, r"config.positions.chunks=1 leaves no skip"),
    ("rope", {"train": "scaled", "range": 64}, {"window": 8}, r"a window of 8 in config.model counts positions, and 'scaled' leaves gaps"),
    (
      "learned",
      {"train": "shifted", "range": 64},
      {},
      r"a learned table of 16 rows cannot serve 64 positions.*more rows",
    ),
  ],
)
def test_what_cannot_be_is_refused_before_anything_runs(encoding, fields, model, message):
  config = settings(encoding, **fields)
  config.model.update(model)
  with pytest.raises(UserError, match=message):
    configs.check(config)


def test_a_table_with_enough_rows_and_a_gapless_window_are_allowed():
  config = settings("learned", train="randomized", range=64)
  config.encoding.rows = 64
  configs.check(config)
  config = settings(train="shifted", range=64)
  config.model.window = 8
  configs.check(config)
  assert [positions.in_evaluation(settings(train=name, range=64).positions) for name in NAMES] == ["randomized"] + ["consecutive"] * 3
  assert positions.reach(settings().positions) == 0 and positions.reach(settings(eval="scaled", range=64).positions) == 64


def test_the_length_in_play_is_the_range():
  """An extension that follows the length sees how far positions reach, not how many tokens there are."""
  config = settings(train="skipwise", range=64)
  config.extension = configs.section("extension", "pi")
  model = decoder.from_config(config, 50)
  assert model.reach == 64 and decoder.from_config(settings(), 50).reach == 16
  tokens = np.random.default_rng(0).integers(0, 50, (1, 16)).astype(np.int32)
  params = model.init(jax.random.key(0), tokens)
  drawn = positions.skipwise(16, 64, 3)[None]
  found = jax.jit(lambda x: model.apply(params, tokens, positions=x))(drawn)
  config.extension.factor = 4.0  # 64 positions over 16 trained ones
  fixed = decoder.from_config(config, 50)
  np.testing.assert_allclose(found, fixed.apply(params, tokens, positions=drawn), atol=1e-5)


def test_evaluation_uses_the_positions_it_is_given():
  config = settings("sinusoidal", train="randomized", range=64)
  model = decoder.from_config(config, 50)
  tokens = np.random.default_rng(0).integers(0, 50, (2, 33)).astype(np.int32)
  params = model.init(jax.random.key(0), tokens[:, :-1])
  windows = place(32, 16, 16)
  draw = lambda document, start: positions.window("randomized", config.positions, 16, "eval", 0, document, start)
  found = window_losses(model, params, tokens, windows, positions=draw)
  assert np.abs(found - window_losses(model, params, tokens, windows)).max() > 1e-3
  for document in range(2):
    for n, start in enumerate(windows.starts):
      row = tokens[document, start : start + 17][None]
      alone = model.apply(params, row[:, :-1], row[:, 1:], positions=draw(document, start), method="token_losses")
      np.testing.assert_allclose(found[document, n], alone[0], atol=1e-5)
