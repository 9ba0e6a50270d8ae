"""A learned table never answers for a position that it has no row for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import learned
from posx.encodings.base import Dims

TABLE = jnp.asarray(np.arange(12, dtype=np.float32).reshape(4, 3) + 1)


def test_rows_are_read_by_position():
  np.testing.assert_array_equal(learned.look_up(TABLE, jnp.array([3, 0, 3])), TABLE[jnp.array([3, 0, 3])])


def test_fractions_mix_neighbours_and_the_end_holds_the_last_row():
  np.testing.assert_allclose(
    learned.look_up(TABLE, jnp.array([0.5, 1.25, 3.0, 3.75])), [[2.5, 3.5, 4.5], [4.75, 5.75, 6.75], TABLE[3], TABLE[3]]
  )


@pytest.mark.parametrize("bad", [4, -1, 100, 4.0, -0.5])
def test_known_positions_without_row_are_refused_before_the_computation(bad):
  with pytest.raises(ValueError, match=rf"4 rows has no row for position {bad}.*truncate.*interpolate"):
    learned.look_up(TABLE, jnp.array([0, bad]))


@pytest.mark.parametrize("bad", [4, -1])
@pytest.mark.parametrize("wrap", ["jit", "grad", "scan", "vmap", "remat"])
def test_traced_positions_without_row_stop_the_program(bad, wrap):
  def total(table, positions):
    return learned.look_up(table, positions).sum()

  def scanned(table, positions):
    return jax.lax.scan(lambda s, one: (s + total(table, one[None]), None), 0.0, positions)[0]

  programs = {
    "jit": total,
    "grad": lambda t, p: jax.grad(total)(t, p),
    "scan": scanned,
    "vmap": lambda t, p: jax.vmap(lambda one: learned.look_up(t, one))(p[:, None]),
    "remat": lambda t, p: jax.grad(jax.checkpoint(total))(t, p),
  }
  program = jax.jit(programs[wrap])
  jax.block_until_ready(program(TABLE, jnp.array([0, 3])))
  with pytest.raises(Exception, match=f"4 rows has no row for position {bad}"):
    jax.block_until_ready(program(TABLE, jnp.array([0, bad])))
  assert np.isfinite(np.asarray(program(TABLE, jnp.array([1, 2])))).all()


def test_length_beyond_the_table_is_refused_with_both_numbers(dims):
  made = encodings.make("learned", rows=4)
  made.check(dims, 4)
  with pytest.raises(ValueError, match=r"4 rows cannot serve 5 positions.*truncate.*interpolate"):
    made.check(dims, 5)
  with pytest.raises(ValueError, match="64 rows cannot serve 65"):
    encodings.make("learned").check(dims, 65)


def test_table_has_the_trained_length_by_default(dims):
  params = encodings.make("learned").init(jax.random.key(0), dims)
  assert params["table"].shape == (64, 32) and params["table"].dtype == jnp.float32
  assert abs(float(params["table"].std()) - 0.02) < 2e-3
  assert encodings.make("learned", rows=5).init(jax.random.key(0), dims)["table"].shape == (5, 32)


def test_gradient_reaches_only_the_rows_read():
  grad = jax.grad(lambda t: learned.look_up(t, jnp.array([1, 1, 2])).sum())(TABLE)
  np.testing.assert_array_equal(grad, np.array([0, 2, 1, 0])[:, None] * np.ones((4, 3)))


def test_class_adds_the_row(bind):
  made = bind(encodings.make("learned"), dims=Dims(2, 2, 3, 4), params={"table": TABLE})
  x = jnp.ones((2, 3), jnp.bfloat16)
  out = made.encoding.on_input(made.p(), x, jnp.array([2, 0]))
  assert out.dtype == jnp.bfloat16
  np.testing.assert_array_equal(out, 1 + TABLE[jnp.array([2, 0])])


def test_no_positions_at_all():
  assert learned.look_up(TABLE, jnp.zeros((0,), jnp.int32)).shape == (0, 3)


def test_refusals():
  with pytest.raises(ValueError, match="rows >= 0"):
    encodings.make("learned", rows=-1)
