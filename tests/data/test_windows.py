import itertools
import subprocess
import sys
import time

import numpy as np
import pytest

from posx import data
from posx.errors import UserError


def epoch(corpus, *, number=0, seed=0, length=8, packing="documents"):
  """All windows of one epoch, one a batch."""
  count = data.windows_per_epoch(corpus, length=length, packing=packing)
  steps = range(number * count, (number + 1) * count)
  batches = [data.batch(corpus, seed=seed, step=s, batch_size=1, length=length, packing=packing) for s in steps]
  return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}


# Positions.


def test_positions_restart_in_every_segment():
  assert data.positions_of(np.array([1, 1, 1, 2, 2, 0, 0])).tolist() == [0, 1, 2, 0, 1, 0, 0]
  assert data.positions_of(np.array([[3, 4, 4], [0, 0, 0], [1, 1, 1]])).tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 2]]
  assert data.positions_of(np.array([1, 2])).dtype == np.int32


# Windows inside documents.


@pytest.mark.parametrize("length", [1, 4, 8, 16])
def test_documents_every_window_once_inside_one_document(numbered, length):
  corpus = numbered(33, 5, 17, 100, 16)
  for number in range(3):
    got = epoch(corpus, number=number, length=length)
    assert np.array_equal(got["targets"], got["tokens"] + 1)
    assert (got["weights"] == 1).all()
    starts = np.sort(got["tokens"][:, 0])
    document = np.searchsorted(corpus.offsets, starts, side="right") - 1
    assert np.array_equal(
      document, np.searchsorted(corpus.offsets, got["targets"].max(axis=1)[np.argsort(got["tokens"][:, 0])], side="right") - 1
    )
    assert np.bincount(document, minlength=5).tolist() == [max(0, (n - 1) // length) for n in (33, 5, 17, 100, 16)]
    for i in range(5):
      assert (np.diff(starts[document == i]) == length).all()  # side by side: no target twice, none left out between


def test_documents_epochs_differ_in_order_and_in_cuts(numbered):
  corpus = numbered(100, 90)
  first, second = (epoch(corpus, number=n)["tokens"][:, 0] for n in (0, 1))
  assert not np.array_equal(np.argsort(first), np.argsort(second))  # the cuts alone keep the ranks
  cuts = {tuple(sorted(epoch(corpus, number=n)["tokens"][:, 0])) for n in range(8)}
  assert len(cuts) > 3


def test_seeds_differ(numbered):
  corpus = numbered(1000)
  first, second = (epoch(corpus, seed=s)["tokens"][:, 0] for s in (0, 1))
  assert not np.array_equal(np.argsort(first), np.argsort(second))


@pytest.mark.parametrize("packing", ["documents", "packed"])
def test_pure_function_of_seed_and_step(numbered, packing):
  """Fresh objects, any order of calls, another process with another hash seed: the same batch."""
  arguments = {"seed": 5, "batch_size": 3, "length": 8, "packing": packing}
  straight = [data.batch(numbered(50, 60, 70), step=s, **arguments) for s in range(20)]
  corpus = numbered(50, 60, 70)
  for s in (13, 2, 19, 13):
    again = data.batch(corpus, step=s, **arguments)
    assert all(np.array_equal(again[name], straight[s][name]) for name in again)
  script = f"""
import numpy as np
from posx import data
corpus = data.from_texts(["x" * 50, "y" * 60, "z" * 70])
corpus = data.Corpus(np.arange(180, dtype=np.int32), corpus.offsets, corpus.names, corpus.tokenizer, "")
print(data.batch(corpus, step=13, **{arguments!r})["tokens"].tolist())"""
  other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"})
  assert other.stdout.strip() == str(straight[13]["tokens"].tolist())


@pytest.mark.parametrize("packing", ["documents", "packed"])
def test_batch_size_only_groups_the_windows(numbered, packing):
  """Batches that reach over the end of an epoch go on with the next one."""
  corpus = numbered(50, 61)
  singles = [data.batch(corpus, seed=1, step=s, batch_size=1, length=8, packing=packing)["tokens"] for s in range(35)]
  fives = [data.batch(corpus, seed=1, step=s, batch_size=5, length=8, packing=packing)["tokens"] for s in range(7)]
  assert np.array_equal(np.concatenate(singles), np.concatenate(fives))


@pytest.mark.parametrize("packing", ["documents", "packed"])
def test_shards_are_the_whole_batch(numbered, packing):
  corpus = numbered(50, 60)
  whole = data.batch(corpus, seed=0, step=4, batch_size=6, length=8, packing=packing)
  parts = [data.batch(corpus, seed=0, step=4, batch_size=6, length=8, packing=packing, shard=(i, 3)) for i in range(3)]
  assert all(np.array_equal(whole[name], np.concatenate([part[name] for part in parts])) for name in whole)


# Windows over several documents.


@pytest.mark.parametrize("lengths", [(3, 1, 7, 20, 2), (5,), (64,), (8, 8), (1, 1, 1), (200, 3), (13, 14, 15, 16)])
def test_packed_every_token_once_and_no_loss_across_documents(numbered, lengths):
  corpus = numbered(*lengths)
  for number in range(3):
    got = epoch(corpus, number=number, packing="packed")
    real = got["segments"] > 0
    assert np.array_equal(np.sort(got["tokens"][real]), np.arange(sum(lengths)))
    document = np.searchsorted(corpus.offsets, got["tokens"], side="right") - 1
    last = np.isin(got["tokens"], corpus.offsets[1:] - 1)
    assert np.array_equal(got["weights"], (real & ~last).astype(np.float32))
    scored = got["weights"] == 1
    assert np.array_equal(got["targets"][scored], got["tokens"][scored] + 1)
    for row, segments, positions, keep in zip(document, got["segments"], got["positions"], real, strict=True):
      n = int(keep.sum())
      assert keep[:n].all() and not segments[n:].any() and not positions[n:].any()  # padding only at the end
      changes = np.concatenate([[0], row[1:n] != row[: n - 1]])
      assert np.array_equal(segments[:n], 1 + np.cumsum(changes))
      expected, place = [], 0
      for change in changes:
        place = 0 if change else place
        expected.append(place)
        place += 1
      assert positions[:n].tolist() == expected


def test_packed_mixes_documents_otherwise_in_every_epoch(numbered):
  corpus = numbered(*[3] * 30)
  orders = {tuple(epoch(corpus, number=n, packing="packed")["tokens"].reshape(-1)) for n in range(4)}
  neighbours = [set(itertools.pairwise(o)) for o in orders]
  assert len(orders) == 4 and neighbours[0] != neighbours[1]


# Limits and speed.


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"length": 0}, "length >= 1"),
    ({"batch_size": 0}, "batch_size >= 1"),
    ({"step": -1}, "step >= 0"),
    ({"packing": "dense"}, "unknown data.packing 'dense'; known: documents, packed"),
    ({"shard": (0, 3)}, "must divide batch_size=4"),
    ({"shard": (2, 2)}, "shard 2 of 2"),
    ({"length": 60}, "longest of 2 has 60 tokens"),
  ],
)
def test_bad_arguments(numbered, change, message):
  with pytest.raises(UserError, match=message):
    data.batch(numbered(50, 60), **{"seed": 0, "step": 0, "batch_size": 4, "length": 8, **change})


