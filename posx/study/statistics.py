"""What may be said of losses of the same documents under several seeds: mean, errors, paired differences."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

Losses = Mapping[int, Sequence[float]]
"""seed -> the loss of each document; every document has as many targets, so a mean of means is over tokens."""

LEVEL = 0.05
_DRAWS = 4000


@dataclasses.dataclass(frozen=True)
class Difference:
  """The loss of one curve less that of another, on the same targets.

  Attributes:
    mean: nats per token; below 0 the first is better.
    stderr: standard error of `mean` over documents and seeds; None where there is but one document.
    half: half of the 95 % interval around `mean`.
    p: two-sided probability of a difference at least so large if there were none; None where it cannot be told.
  """

  mean: float
  stderr: float | None = None
  half: float | None = None
  p: float | None = None


@functools.cache
def _resamples(n: int) -> Any:
  """How much each of n documents weighs in each resample, [draws, n]: the same ones for every curve and in every process."""
  import numpy as np

  return np.random.default_rng(0).multinomial(n, [1 / n] * n, size=_DRAWS) / n


def over_documents(each: Sequence[float]) -> float | None:
  """Bootstrap standard error of the mean over documents; None of a single one.

  A resample of n documents varies less than n new ones by (n - 1) / n, which is made up for: documents are few.
  """
  n = len(each)
  if n < 2:
    return None
  import numpy as np

  return float(np.std(_resamples(n) @ (np.asarray(each) - each[0])) * math.sqrt(n / (n - 1)))


def over_seeds(means: Sequence[float]) -> float | None:
  """Standard error of the mean over seeds; None of a single one."""
  n = len(means)
  if n < 2:
    return None
  mean = math.fsum(means) / n
  return math.sqrt(math.fsum((x - mean) ** 2 for x in means) / (n - 1) / n)


def documents(losses: Losses) -> list[float]:
  """The loss of each document, averaged over seeds."""
  return [math.fsum(column) / len(column) for column in zip(*losses.values(), strict=True)]


def paired(a: Losses, b: Losses) -> Difference:
  """a - b, paired by document, and by seed where both have the same ones.

  The variance is that over documents (bootstrap) and that over seeds, added; with one seed the statement is about these
  weights alone. The interval is Student's, with the degrees of freedom of Welch and Satterthwaite.

  Example:
    >>> d = paired({0: [1.0, 2.0, 3.0]}, {0: [1.5, 2.5, 3.6]})
    >>> round(d.mean, 3), d.p < 0.01
    (-0.533, True)
  """
  each = [x - y for x, y in zip(documents(a), documents(b), strict=True)]
  mean = math.fsum(each) / len(each)
  by_document = over_documents(each)
  if by_document is None:
    return Difference(mean)
  parts = [(by_document**2, len(each) - 1), *_seeds(a, b)]
  variance = math.fsum(v for v, _ in parts)
  if variance == 0:
    return Difference(mean, 0.0, 0.0, 1.0 if mean == 0 else 0.0)
  from scipy.special import stdtr, stdtrit

  freedom = variance**2 / math.fsum(v**2 / n for v, n in parts)
  error = math.sqrt(variance)
  return Difference(mean, error, float(stdtrit(freedom, 1 - LEVEL / 2)) * error, float(2 * stdtr(freedom, -abs(mean) / error)))


def _seeds(a: Losses, b: Losses) -> list[tuple[float, int]]:
  """(variance of the mean difference over seeds, degrees of freedom); two of them where seeds do not pair."""
  means = lambda losses: {seed: math.fsum(each) / len(each) for seed, each in losses.items()}
  first, second = means(a), means(b)
  sets = [[first[s] - second[s] for s in first]] if set(first) == set(second) else [list(first.values()), list(second.values())]
  return [(error**2, len(values) - 1) for values in sets if (error := over_seeds(values)) is not None]
