"""The contract finds what is wrong: for every check an encoding with the fault that it is for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings.base import Encoding
from posx.errors import UserError
from posx.testing import checks, models, suite
from posx.testing.__main__ import main
from posx.testing.named import encoding_of

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def broken(*ancestors, **attributes):
  """A frozen dataclass with these attributes in place of the ancestor's."""
  return dataclasses.dataclass(frozen=True)(type("Broken", ancestors or (Encoding,), attributes))()


ALiBi, Learned = (encodings.CATALOGUE[name] for name in ("alibi", "learned"))


def by_place(self, p, scores, q, k, q_pos, k_pos):
  """Positions taken from places in the array."""
  i, j = jnp.arange(scores.shape[0])[:, None], jnp.arange(scores.shape[1])[None, :]
  return scores - jnp.abs(i - j).astype(jnp.float32) - 0.02 * j**2


def ahead(self, p, scores, q, k, q_pos, k_pos):
  """Looks at all keys of the row, those ahead too."""
  return scores + scores.sum(-1, keepdims=True) * (k_pos[None, :] % 2)


FAULTS = {
  "separable": (broken(ALiBi, bias=lambda self, p, d: -2 * p["slope"] * jnp.abs(d).astype(jnp.float32)), "miss what the score hook adds"),
  "parameters": (broken(ALiBi, init=lambda self, key, dims: {"slope": jnp.ones(3)}), "must lead with 4 heads"),
  "constants": (broken(ALiBi, constants=lambda self, dims, length: {"slope": np.ones(dims.num_heads)}), "float32 or int32, got float64"),
  "shapes": (
    broken(on_query_key=lambda self, p, q, k, q_pos, k_pos: (q.astype(jnp.float16), k), norm_preserving=True),
    "queries and keys must stay float32",
  ),
  "finite_far_out": (
    broken(bias=lambda self, p, distance: jnp.exp(distance.astype(jnp.float32)), relative=True),
    "not finite at position 131071",
  ),
  "gradients": (broken(ALiBi, init=lambda self, key, dims: {"unused": jnp.ones(2)}), "no gradient reaches the parameter"),
  "causality": (broken(on_scores=ahead, content_free=False, relative=False), "a later token changes earlier outputs"),
  "shift_invariance": (broken(ALiBi, relative=False), "relative=False, but"),
  "norms": (broken(on_query_key=lambda self, p, q, k, q_pos, k_pos: (q * 1.01, k)), "norm_preserving=True, but"),
  "linear_shift": (broken(Learned, linear_shift=True), "linear_shift=True, but"),
  "blocks": (broken(on_scores=ahead, content_free=False), "elementwise=True, but"),
  "content_free": (broken(on_scores=lambda self, p, s, q, k, q_pos, k_pos: s * 2), "content_free=True, but"),
  "knows_order": (broken(bias=lambda self, p, distance: jnp.zeros(distance.shape)), "orders differ by"),
  "lengths_served": (broken(check=lambda self, dims, length: _refuse(length)), "trained on 64 tokens, it serves 10"),
  "parts": (broken(ALiBi, program=lambda self: Encoding()), "is of another form"),
  "compiled_equals_plain": (broken(ALiBi, program=lambda self: broken(ALiBi, bias=lambda self, p, d: -0.1 * p["slope"] * d)), "differ by"),
}


def _refuse(length):
  if length > 10:
    raise UserError("too long")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name):
  encoding, message = FAULTS[name]
  result = suite.measure(name, getattr(checks, name), suite.subject(encoding))
  assert result.passed is False and message in result.figure, result


def test_an_encoding_that_can_be_changed_is_found():
  class Loose(Encoding):
    def __setattr__(self, name, value):
      object.__setattr__(self, name, value)

  result = suite.measure("is_a_value", checks.is_a_value, suite.subject(Loose()))
  assert result.passed is False and "make it a frozen dataclass" in result.figure


@pytest.mark.slow
def test_places_in_the_array_instead_of_positions_are_found_in_a_model():
  encoding = broken(on_scores=by_place, relative=False)
  failed = {check.__name__ for check in suite.MODELS if suite.measure("", check, suite.subject(encoding)).passed is False}
  assert {"decoding_equals_the_full_pass", "neighbours_change_nothing", "tiles_equal_the_textbook"} <= failed
  assert models.later_tokens_change_nothing.__name__ not in failed


def test_a_hook_that_raises_fails_its_checks_and_not_the_suite():
  def fails(self, p, distance):
    raise KeyError("slope")

  results = list(suite.run(broken(bias=fails), models=False))
  assert len(results) == len(list(suite.cases(models=False)))
  assert [r.figure for r in results if r.name == "shift_invariance"] == ["KeyError: 'slope'"]


def test_the_command_says_which_check_failed(monkeypatch, capsys):
  import sys
  import types

  module = types.ModuleType("faulty")
  module.Faulty = type(broken(ALiBi, relative=False))
  monkeypatch.setitem(sys.modules, "faulty", module)
  assert main(["faulty:Faulty", "--hooks"]) == 1
  assert "FAIL  shift_invariance" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("arguments", "match"),
  [
    (("rop", []), "unknown encoding 'rop'; did you mean 'rope'"),
    (("rope", ["bas=3"]), "did you mean 'encoding.base'"),
    (("rope", [], "yarm"), "unknown extension 'yarm'"),
    (("alibi", [], "yarn", ["factor=4"]), "yarn extends"),
    (("rope", [], "", ["factor=4"]), "name one with --extension=NAME"),
  ],
)
def test_names_that_are_wrong(arguments, match):
  with pytest.raises(UserError, match=match):
    encoding_of(*arguments)


def test_hasty_compilation_is_switched_back():
  before = jax.config.read("jax_disable_most_optimizations")
  with suite.hasty():
    assert jax.config.read("jax_disable_most_optimizations")
  assert jax.config.read("jax_disable_most_optimizations") == before
