"""Errors and paired differences against published numbers and closed forms."""

import math
import subprocess
import sys

import numpy as np
import pytest

from posx.study import statistics

# Extra hours of sleep of ten patients under two drugs: Student, "The Probable Error of a Mean", Biometrika 6 (1908), p. 20.
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_the_paired_test_is_that_of_student():
  found = statistics.paired({0: FIRST}, {0: SECOND})
  # t = -4.0621, p = 0.002833, interval -2.46 to -0.70, as in every textbook; a bootstrap of 4000 draws is good to 2 %.
  assert found.mean == pytest.approx(-1.58)
  assert found.stderr == pytest.approx(1.58 / 4.0621, rel=0.03)
  assert found.p == pytest.approx(0.002833, rel=0.2)
  assert found.half == pytest.approx(0.88, rel=0.03)


@pytest.mark.parametrize("n", [2, 3, 12, 200])
def test_the_bootstrap_over_documents_is_the_error_of_a_mean(n):
  each = np.random.default_rng(n).gamma(2, size=n)
  assert statistics.over_documents(list(each)) == pytest.approx(each.std(ddof=1) / math.sqrt(n), rel=0.05)


def test_one_document_or_seed_has_no_error():
  assert statistics.over_documents([1.0]) is None and statistics.over_seeds([1.0]) is None
  found = statistics.paired({0: [1.0]}, {0: [2.0]})
  assert found.mean == -1 and found.stderr is None and found.p is None


def test_equal_and_shifted_losses():
  same = statistics.paired({0: FIRST}, {0: FIRST})
  assert (same.mean, same.p) == (0, 1)
  shifted = statistics.paired({0: [x + 2 for x in (1.0, 4.0, 9.0)]}, {0: [1.0, 4.0, 9.0]})
  assert (shifted.mean, shifted.p) == (2, 0)


def test_seeds_that_disagree_take_the_significance_away():
  one_seed = statistics.paired({0: SECOND}, {0: [x - 1 for x in FIRST]})
  assert one_seed.p < 0.01
  # The same mean difference of 2.58, but 0.58 under one seed and 4.58 under the other.
  two = statistics.paired({0: SECOND, 1: [x + 4 for x in SECOND]}, {0: [x + 1 for x in FIRST], 1: [x + 1 for x in FIRST]})
  assert two.mean == pytest.approx(one_seed.mean) and two.stderr > 2 and two.p > 0.3


def test_seeds_are_paired_only_where_they_are_the_same():
  a, b = {0: [1.0, 1.1, 1.2], 1: [2.0, 2.1, 2.2]}, {0: [1.5, 1.6, 1.7], 1: [2.5, 2.6, 2.7]}
  assert statistics.paired(a, b).stderr == pytest.approx(0)
  other = statistics.paired(a, {2: b[0], 3: b[1]})
  # Each set of two means, 1 apart, has an error of 0.5; they add as variances.
  assert other.mean == pytest.approx(-0.5) and other.stderr == pytest.approx(math.sqrt(0.5))


def test_false_alarms_are_as_rare_as_the_level_says():
  draws = np.random.default_rng(0).normal(size=(600, 2, 6))
  alarms = sum(statistics.paired({0: list(a)}, {0: list(b)}).p < statistics.LEVEL for a, b in draws)
  # 5 % of 600 is 30, with a standard deviation of 5.3.
  assert 14 <= alarms <= 46


def test_the_same_numbers_in_every_process():
  code = "from posx.study import statistics; print(statistics.over_documents([1.0, 2.5, 4.0, 9.0]))"
  shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
  assert float(shown) == statistics.over_documents([1.0, 2.5, 4.0, 9.0])
