"""The suite: which checks there are, and how they are run over one encoding."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from posx.encodings.base import Encoding
from posx.testing import checks, models
from posx.testing.subject import Failed, Inapplicable, Subject

Check = Callable[[Subject], str]

ONCE: tuple[Check, ...] = (
  checks.is_a_value,
  checks.parameters,
  checks.constants,
  checks.parts,
  checks.lengths_served,
  checks.other_sizes,
  checks.causality,
  checks.shift_invariance,
  checks.norms,
  checks.linear_shift,
  checks.blocks,
  checks.content_free,
  checks.separable,
  checks.knows_order,
  checks.short_long_short,
)
"""Checks of formulas, in float32 and compiled."""

EACH: tuple[Check, ...] = (checks.shapes, checks.finite_far_out, checks.gradients)
"""Checks in float32 and bfloat16, compiled and as written."""

BY_DTYPE: tuple[Check, ...] = (checks.compiled_equals_plain,)

MODELS: tuple[Check, ...] = (
  models.decoding_equals_the_full_pass,
  models.chunks_equal_the_full_pass,
  models.later_tokens_change_nothing,
  models.neighbours_change_nothing,
  models.short_long_short,
  models.tiles_equal_the_textbook,
)
"""Checks in a small decoder; they compile for seconds."""

DTYPES = ("float32", "bfloat16")


class Result(NamedTuple):
  """One check: its name, whether it passed (None: it does not apply), its figure or the reason, seconds."""

  name: str
  passed: bool | None
  figure: str
  seconds: float


def cases(models: bool = True) -> Iterator[tuple[str, Check, dict[str, Any]]]:
  """(name, check, fields of the Subject) of every check."""
  for check in ONCE:
    yield check.__name__, check, {}
  for check in EACH:
    for dtype in DTYPES:
      for jit in (True, False):
        yield f"{check.__name__} [{dtype}, {'jit' if jit else 'eager'}]", check, {"dtype": dtype, "jit": jit}
  for check in BY_DTYPE:
    for dtype in DTYPES:
      yield f"{check.__name__} [{dtype}]", check, {"dtype": dtype}
  if models:
    for check in MODELS:
      yield check.__name__, check, {}


@contextlib.contextmanager
def hasty() -> Iterator[None]:
  """Compiles without most optimisations: the checks compile more than they compute."""
  import jax

  before = jax.config.read("jax_disable_most_optimizations")
  jax.config.update("jax_disable_most_optimizations", True)
  try:
    yield
  finally:
    jax.config.update("jax_disable_most_optimizations", before)


def measure(name: str, check: Check, subject: Subject) -> Result:
  """Runs one check; whatever goes wrong in it is its failure."""
  began = time.perf_counter()
  try:
    with hasty():
      passed, figure = True, check(subject)
  except Inapplicable as reason:
    passed, figure = None, str(reason)
  except Failed as failure:
    passed, figure = False, str(failure)
  except Exception as error:  # a hook that raises fails the check, not the suite
    passed, figure = False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
  return Result(name, passed, figure, time.perf_counter() - began)


@functools.lru_cache(maxsize=8)
def subject(encoding: Encoding, **fields: Any) -> Subject:
  """The subject of a check; equal ones share their parameters."""
  return Subject(encoding, **fields)


def run(encoding: Encoding, *, models: bool = True) -> Iterator[Result]:
  """Every check of one encoding, in order.

  Args:
    encoding: extended or not.
    models: also the checks inside a small decoder, which take most of the time.
  """
  for name, check, fields in cases(models):
    yield measure(name, check, subject(encoding, **fields))
