"""Windows and protocols against brute force: which token is scored, by which window, with how much context."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posx.evaluation import protocols, rows
from posx.evaluation.protocols import Measure, measure
from posx.evaluation.windows import place

SHAPES = [
  (total, length, stride, targets)
  for total, length in itertools.product((1, 2, 5, 9, 24, 25), (1, 2, 3, 4, 8, 30))
  for stride in sorted({1, 2, length // 2 or 1, length}) if stride <= length
  for targets in sorted({0, 1, total // 2 or 1, total}) if targets <= total
]  # fmt: skip


def scorer(windows, documents=1):
  """Losses of a model whose loss with n tokens of context is 1/n: only the place in the window matters."""
  per_window = 1.0 / np.arange(1, windows.length + 1)
  return np.broadcast_to(per_window, (documents, len(windows.starts), windows.length)).astype(np.float64)


def most_context(windows, target):
  """The best place any window gives the target, by trying all."""
  return max(target - s for s in windows.starts if s <= target < s + windows.length)


def test_every_target_is_scored_once_with_the_most_context():
  for total, length, stride, targets in SHAPES:
    windows = place(total, length, stride, targets)
    wanted = list(range(total - (targets or total), total))
    window, position = windows.scored()
    starts = np.asarray(windows.starts)[window]
    assert (starts + position).tolist() == wanted
    assert (position >= 0).all() and (position < windows.length).all()
    assert position.tolist() == [most_context(windows, t) for t in wanted]
    assert all(0 <= s <= total - windows.length for s in windows.starts) and len(set(windows.starts)) == len(windows.starts)
    assert windows.starts[0] + windows.length == total


def test_a_stride_promises_context():
  """Whatever is scored, at least length - stride tokens come before it in the window, or all that the document has."""
  for total, length, stride, targets in SHAPES:
    windows = place(total, length, stride, targets)
    _, position = windows.scored()
    for target, found in zip(range(total - windows.targets, total), position, strict=True):
      assert found >= min(target, windows.length - windows.stride)


def test_no_window_is_laid_for_nothing():
  for total, length, stride, targets in SHAPES:
    windows = place(total, length, stride, targets)
    used = set(windows.scored()[0].tolist())
    # windows that never give the most context come only last, where the document's beginning cuts the grid short
    assert used == set(range(len(windows.starts))) or windows.starts[-1] == 0


def test_the_loss_does_not_depend_on_how_many_targets_are_scored():
  """Fewer targets are fewer of the same losses: windows are not dropped with the targets they serve."""
  whole = place(100, 16, 4)
  few = place(100, 16, 4, 10)
  np.testing.assert_array_equal(protocols.sliding(scorer(whole), whole)[:, -10:], protocols.sliding(scorer(few), few))


def test_the_published_example():
  """10 tokens, windows of 4 (3 inputs and the last target), stride 2: 9 targets, sum 4.33333, perplexity 1.61847036."""
  windows = place(9, 3, 2)
  scored = protocols.sliding(scorer(windows), windows)
  assert scored.shape == (1, 9)
  assert scored.sum() == pytest.approx(1 + 1 / 2 + 1 / 3 + 3 * (1 / 2 + 1 / 3))
  assert measure(scored).perplexity == pytest.approx(1.61847036)


@pytest.mark.parametrize(("n", "window", "stride"), [(10, 4, 2), (10, 4, 4), (3, 8, 4)])
def test_a_document_of_n_tokens_has_one_target_less(n, window, stride):
  for length in (window, window - 1):  # the last target counted among the tokens of the window or not
    windows = place(n - 1, length, min(stride, length))
    scored = protocols.sliding(scorer(windows), windows)
    assert scored.shape == (1, n - 1)
    assert measure(scored).tokens == n - 1


def test_refusals():
  with pytest.raises(ValueError, match="a document of 1 token has nothing to predict; perplexity needs at least 2 tokens"):
    place(0, 4, 4)
  with pytest.raises(ValueError, match="windows of 4 tokens need a stride of 1 to 4, got 5: a longer one would skip targets"):
    place(9, 4, 5)
  with pytest.raises(ValueError, match="got 0"):
    place(9, 4, 0)
  with pytest.raises(ValueError, match="windows of 0 tokens"):
    place(9, 0, 1)
  with pytest.raises(ValueError, match="10 targets are asked for, but the document has 9"):
    place(9, 4, 4, 10)


def test_windows_side_by_side_are_found_among_the_strided_ones():
  for total, length, stride, targets in SHAPES:
    windows = place(total, length, stride, targets)
    alone = place(total, windows.length, windows.length, targets)
    if windows.length % windows.stride:
      with pytest.raises(ValueError, match="give a stride that does"):
        protocols.nonoverlapping(scorer(windows), windows)
      continue
    numbered = np.asarray([[s * 1000 + np.arange(windows.length) for s in windows.starts]])
    expected = protocols.sliding(np.asarray([[s * 1000 + np.arange(windows.length) for s in alone.starts]]), alone)
    np.testing.assert_array_equal(protocols.nonoverlapping(numbered, windows), expected)


def test_protocols_select_the_same_tokens_at_every_length():
  """Laid out as losses are, the tokens themselves pass through the protocols: equal targets, equal hash."""
  tokens = np.random.default_rng(0).integers(0, 256, (3, 65)).astype(np.int32)
  found = {}
  for length, stride in itertools.product((16, 32, 64), (8, 16)):
    windows = place(64, length, stride, 16)
    for protocol, scored in rows.selections(windows.cut(tokens), windows, 12):
      n = 12 if protocol["protocol"] == "last_k" else 16
      np.testing.assert_array_equal(scored, tokens[:, -n:])
      found.setdefault(protocol["protocol"], set()).add(protocols.target_hash(scored))
  assert set(found) == {"nonoverlapping", "sliding", "last_k"}
  assert all(len(hashes) == 1 for hashes in found.values()) and found["sliding"] == found["nonoverlapping"] != found["last_k"]


def test_hash_tells_tokens_and_their_order_apart_and_not_their_type():
  tokens = np.arange(12, dtype=np.int32).reshape(2, 6)
  assert protocols.target_hash(tokens) == protocols.target_hash(tokens.astype(np.int64)) == protocols.target_hash(np.asfortranarray(tokens))
  assert protocols.target_hash(tokens) != protocols.target_hash(tokens[:, ::-1])
  assert protocols.target_hash(tokens) != protocols.target_hash(tokens + 1)


def test_last_k_are_the_last_targets_from_the_last_window():
  windows = place(20, 8, 4, 8)
  losses = np.arange(2 * len(windows.starts) * 8).reshape(2, -1, 8)
  np.testing.assert_array_equal(protocols.last_k(losses, windows, 3), losses[:, 0, 5:])
  for k in (0, 9):
    with pytest.raises(ValueError, match=f"last_k={k} must be from 1 to the window's 8 tokens"):
      protocols.last_k(losses, windows, k)


@pytest.mark.parametrize(("length", "stride"), [(300, 300), (300, 100), (300, 150), (40, 40), (64, 64), (128, 64)])
def test_buckets_hold_every_place_of_windows_side_by_side(length, stride):
  windows = place(600, length, stride)
  places = np.broadcast_to(np.arange(length), (2, len(windows.starts), length))
  found = protocols.buckets(places, windows)
  edges = [e for e in (0, 64, 128, 256) if e < length] + [length]
  assert list(found) == list(itertools.pairwise(edges))
  count = len(windows.starts[:: length // stride])
  for (first, last), losses in found.items():
    assert losses.shape == (2, count * (last - first))
    assert losses.min() == first and losses.max() == last - 1


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_measure_is_the_mean_over_tokens_with_its_error_over_documents(documents, targets, seed):
  losses = np.random.default_rng(seed).gamma(2, size=(documents, targets)).astype(np.float32)
  found = measure(losses)
  assert found.loss == pytest.approx(float(losses.astype(np.float64).mean()), rel=1e-12)
  assert (found.tokens, found.documents) == (losses.size, documents)
  assert found.perplexity == pytest.approx(math.exp(found.loss))
  if documents == 1:
    assert found.stderr is None
  else:
    each = [sum(map(float, row)) / targets for row in losses]
    center = sum(each) / documents
    spread = math.sqrt(sum((x - center) ** 2 for x in each) / (documents - 1))
    assert found.stderr == pytest.approx(spread / math.sqrt(documents), rel=1e-6, abs=1e-12)


def test_mean_of_float32_losses_is_made_in_float64():
  losses = np.full((1, 1 << 20), 1 + 2**-23, np.float32)
  assert measure(losses).loss == 1 + 2**-23


def test_what_is_not_a_number_becomes_null_with_a_note():
  good = Measure(2.0, 0.1, 10, 2)
  row = rows.fields(good, Measure(2.5, 0.1, 10, 2), 4.0)
  assert row["ratio_to_truncation"] == pytest.approx(math.exp(-0.5)) and row["bits_per_byte"] == pytest.approx(2 / math.log(2) / 4)
  assert row["perplexity"] == pytest.approx(math.exp(2)) and "note" not in row
  assert rows.fields(good, None, 1.0)["ratio_to_truncation"] is None
  nan = rows.fields(measure(np.array([[1.0, np.nan], [1.0, 2.0]])), good, 1.0)
  assert nan["loss"] is nan["perplexity"] is nan["stderr"] is nan["ratio_to_truncation"] is None and nan["note"] == "the loss is nan"
  infinite = rows.fields(measure(np.array([[1.0, np.inf]])), good, 1.0)
  assert infinite["loss"] is infinite["ratio_to_truncation"] is None and infinite["note"] == "the loss is inf"
  big = rows.fields(Measure(800.0, 0.0, 10, 2), good, 1.0)
  assert big["loss"] == 800.0 and big["perplexity"] is big["ratio_to_truncation"] is None and big["note"] == "perplexity overflows"
