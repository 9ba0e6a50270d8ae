"""The contract, over the whole catalogue: every encoding is measured against what it claims (`posx.testing`)."""

import ast
import pathlib
import re

import jax
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings import kerple
from posx.encodings.base import Dims
from posx.errors import UserError
from posx.testing import measures, pairs, suite
from posx.testing.subject import NEAR, PAST, difference
from posx.testing.textbook import DIMS

pytestmark = pytest.mark.usefixtures("compiled_quickly")

NAMES = list(encodings.CATALOGUE)
TESTS = pathlib.Path(__file__).parent

# Numbers of one layer (or of the input) for 4 heads of 8 channels, 32 model channels, trained on 64; counted by hand from
# the shapes in each docstring.
PARAMETERS = {
  "nope": 0,
  "sinusoidal": 0,
  "learned": 64 * 32,
  "shaw": 2 * 33 * 8,
  "t5": 4 * 32,
  "rope": 0,
  "alibi": 0,
  "kerple": 2 * 4,
  "deberta": 2 * 4 * 1024 * 8,
  "transformer_xl": 4 * 8 + 4 * 8 + 4 * 8 * 32,
  "xpos": 0,
  "pope": 4 * 8,
  "sandwich": 0,
  "fire": 1 + 1 + 32 + 32 + 4 * 32 + 4,
  "cope": 64 * 8,
  "bam": 4,
  "forgetting": 4 * 32 + 4,
  "cable": 4 * 32 + 4,
  "grape": 4 + 4 * 8 + 4 * 8,
  "dape": 32 * 8 * 1 + 32 + 4 * 32 * 1 + 4 + 2 * 4,
}

CASES = {name: (check, fields) for name, check, fields in suite.cases(models=False)}
# Operation by operation every new shape is compiled alone, which takes seconds.
QUICK = [name if "eager" not in name else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
MODELS = {check.__name__: check for check in suite.MODELS}


def passes(name, check, subject):
  result = suite.measure(name, check, subject)
  assert result.passed is not False, result.figure


@pytest.mark.parametrize("case", QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_contract(name, case):
  check, fields = CASES[case]
  passes(case, check, suite.subject(encodings.make(name), **fields))


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("name", NAMES)
def test_in_a_model(name, case):
  passes(case, MODELS[case], suite.subject(encodings.make(name)))


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_parameters(name):
  assert measures.parameters(suite.subject(encodings.make(name))) == PARAMETERS[name]


# Completeness.


def compares_with_a_definition(text: str) -> bool:
  """Whether a test file holds results against NumPy's arithmetic or against another implementation's numbers."""
  tree = ast.parse(text)
  numpy = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "np"}
  compares = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr.startswith("assert_")}
  arithmetic = {"abs", "arange", "cos", "einsum", "exp", "float64", "log", "log1p", "log2", "sqrt", "tanh", "cumsum"}
  oracle = any(isinstance(n, ast.arg) and n.arg == "oracle" for n in ast.walk(tree))
  return bool(compares) and bool(oracle or numpy & arithmetic)


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_has_a_file_a_test_and_a_number_of_parameters(name):
  assert (pathlib.Path(encodings.__file__).parent / f"{name}.py").is_file(), f"{name} has no file of its own"
  test = TESTS / f"test_{name}.py"
  assert test.is_file(), f"{name} has no test file of its own: tests/encodings/test_{name}.py"
  assert compares_with_a_definition(test.read_text(encoding="utf-8")), f"test_{name}.py holds nothing against a definition written again"
  assert name in PARAMETERS, f"count the parameters of {name} by hand and add them to PARAMETERS"


def test_no_number_of_parameters_is_left_over():
  assert set(PARAMETERS) == set(NAMES)


def test_a_test_without_a_definition_is_noticed():
  assert not compares_with_a_definition("import numpy as np\ndef test(): assert make('x') == make('x')")
  assert not compares_with_a_definition("import numpy as np\ndef test(): np.testing.assert_allclose(f(1), 0.3)")
  assert compares_with_a_definition("import numpy as np\ndef test(): np.testing.assert_allclose(f(1), np.cos(1.0))")


