"""Figures: what can be measured about an encoding, claimed or not."""

from __future__ import annotations

import numpy as np

from posx.encodings.base import Encoding
from posx.testing.subject import NEAR, PAST, TOKENS, Subject, difference
from posx.testing.textbook import Bound

FURTHEST = 1 << 20


def parameters(subject: Subject) -> int:
  """Learned numbers of one layer, or of the input."""
  import jax

  return sum(int(np.prod(x.shape)) for x in jax.tree.leaves(subject.start))


def longest(subject: Subject, limit: int = FURTHEST) -> int:
  """How many positions the encoding serves, up to `limit`."""
  if not subject.refusal(limit):
    return limit
  low, high = 0, limit
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if subject.refusal(middle) else (middle, high)
  return low


SHIFT = 99_991
"""A prime, so that no grouping of positions hides it."""


def shift_error(subject: Subject, by: int = SHIFT) -> float:
  """By how much scores (or the input) change when all positions grow by the same number; relative to their size."""
  by = min(by, longest(subject) - int(NEAR[-1]) - 1)
  length = int(NEAR[-1]) + by + 1
  here, there = (subject.run(at, length=length) for at in (NEAR, NEAR + by))
  scale = 1 + float(np.abs(np.asarray(here["scores"])[PAST]).max())
  return max(difference(here["scores"], there["scores"], PAST) / scale, difference(here["input"], there["input"]))


def norm_error(subject: Subject) -> float:
  """By how much the hook of queries and keys changes their norms, far beyond the trained length where that is served."""
  tokens, length = subject.tokens(), min(256 * subject.dims.train_length, longest(subject))
  made = subject.run(NEAR + length - 1 - int(NEAR[-1]), tokens=tokens, length=length)
  norm = lambda x: np.linalg.norm(np.asarray(x, np.float64), axis=-1)
  return max(float(np.abs(norm(made[a]) - norm(tokens[b])).max()) for a, b in (("queries", "q"), ("keys", "k")))


def linear_shift_error(encoding: Encoding, bound: Bound, by: int = 7) -> float:
  """How far PE(p + k) is from the best linear map of PE(p), on positions that the map was not fitted to."""
  import jax.numpy as jnp

  at = np.random.default_rng(0).choice(bound.dims.train_length - by, 4 * bound.dims.model_dim, replace=False).astype(np.int32)
  nothing = jnp.zeros((len(at), bound.dims.model_dim))
  here, there = (np.asarray(encoding.on_input(bound.p(), nothing, jnp.asarray(at + n)), np.float64) for n in (0, by))
  half = len(at) // 2
  matrix, *_ = np.linalg.lstsq(here[:half], there[:half], rcond=None)
  return float(np.abs(here[half:] @ matrix - there[half:]).max())


ORDERS = {"man bites dog": (2, 1, 0), "bites dog man": (1, 0, 2), "dog man bites": (0, 2, 1)}
"""Other orders of the words of 'dog bites man'; the first is its mirror image."""


def words(subject: Subject, order: tuple[int, ...], causal: bool) -> np.ndarray:
  """[h 3 c]: what attention makes of 'dog', 'bites' and 'man' in this order; word n is row n, wherever it stands."""
  import jax.numpy as jnp

  size, places = len(order), np.concatenate([order, np.arange(len(order), TOKENS)])
  tokens, at = subject.tokens(seed=3), np.arange(TOKENS)
  real = np.broadcast_to(at < size, (TOKENS, TOKENS))
  tokens = {"x": tokens["x"][places], "q": tokens["q"][:, places], "k": tokens["q"][:, places]}
  entered = subject.run(at, tokens=tokens)["input"]
  # What was added to the input reaches queries and keys through one fixed projection, as in a model.
  h, c, d = subject.dims.num_heads, subject.dims.head_dim, subject.dims.model_dim
  project = np.random.default_rng(5).normal(size=(d, h, c)).astype(np.float32) * d**-0.5
  q = jnp.einsum("td,dhc->htc", entered, project)
  out = np.asarray(
    subject.run(at, tokens={"x": entered, "q": q, "k": q}, seen=real & np.tri(TOKENS, dtype=bool) if causal else real)["output"]
  )
  return out[:, :size][:, np.argsort(order)]


def order_difference(subject: Subject, order: tuple[int, ...], causal: bool = False) -> float:
  """How differently a word comes out in this order and in 'dog bites man'; 0 where attention takes a sentence for a set."""
  return difference(words(subject, (0, 1, 2), causal), words(subject, order, causal))
