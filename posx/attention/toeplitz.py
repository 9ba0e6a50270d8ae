"""A bias of i - j alone, made once per head as a vector over distances and laid out as tiles.

Each row of a tile is the row above shifted by one: a skew of a broadcast, no gather. Its transpose is a plain sum, so
gradients of the bias parameters flow back through the vector.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def distances(top: int, count: int) -> jax.Array:
  """top, top - 1, ..., top - count + 1, int32."""
  return top - jnp.arange(count, dtype=jnp.int32)


def skew(vector: Float[Array, " n"], rows: int, width: int) -> Float[Array, "x z"]:
  """S[x, z] = vector[rows - 1 - x + z]; with a vector of falling distances, x - z rises down and falls to the right.

  Args:
    vector: rows + width - 1 values; the first belongs to the lower left corner.
    rows: x = 0 .. rows - 1.
    width: z = 0 .. width - 1.
  """
  period = rows + width
  rolled = jnp.roll(jnp.pad(vector, (0, 1)), 1 - rows)
  flat = jnp.broadcast_to(rolled, (rows, period)).reshape(-1)[: rows * (period - 1)]
  return flat.reshape(rows, period - 1)[:, :width]


def strip(n: int) -> int:
  """Rows of the band that tiles of n rows are cut from."""
  return next(size for size in (32, 16, 8, 4, 2, 1) if n % size == 0)


def band(vector: Float[Array, " n"], n: int) -> Float[Array, "s w"]:
  """The first rows of all n x n Toeplitz tiles of a vector, side by side.

  A tile is cut from it strip by strip, each strip one further to the left: tiles themselves would take n times the memory of the
  vector, more than a core's cache holds, and be read from further away than they are made.
  """
  rows = strip(n)
  return skew(vector, rows, vector.shape[0] - rows + 1)


def _starts(place: Any, n: int, rows: int) -> list[Any]:
  return [(place + 1) * n - rows * (r + 1) for r in range(n // rows)]


def tile(band: Float[Array, "s w"], place: Any, n: int) -> Float[Array, "n n"]:
  """Tile number `place`, whose element (x, z) is vector[(place + 1) n - 1 - x + z]."""
  rows = band.shape[0]
  return jnp.concatenate([lax.dynamic_slice(band, (0, start), (rows, n)) for start in _starts(place, n, rows)])


def add_tile(band: Float[Array, "s w"], place: Any, values: Float[Array, "n n"]) -> Float[Array, "s w"]:
  """The band with `values` added where the tile was cut from it."""
  rows, n = band.shape[0], values.shape[0]
  for r, start in enumerate(_starts(place, n, rows)):
    old = lax.dynamic_slice(band, (0, start), (rows, n))
    band = lax.dynamic_update_slice(band, old + values[r * rows : (r + 1) * rows], (0, start))
  return band
