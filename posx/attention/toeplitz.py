"""A bias of i - j alone, made once per head as a vector over distances and laid out as tiles.

Each row of a tile is the row above shifted by one: a skew of a broadcast, no gather. Its transpose is a plain sum, so
gradients of the bias parameters flow back through the vector.
"""

from __future__ import annotations

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


def blocks(vector: Float[Array, " n"], tiles: tuple[int, int], count: int, step: int) -> Float[Array, "d x y"]:
  """Tiles 0 .. count - 1; tile d is the skew of the vector's part that starts at d * step."""
  rows, width = tiles
  return lax.map(lambda d: skew(lax.dynamic_slice(vector, (d * step,), (rows + width - 1,)), rows, width), jnp.arange(count))