def test_the_longest_window_that_fits(numbered):
  assert data.batch(numbered(50, 60), seed=0, step=0, batch_size=2, length=59)["tokens"].tolist() == [list(range(50, 109))] * 2


@pytest.mark.parametrize("packing", ["documents", "packed"])
def test_a_batch_takes_less_than_five_milliseconds(numbered, packing):
  corpus = numbered(*range(20_000, 120_000, 500))
  best = np.inf
  for step in range(30):
    start = time.perf_counter()
    data.batch(corpus, seed=0, step=step, batch_size=32, length=512, packing=packing)
    best = min(best, time.perf_counter() - start)
  assert best < 5e-3


# Evaluation.


def test_segments_are_the_starts_of_the_longest_documents(numbered):
  corpus = numbered(20, 50, 9, 50, 30)
  rows, names = data.segments(corpus, length=19, documents=3)
  assert rows.dtype == np.int32 and rows.shape == (3, 20)
  assert names == ["1", "3", "4"]
  assert rows[:, 0].tolist() == [20, 79, 129]
  assert (np.diff(rows, axis=1) == 1).all()


def test_segments_are_the_same_documents_at_every_length(numbered):
  corpus = numbered(20, 50, 9, 51, 30)
  assert {tuple(data.segments(corpus, length=t, documents=3)[1]) for t in (1, 8, 19, 29)} == {("3", "1", "4")}


def test_segments_all_that_are_long_enough(numbered):
  assert data.segments(numbered(20, 50, 9), length=19, documents=0)[1] == ["1", "0"]


def test_segments_too_few(numbered):
  corpus = numbered(20, 50, 9)
  with pytest.raises(UserError, match=r"has 2 documents of at least 20 tokens .* 3 are asked for; the longest has 50 tokens"):
    data.segments(corpus, length=19, documents=3)
  with pytest.raises(UserError, match=r"has 0 documents of at least 51 tokens .* 1 are asked for; the longest has 50"):
    data.segments(corpus, length=50, documents=0)
  with pytest.raises(UserError, match="length >= 1"):
    data.segments(corpus, length=0, documents=1)
