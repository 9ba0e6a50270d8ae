"""Interpolated positions and limits of tables, on every encoding that takes positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings.base import Dims
from posx.encodings.combine import Chain
from posx.encodings.rope import RoPE
from posx.errors import UserError
from posx.extensions import positions

TAKES_POSITIONS = [n for n, c in encodings.CATALOGUE.items() if extensions.CATALOGUE["pi"].accepts(c()) and not hasattr(c(), "scaling")]


def extended(name, factor=4.0, **fields):
  return extensions.apply(extensions.make("pi", factor=factor), encodings.make(name, **fields))


def test_who_takes_positions():
  assert {"sinusoidal", "learned", "alibi", "t5", "kerple", "shaw"} <= set(TAKES_POSITIONS) and "nope" not in TAKES_POSITIONS


@pytest.mark.parametrize("name", TAKES_POSITIONS)
def test_position_times_factor_is_the_trained_position(name, bind):
  """At multiples of the factor the extended encoding is the trained one at the quotient."""
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 4, 5, 8)).astype(np.float32)
  at = np.array([0, 1, 2, 9, 30])
  trained = bind(encodings.make(name))
  stretched = bind(extended(name), params=trained.params, length=256)
  np.testing.assert_allclose(stretched.scores(q, k, 4 * at, 4 * at), trained.scores(q, k, at, at), atol=1e-5)
  x = jnp.ones((5, 32))
  there = stretched.encoding.on_input(stretched.p(), x, jnp.asarray(4 * at))
  np.testing.assert_allclose(there, trained.encoding.on_input(trained.p(), x, jnp.asarray(at)), atol=1e-5)
  if trained.encoding.uses("on_values"):
    w, q_pos, k_pos = jnp.ones((5, 5)), jnp.asarray(at), jnp.asarray(at[::-1].copy())
    there = stretched.encoding.on_values(stretched.head(0), w, 4 * q_pos, 4 * k_pos)
    np.testing.assert_allclose(there, trained.encoding.on_values(trained.head(0), w, q_pos, k_pos), atol=1e-5)


@pytest.mark.parametrize("name", TAKES_POSITIONS)
def test_positions_between_are_finite_and_claims_survive(name, bind):
  made, inner = bind(extended(name), length=256), encodings.make(name)
  q = np.random.default_rng(1).normal(size=(4, 6, 8)).astype(np.float32)
  assert np.isfinite(made.scores(q, q, np.arange(250, 256), np.arange(250, 256))).all()
  for claim in ("relative", "content_free", "elementwise", "norm_preserving", "form", "by_head"):
    assert getattr(made.encoding, claim) == getattr(inner, claim)


def test_bias_of_a_quarter_distance(bind):
  made = bind(extended("alibi"))
  np.testing.assert_allclose(made.encoding.bias(made.head(0), jnp.array([4, 6, 1000])), -0.25 * np.array([1, 1.5, 250]), rtol=1e-6)


def test_a_small_mask_step_is_exact():
  """4095 / 4 = 1023.75."""
  seen = {}

  class Spy(encodings.CATALOGUE["nope"]):
    def on_input(self, p, x, positions):
      seen["at"] = positions
      return x

  made = positions.Interpolated(Spy(), 4.0)
  p = made.prepare({}, made.constants(Dims(1, 2, 2, 1024), 4096))
  made.on_input(p, jnp.ones((1, 2)), jnp.array([4095]))
  assert seen["at"].dtype == jnp.float32 and float(seen["at"][0]) == 1023.75


def test_programs_are_shared(dims):
  assert extended("kerple", 4.0).program() == extended("kerple", 8.0).program() != encodings.make("kerple").program()
  assert not extended("kerple").length_dependent and extended("kerple", 0.0).length_dependent


def test_factor_0_follows_the_length(bind, dims):
  for length, factor in ((32, 1.0), (64, 1.0), (256, 4.0)):
    assert extended("alibi", 0.0).constants(dims, length)["interpolation"] == np.float32(factor)


def test_encodings_without_positions_are_refused():
  with pytest.raises(UserError, match="NoPE, which has no positions"):
    extended("nope")
  with pytest.raises(UserError, match="pi extends encodings that take positions, got Interpolated"):
    extensions.apply(extensions.make("pi", factor=2.0), extended("alibi"))


# Learned tables.


@pytest.mark.parametrize("rows", [0, 16])
def test_interpolate_fits_any_length_into_the_rows(rows, bind, dims):
  n = rows or dims.train_length
  for length in (n, n + 1, 3 * n, 1000):
    made = extensions.apply(extensions.make("interpolate"), encodings.make("learned", rows=rows))
    made.check(dims, length)
    run = bind(made, length=length)
    out = jax.jit(run.encoding.on_input)(run.p(), jnp.zeros((length, 32)), jnp.arange(length))
    table, at = np.asarray(run.params["table"], np.float64), np.arange(length) / max(1, length / n)
    low = np.floor(at).astype(int)
    share = (at - low)[:, None]
    np.testing.assert_allclose(out, (1 - share) * table[low] + share * table[np.minimum(low + 1, n - 1)], atol=2e-5)


def test_a_fixed_factor_has_an_end(dims):
  made = extensions.apply(extensions.make("interpolate", factor=2.0), encodings.make("learned", rows=4))
  made.check(dims, 8)
  with pytest.raises(UserError, match="4 rows cannot serve 5 positions"):
    made.check(dims, 9)
  with pytest.raises(UserError, match="4 rows"):
    made.constants(dims, 9)
  p = made.prepare(made.init(jax.random.key(0), dims), made.constants(dims, 8))
  with pytest.raises(UserError, match=r"no row for position 4\.0"):
    made.on_input(p, jnp.zeros((1, 32)), jnp.array([8]))


def test_truncate_is_a_limit_for_whoever_feeds(bind, dims):
  learned = encodings.make("learned", rows=16)
  made = extensions.apply(extensions.make("truncate"), learned)
  assert made.max_context == 16 and learned.max_context is None
  assert extensions.apply(extensions.make("truncate"), encodings.make("learned")).max_context == 0, "0: the trained length"
  assert extensions.apply(extensions.make("truncate", original_length=9), learned).max_context == 9
  made.check(dims, 16)
  with pytest.raises(UserError, match="16 rows cannot serve 17"):
    made.check(dims, 17)
  a, b = bind(made), bind(learned)
  x = jnp.zeros((3, 32))
  np.testing.assert_array_equal(a.encoding.on_input(a.p(), x, jnp.arange(3)), b.encoding.on_input(b.p(), x, jnp.arange(3)))
  assert made.program() == learned.program()
  with pytest.raises(UserError, match="give at most 16"):
    extensions.apply(extensions.make("truncate", original_length=17), learned)


@pytest.mark.parametrize("name", ["truncate", "interpolate"])
@pytest.mark.parametrize("other", ["rope", "alibi", "sinusoidal", "nope"])
def test_tables_only(name, other):
  with pytest.raises(UserError, match=f"{name} extends a learned table"):
    extensions.apply(extensions.make(name), encodings.make(other))


@pytest.mark.parametrize(
  ("name", "fields", "match"),
  [
    ("interpolate", {"factor": 1.0}, "changes nothing"),
    ("interpolate", {"factor": 0.5}, "above 1"),
    ("interpolate", {"original_length": -1}, "trained length"),
    ("truncate", {"original_length": -1}, "trained length"),
    ("truncate", {"factor": 2.0}, "known: original_length"),
  ],
)
def test_refusals(name, fields, match):
  with pytest.raises(UserError, match=match):
    extensions.make(name, **fields)


# Chains.


def test_a_chain_is_extended_where_it_can_be():
  chain = Chain((encodings.make("learned"), RoPE(), encodings.make("alibi")))
  yarn = extensions.apply(extensions.make("yarn", factor=4.0), chain)
  assert yarn.parts[0] == chain.parts[0] and yarn.parts[1].scaling.factor == 4.0 and yarn.parts[2] == chain.parts[2]
  pi = extensions.apply(extensions.make("pi", factor=4.0), chain)
  assert (
    isinstance(pi.parts[0], positions.Interpolated) and pi.parts[1].scaling is not None and isinstance(pi.parts[2], positions.Interpolated)
  )
  assert extensions.apply(extensions.make("truncate", original_length=7), chain).max_context == 7 and chain.max_context is None


def test_a_chain_without_a_member_that_fits_is_refused():
  with pytest.raises(UserError, match=r"yarn extends rotary .*none of the chain \(ALiBi, T5\)"):
    extensions.apply(extensions.make("yarn", factor=4.0), Chain((encodings.make("alibi"), encodings.make("t5"))))


def test_chain_of_interpolated_members_splits_and_scores(bind):
  chain = Chain((encodings.make("learned"), encodings.make("alibi")))
  trained = bind(chain)
  made = bind(extensions.apply(extensions.make("pi", factor=4.0), chain), params=trained.params, length=256)
  q = np.random.default_rng(2).normal(size=(4, 3, 8)).astype(np.float32)
  at = np.array([0, 5, 9])
  np.testing.assert_allclose(made.scores(q, q, 4 * at, 4 * at), trained.scores(q, q, at, at), atol=1e-5)
  first, rest = made.encoding.split()
  x = jnp.zeros((3, 32))
  np.testing.assert_allclose(first.on_input(made.p(), x, jnp.asarray(4 * at)), trained.params["0"]["table"][at], atol=1e-6)
  assert rest.uses("bias") and not rest.uses("on_input")
