"""The contract, over every pair of an encoding and an extension that has a meaning."""

import dataclasses

import jax
import numpy as np
import pytest

from posx import encodings, extensions
from posx.testing import checks, pairs, suite
from posx.testing.models import Small
from posx.testing.textbook import DIMS

pytestmark = pytest.mark.usefixtures("compiled_quickly")

SMALL = dataclasses.replace(DIMS, num_heads=2, model_dim=16, train_length=8)
PAIRS = [
  (name, extension) for name in encodings.CATALOGUE for extension, cls in extensions.CATALOGUE.items() if cls.accepts(encodings.make(name))
]
# Each extension on the first and on the last encoding that it has a meaning for: a pair takes seconds to compile.
ENDS = sorted(
  {(names[at], extension) for extension in extensions.CATALOGUE for names in [[n for n, e in PAIRS if e == extension]] for at in (0, -1)}
)
VALUES = (checks.is_a_value, checks.parameters, checks.constants, checks.parts)
HOOKS = (
  checks.shapes,
  checks.finite_far_out,
  checks.causality,
  checks.shift_invariance,
  checks.norms,
  checks.blocks,
  checks.content_free,
  checks.compiled_equals_plain,
  checks.short_long_short,
)
MODELS = tuple(check for check in suite.MODELS if not check.__name__.startswith("tiles"))


@pytest.mark.parametrize(("name", "extension"), PAIRS)
def test_pair_is_an_encoding_with_the_same_parameters(name, extension):
  trained = encodings.make(name)
  extended = pairs.make(extension, trained, SMALL)
  assert extended != trained and extended == pairs.make(extension, trained, SMALL)
  before, after = (each.init(jax.random.key(0), DIMS) for each in (trained, extended))
  jax.tree.map(np.testing.assert_array_equal, before, after)
  for check in VALUES:
    result = suite.measure(check.__name__, check, suite.subject(extended))
    assert result.passed is not False, f"{check.__name__}: {result.figure}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "extension"), ENDS)
def test_pair_keeps_the_contract(name, extension):
  """What it claims, and the five invariants: decoding, chunks, later tokens, neighbours, short after long."""
  extended = pairs.make(extension, encodings.make(name), SMALL)
  results = [suite.measure(check.__name__, check, suite.subject(extended)) for check in (*HOOKS, *MODELS)]
  failed = {r.name: r.figure for r in results if r.passed is False}
  assert not failed


def test_no_pair_is_left_out():
  assert {name for _, name in PAIRS} == set(extensions.CATALOGUE)
  assert Small(encodings.make("rope")).model.dims == SMALL
