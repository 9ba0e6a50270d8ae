"""Relative position representations of Shaw et al.: trained vectors per clipped distance join keys and values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError

Rows = Callable[[Int[Array, "t u"]], Int[Array, "t u"]]


def index(distance: Int[Array, "*tu"], clip: int) -> Int[Array, "*tu"]:
  """Row of the table: clip(j - i, -k, k) + k, so 0 is far past, k is here, 2k far future.

  Args:
    distance: i - j, query position minus key position, int32.
    clip: k, the largest distance that is told apart.

  Example:
    >>> index(jnp.array([4, 3, 2, 1, 0]), 2)
    Array([0, 0, 0, 1, 2], dtype=int32)

  Reference:
    Shaw et al., 2018, equation 3 and section 3.2. arXiv:1803.02155
  """
  return jnp.clip(-distance, -clip, clip) + clip


def mixed(distance: Num[Array, "t u"], clip: int, row: Rows) -> list[tuple[Int[Array, "t u"], Num[Array, "t u"] | float]]:
  """(row, share) pairs of each distance: one for whole distances, the two neighbours of a fractional one.

  Args:
    distance: int32, or float32 where positions are interpolated.
    clip: the distance from which on all have the same row.
    row: whole distances -> rows of a table.
  """
  if jnp.issubdtype(distance.dtype, jnp.integer):
    return [(row(distance), 1.0)]
  # The compiler may evaluate the distance twice, rounded differently; in steps of 1/4096 row and share agree all the same.
  steps = jnp.round(jnp.clip(distance, -clip - 1, clip + 1) * 4096).astype(jnp.int32)
  whole, part = steps >> 12, (steps & 4095) / 4096
  return [(row(whole), 1 - part), (row(whole + 1), part)]


def meet(x: Float[Array, "t n"], table: Float[Array, "r c"], mix: list) -> Float[Array, "t u"]:
  """x_i . table[row(i, j)] / sqrt(c), with the rows of (i, j) from `mixed`."""
  c = table.shape[1]
  # Another encoding of a chain may have appended channels to x; the table knows the head's own.
  by_row = jnp.einsum("tc,rc->tr", x[:, :c].astype(jnp.float32), table, precision="highest") * c**-0.5
  return functools.reduce(jnp.add, [share * jnp.take_along_axis(by_row, row, axis=1, mode="clip") for row, share in mix])


def _mixed(distance, rows: int):
  clip = (rows - 1) // 2
  return mixed(distance, clip, lambda whole: index(whole, clip))


@dataclasses.dataclass(frozen=True)
class Shaw(Encoding):
  """Keys and values know their clipped distance to the query.

  e_ij = q_i (k_j + aK_ij) / sqrt(c); z_i = sum_j softmax(e)_ij (v_j + aV_ij), with a_ij the row clip(j - i, -k, k) + k.

  Acts on the scores and the values. Parameters: key [2k + 1, c] and, with `values`, value [2k + 1, c], shared by the
  heads. A causal model never trains the k rows of the future; they are kept, as in the paper, so that one table serves
  both directions.

  Attributes:
    clip: k, the largest distance that is told apart.
    values: whether the values have vectors too; the paper finds little difference without.

  Reference:
    Shaw, Uszkoreit, Vaswani, "Self-Attention with Relative Position Representations", 2018. arXiv:1803.02155
  """

  clip: int = 16
  values: bool = True

  by_head: ClassVar = ()
  content_free: ClassVar = False

  def __post_init__(self):
    if self.clip < 1:
      raise UserError(f"Shaw tells apart distances up to clip, which must be at least 1, got {self.clip}")

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    glorot = jax.nn.initializers.glorot_uniform()
    names = ("key", "value") if self.values else ("key",)
    shape = (2 * self.clip + 1, dims.head_dim)
    return {name: glorot(k, shape, jnp.float32) for name, k in zip(names, jax.random.split(key, len(names)), strict=True)}

  def on_scores(self, p: Arrays, scores, q, k, q_pos, k_pos):
    del k
    return scores + meet(q, p["key"], _mixed(q_pos[:, None] - k_pos[None, :], len(p["key"])))

  def on_values(self, p: Arrays, weights, q_pos, k_pos):
    rows = p["value"].shape[0]
    by_row = jnp.zeros((weights.shape[0], rows), jnp.float32)
    query = jnp.arange(weights.shape[0])[:, None]
    for row, share in _mixed(q_pos[:, None] - k_pos[None, :], rows):
      by_row = by_row.at[query, row].add(share * weights.astype(jnp.float32), mode="clip")
    return jnp.einsum("tr,rc->tc", by_row, p["value"], precision="highest")

  def uses(self, hook: str) -> bool:
    return self.values if hook == "on_values" else super().uses(hook)
