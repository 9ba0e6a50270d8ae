"""The search for LongRoPE's divisors: which factor each pair of channels takes, by a model's loss at the target length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from posx.encodings.rope import inverse_frequencies
from posx.errors import UserError
from posx.extensions.by_parts import LongRoPE, YaRN
from posx.extensions.frequencies import NTK, PI

Factors = tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Found:
  """What a search returns.

  Attributes:
    factors: r/2 divisors, never falling from one pair to the next slower one.
    loss: what they were given by the loss.
    history: the best loss after the starting points and after every round.
    evaluations: how often the loss was asked.
  """

  factors: Factors
  loss: float
  history: tuple[float, ...]
  evaluations: int


def starts(rotary_dim: int, base: float, factor: float, original_length: int) -> dict[str, Factors]:
  """Divisors of position interpolation, NTK-aware scaling and YaRN, as starting points by name.

  Args:
    rotary_dim: r, the number of rotated channels of a head.
    base: theta of the model.
    factor: s, target length / trained length.
    original_length: the trained length L0 in tokens.
  """
  plain = inverse_frequencies(rotary_dim, base)
  rules = {"pi": PI(factor), "yarn": YaRN(factor, original_length)}
  if rotary_dim > 2:
    rules["ntk"] = NTK(factor)
  made = {name: plain / rule.frequencies64(rotary_dim, base, 0, original_length)[0] for name, rule in rules.items()}
  return {name: monotone(divisors, factor) for name, divisors in made.items()}


def monotone(divisors: Sequence[float] | np.ndarray, most: float) -> Factors:
  """The divisors within 1 .. most, each raised to the largest before it: slower pairs are divided at least as much."""
  return tuple(float(x) for x in np.maximum.accumulate(np.clip(np.asarray(divisors, np.float64), 1.0, most)))


def mutate(parent: Factors, rng: np.random.Generator, *, most: float, probability: float) -> Factors:
  """The parent with some divisors drawn anew, uniformly between 1 and `most`, and put in order again."""
  drawn = rng.uniform(1.0, most, len(parent))
  changed = rng.random(len(parent)) < probability
  changed[rng.integers(len(parent))] = True
  # Sorting keeps what is drawn; raising each to the largest before it would let one large draw flatten all after it.
  return monotone(np.sort(np.where(changed, drawn, parent)), most)


def cross(one: Factors, other: Factors, rng: np.random.Generator, *, most: float) -> Factors:
  """Each divisor from either parent, put in order."""
  return monotone(np.sort(np.where(rng.random(len(one)) < 0.5, one, other)), most)


def check(
  factor: float, *, population: int = 16, parents: int = 8, rounds: int = 20, probability: float = 0.3, reach: float = 1.25
) -> None:
  """Raises UserError where `search` would, before anything is asked."""
  if not (np.isfinite(factor) and factor > 1):
    raise UserError(f"a search for LongRoPE's divisors needs a finite factor above 1 (target length / trained length), got {factor}")
  if not (2 <= parents < population and rounds >= 0 and 0 < probability <= 1 and reach >= 1):
    raise UserError(
      f"a search needs 2 <= parents < population, rounds >= 0, 0 < probability <= 1 and reach >= 1, got parents={parents}, "
      f"population={population}, rounds={rounds}, probability={probability}, reach={reach}"
    )


def search(
  loss: Callable[[Factors], float],
  *,
  rotary_dim: int,
  base: float = 10000.0,
  factor: float,
  original_length: int,
  population: int = 16,
  parents: int = 8,
  rounds: int = 20,
  probability: float = 0.3,
  reach: float = 1.25,
  seed: int = 0,
  progress: Callable[[int, Factors, float, int], None] = lambda *state: None,
) -> Found:
  """Looks for the divisors with the lowest loss by evolution, from those of PI, NTK and YaRN.

  Every round keeps the best `parents` and adds mutated ones and crossed ones, half each, up to `population`. All candidates
  have divisors that never fall from one pair to the next slower one and lie within 1 .. `reach` factor. The same seed gives
  the same result, and the result is never worse than the starting points.

  The authors' search has a population of 64, 16 mutations and 16 crossings a round over 40 rounds, divisors on a grid of
  0.01, mutates toward random values with probability 0.3, and also looks for the number of first tokens that keep their
  positions; that number is left out here, since the released models do not use it.

  Args:
    loss: divisors -> loss of the model at the target length, e.g. through `longrope(...)`; nan counts as infinite.
    rotary_dim: r, the number of rotated channels of a head.
    base: theta of the model.
    factor: s, target length / trained length, above 1.
    original_length: the trained length L0 in tokens.
    population: candidates in every round.
    parents: the best ones that are kept.
    rounds: how often.
    probability: of drawing one divisor anew in a mutation.
    reach: largest divisor / factor.
    seed: of all random choices.
    progress: called after the starting points (round 0) and after every round with (round, best divisors, their loss, how often the
      loss was asked).

  Raises:
    UserError: for a factor that is not above 1, or sizes that leave nothing to search.

  Example:
    >>> target = np.array([1.0, 1.5, 3.0, 4.0])
    >>> found = search(lambda f: float(((f - target) ** 2).sum()), rotary_dim=8, factor=4.0, original_length=64, rounds=30)
    >>> found.loss < found.history[0]
    True

  Reference:
    Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", 2024, section 3.2 and algorithm 1.
    arXiv:2402.13753
  """
  check(factor, population=population, parents=parents, rounds=rounds, probability=probability, reach=reach)
  rng, most, known = np.random.default_rng(seed), reach * factor, {}

  def ask(candidate: Factors) -> float:
    if candidate not in known:
      value = float(loss(candidate))
      known[candidate] = np.inf if np.isnan(value) else value
    return known[candidate]

  def add(pool: list[Factors], child: Callable[[], Factors], size: int) -> None:
    tries = 0
    while len(pool) < size and tries < 20 * size:
      candidate, tries = child(), tries + 1
      if candidate not in pool:
        pool.append(candidate)

  pool = list(dict.fromkeys(starts(rotary_dim, base, factor, original_length).values()))
  first = tuple(pool)
  history = []

  def note() -> None:
    for c in pool:
      ask(c)
    best = min(known, key=lambda c: known[c])
    history.append(known[best])
    progress(len(history) - 1, best, known[best], len(known))

  note()
  add(pool, lambda: mutate(first[rng.integers(len(first))], rng, most=most, probability=probability), population)
  for _ in range(rounds):
    best = sorted(pool, key=ask)[:parents]
    pick = lambda best=best: best[rng.integers(len(best))]
    pool = list(best)
    add(pool, lambda pick=pick: mutate(pick(), rng, most=most, probability=probability), parents + (population - parents) // 2)
    add(pool, lambda pick=pick: cross(pick(), pick(), rng, most=most), population)
    note()
  winner = min(known, key=lambda c: known[c])
  return Found(winner, known[winner], tuple(history), len(known))


def longrope(found: Found | Factors, factor: float, original_length: int = 0) -> LongRoPE:
  """The extension with these divisors beyond the trained length."""
  factors = found.factors if isinstance(found, Found) else tuple(found)
  return LongRoPE(factor=factor, original_length=original_length, long_factors=factors)