@pytest.mark.parametrize("name", list(extensions.CATALOGUE))
def test_every_extension_is_named_in_a_test_and_extends_something(name):
  tests = [path.read_text(encoding="utf-8") for path in (TESTS.parent / "extensions").glob("test_*.py")]
  assert any(re.search(rf"\b{name}\b", text) and compares_with_a_definition(text) for text in tests), (
    f"no test in tests/extensions names {name!r}"
  )
  assert any(extensions.CATALOGUE[name].accepts(encodings.make(other)) for other in NAMES)


# Limits in which an encoding or an extension is another one, or nothing.


def first_accepted(name):
  """The first encoding of the catalogue that the extension has a meaning for."""
  return next(made for made in map(encodings.make, NAMES) if extensions.CATALOGUE[name].accepts(made))


def scores(encoding, trained):
  """Scores and input of the extended encoding, with the parameters of the encoding as trained, within the trained length."""
  made = suite.subject(encoding).run(NEAR, params=suite.subject(trained).params)
  return np.asarray(made["scores"])[PAST], np.asarray(made["input"])


def refuses_factor_1(name):
  try:
    extensions.make(name, factor=1.0)
  except UserError as error:
    return "changes nothing" in str(error)
  return False


with_factor = [name for name in extensions.CATALOGUE if refuses_factor_1(name)]


@pytest.mark.parametrize("name", with_factor)
def test_an_extension_by_a_factor_near_1_is_near_nothing(name):
  trained = first_accepted(name)
  lists = {n: (1.0,) * (DIMS.head_dim // 2) for n, v in pairs.settings(extensions.CATALOGUE[name], DIMS).items() if isinstance(v, tuple)}
  extended = extensions.apply(extensions.make(name, factor=1 + 1e-6, **lists), trained)
  for a, b in zip(scores(extended, trained), scores(trained, trained), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-3)
  further = extensions.apply(extensions.make(name, factor=3.0, **lists), trained)
  assert max(difference(a, b) for a, b in zip(scores(further, trained), scores(trained, trained), strict=True)) > 2e-3


def test_there_are_extensions_by_a_factor():
  assert len(with_factor) >= 5


def follows(name):
  """Whether the extension, as it is by default, follows the length in play; false where it has no defaults."""
  try:
    return extensions.apply(extensions.make(name), first_accepted(name)).length_dependent
  except UserError:
    return False


FOLLOWING = [name for name in extensions.CATALOGUE if follows(name)]


def test_extensions_that_follow_the_length_are_known():
  assert {"pi", "ntk", "dynamic_ntk", "yarn", "dynamic_yarn", "leaky_rerope", "stretch_buckets"} <= set(FOLLOWING)


@pytest.mark.parametrize("name", FOLLOWING)
def test_an_extension_that_follows_the_length_changes_nothing_within_the_trained_one(name):
  trained = first_accepted(name)
  extended = extensions.apply(extensions.make(name), trained)
  for a, b in zip(scores(extended, trained), scores(trained, trained), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-6)


BOUNDED = ("dca",)
"""Their window lies within a chunk, so it cannot be wider than the context."""


@pytest.mark.parametrize(
  "name", [n for n, cls in extensions.CATALOGUE.items() if "window" in cls.__dataclass_fields__ and n not in BOUNDED]
)
def test_a_window_wider_than_the_context_changes_nothing(name):
  trained = first_accepted(name)
  more = {"factor": 2.0} if "factor" in extensions.CATALOGUE[name].__dataclass_fields__ else {}
  extended = extensions.apply(extensions.make(name, window=1 << 16, **more), trained)
  for a, b in zip(scores(extended, trained), scores(trained, trained), strict=True):
    np.testing.assert_allclose(a, b, atol=5e-6)


def test_kerple_without_strength_is_nothing():
  distance = np.arange(0, 100_000, 37)
  for rule in (kerple.log_kernel, kerple.power_kernel):
    np.testing.assert_allclose(rule(distance, np.float32(1e-12), np.float32(1.0)), 0.0, atol=1e-6)
    assert float(np.abs(rule(distance, np.float32(1.0), np.float32(1.0))).max()) > 1


# The suite itself.


def test_pairs_walk_the_catalogue():
  made = dict(pairs.under(encodings.make("rope"), Dims(2, 8, 16, 8)))
  assert set(made) == {name for name, cls in extensions.CATALOGUE.items() if cls.accepts(encodings.make("rope"))}
  start = encodings.make("rope").init(jax.random.key(0), DIMS)
  assert all(extended.init(jax.random.key(0), DIMS) == start for extended in made.values())
