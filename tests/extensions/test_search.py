"""The search for LongRoPE's divisors on losses whose minimum is known."""

import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings.base import Dims
from posx.encodings.rope import inverse_frequencies
from posx.errors import UserError
from posx.extensions import search as searching
from posx.extensions.search import longrope, search

SIZES = {"rotary_dim": 16, "factor": 8.0, "original_length": 64}
TARGET = np.array([1.0, 1.0, 1.3, 2.0, 4.5, 7.0, 8.0, 9.0])


def bowl(factors):
  return float((np.log(np.asarray(factors) / TARGET) ** 2).sum())


def test_it_finds_better_divisors_than_every_start():
  found = search(bowl, rounds=60, **SIZES)
  best = min(bowl(f) for f in searching.starts(16, 1e4, 8.0, 64).values())
  assert found.history[0] == best and found.loss == bowl(found.factors) < 0.35 * best
  assert list(found.history) == sorted(found.history, reverse=True) and len(found.history) == 61


def test_every_candidate_is_in_range_and_never_falls():
  asked = []
  found = search(lambda f: asked.append(f) or bowl(f), rounds=10, **SIZES)
  for f in asked:
    assert len(f) == 8 and min(f) >= 1 and max(f) <= 1.25 * 8 and list(f) == sorted(f)
  assert len(asked) == len(set(asked)) == found.evaluations


def test_starts_are_the_rules_themselves():
  plain = 1e4 ** (-np.arange(8) / 8)
  made = searching.starts(16, 1e4, 8.0, 64)
  np.testing.assert_allclose(made["pi"], np.full(8, 8.0), rtol=1e-12)
  np.testing.assert_allclose(made["ntk"], plain * (1e4 * 8 ** (16 / 14)) ** (np.arange(8) / 8), rtol=1e-9)
  yarn = extensions.make("yarn", factor=8.0, original_length=64).frequencies64(16, 1e4, 512, 64)[0]
  np.testing.assert_allclose(made["yarn"], plain / yarn, rtol=1e-12)


def test_the_same_seed_is_the_same_search():
  assert search(bowl, rounds=4, seed=3, **SIZES) == search(bowl, rounds=4, seed=3, **SIZES) != search(bowl, rounds=4, seed=4, **SIZES)


def test_nan_is_the_worst_and_no_round_gives_the_best_start():
  found = search(lambda f: float("nan") if f[0] > 1 else bowl(f), rounds=3, **SIZES)
  assert np.isfinite(found.loss) and found.factors[0] == 1
  assert search(bowl, rounds=0, **SIZES).loss == min(bowl(f) for f in searching.starts(16, 1e4, 8.0, 64).values())


def test_the_result_is_an_extension():
  found = search(bowl, rounds=2, **SIZES)
  encoding = extensions.apply(longrope(found, 8.0), encodings.make("rope"))
  dims = Dims(1, 16, 16, 64)
  np.testing.assert_allclose(encoding.frequencies(dims, 512)[0], inverse_frequencies(16) / found.factors, rtol=1e-12)
  np.testing.assert_allclose(encoding.frequencies(dims, 64)[0], inverse_frequencies(16), rtol=1e-12)


@pytest.mark.parametrize(
  ("fields", "match"),
  [
    ({"factor": 1.0}, "factor above 1"),
    ({"parents": 16}, "parents < population"),
    ({"probability": 0.0}, "0 < probability"),
    ({"reach": 0.5}, "reach >= 1"),
  ],
)
def test_refusals(fields, match):
  with pytest.raises(UserError, match=match):
    search(bowl, **{**SIZES, **fields})
