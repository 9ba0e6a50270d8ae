"""Learned absolute positions: one trained vector per position is added to the input."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError

_CURE = "apply an extension: 'truncate' (feed the last tokens only) or 'interpolate' (squeeze the positions), or train with more rows"


def _refuse(low, high, rows: int) -> None:
  """Raises if the lowest or highest position has no row."""
  low, high = np.min(low), np.max(high)
  if low < 0 or high >= rows:
    bad = low if low < 0 else high
    raise UserError(f"a learned table of {rows} rows has no row for position {bad}; {_CURE}")


def guard(positions: Num[Array, "*t"], rows: int) -> Num[Array, "*t"]:
  """The positions, once each is known to be in 0 .. rows - 1 (below `rows`, for fractions).

  Known positions are checked at once. Traced ones are checked when the program runs, by a call to the host that only
  happens where one is outside: an out-of-range gather would silently read the last row.

  Raises:
    UserError: naming the position and the number of rows; inside a compiled program, JAX's runtime error with that text.
  """
  if positions.size == 0:
    return positions
  if not isinstance(positions, jax.core.Tracer):
    _refuse(positions, positions, rows)
    return positions
  low, high = jnp.min(positions), jnp.max(positions)

  def report(low, high):
    _refuse(low, high, rows)
    return np.zeros(np.shape(low), np.int32)

  def outside():
    return jax.pure_callback(report, jax.ShapeDtypeStruct((), np.int32), low, high, vmap_method="expand_dims")

  # The sum makes the gather wait for the answer, so the check cannot be optimised away.
  zero = jax.lax.cond((low < 0) | (high >= rows), outside, lambda: jnp.int32(0))
  return positions + zero.astype(positions.dtype)


def look_up(table: Float[Array, "n d"], positions: Num[Array, "*t"]) -> Float[Array, "*t d"]:
  """Rows of a learned table; a fractional position mixes its two neighbours linearly.

  A fraction above the last row's number and below the number of rows reads the last row.

  Args:
    table: one row per position, float32.
    positions: int32 in 0 .. n - 1, or float32 in [0, n).

  Returns:
    float32 [*t, d].

  Raises:
    UserError: for a position that has no row; see `guard` for traced positions.
  """
  positions = guard(jax.lax.stop_gradient(jnp.asarray(positions)), table.shape[0])
  if jnp.issubdtype(positions.dtype, jnp.integer):
    return jnp.take(table, positions, axis=0, mode="clip")
  below = jnp.floor(positions)
  part = (positions - below)[..., None]
  row = below.astype(jnp.int32)
  return (1 - part) * jnp.take(table, row, axis=0, mode="clip") + part * jnp.take(table, row + 1, axis=0, mode="clip")


@dataclasses.dataclass(frozen=True)
class Learned(Encoding):
  """Adds a trained vector to the input: x_p + E[p].

  Acts on the input. Parameters: table [rows, d]. There is no row beyond the table, and asking for one is an error; its
  policy for longer inputs is an explicit extension.

  Attributes:
    rows: positions that have a vector; 0 for the trained length.
    std: standard deviation of the initial vectors.

  Reference:
    Gehring et al., 2017, section 3.1. arXiv:1705.03122. Radford et al., "Improving Language Understanding", 2018
  """

  rows: int = 0
  std: float = 0.02

  by_head: ClassVar = ()
  relative: ClassVar = False

  def __post_init__(self):
    if self.rows < 0 or not self.std >= 0:
      raise UserError(f"a learned table needs rows >= 0 (0: the trained length) and std >= 0, got rows={self.rows}, std={self.std}")

  def _rows(self, dims: Dims) -> int:
    return self.rows or dims.train_length

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    return {"table": self.std * jax.random.normal(key, (self._rows(dims), dims.model_dim), jnp.float32)}

  def check(self, dims: Dims, length: int) -> None:
    if length > self._rows(dims):
      raise UserError(f"a learned table of {self._rows(dims)} rows cannot serve {length} positions; {_CURE}")

  def on_input(self, p: Arrays, x, positions):
    return (x.astype(jnp.float32) + look_up(p["table"], positions)).astype(x.dtype)
