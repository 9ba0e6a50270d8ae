"""T5's relative bias: a trained number per head and bucket of distances is added to the scores."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError


def past_buckets(num_buckets: int, max_distance: int) -> np.ndarray:
  """Bucket of each distance 0 .. max_distance, int32; exact, because integers decide the boundaries.

  For `num_buckets` of the past alone. Bucket e + k begins at the least n with n >= e (M/e)^(k/(B-e)), that is n^(B-e) e^k >= M^k e^(B-e).
  """
  exact, steps = num_buckets // 2, num_buckets - num_buckets // 2
  buckets, k = [], 0
  for n in range(max_distance + 1):
    while n >= exact and k + 1 < steps and n**steps * exact ** (k + 1) >= max_distance ** (k + 1) * exact**steps:
      k += 1
    buckets.append(n if n < exact else exact + k)
  return np.asarray(buckets, np.int32)


def _check(num_buckets: int, max_distance: int, causal: bool) -> None:
  side = num_buckets if causal else num_buckets // 2
  if side < 2 or (not causal and num_buckets % 2):
    raise UserError(f"T5 needs at least 2 buckets a side, and an even number if not causal, got num_buckets={num_buckets}, causal={causal}")
  if max_distance <= side // 2:
    raise UserError(f"T5's max_distance must exceed the {side // 2} distances that have buckets of their own, got {max_distance}")


def bucket(distance: Int[Array, "*tu"], *, num_buckets: int = 32, max_distance: int = 128, causal: bool = True) -> Int[Array, "*tu"]:
  """Bucket of a distance: exact when near, logarithmic further out, one for all from `max_distance` on.

  d < e: d; else e + floor(log(d/e) / log(M/e) (B - e)), at most B - 1, with e = B/2. Causal: the future has distance 0.
  Otherwise B is half of `num_buckets` and the future (key after query) uses the upper half.

  Args:
    distance: i - j, query position minus key position, int32. Fractions are rounded down.
    num_buckets: B, or 2B if not causal.
    max_distance: M, in tokens.
    causal: whether only the past is told apart.

  Returns:
    int32 in 0 .. num_buckets - 1. Exact: no logarithm is rounded.

  Raises:
    UserError: for sizes that leave a side without buckets.

  Example:
    >>> bucket(jnp.array([15, 16, 31, 63, 127, 128, 5000]))
    Array([15, 16, 21, 26, 31, 31, 31], dtype=int32)

  Reference:
    Raffel et al., 2020, section 2.1. arXiv:1910.10683
  """
  _check(num_buckets, max_distance, causal)
  distance = jnp.asarray(distance)
  if not jnp.issubdtype(distance.dtype, jnp.integer):
    distance = jnp.floor(distance)
  side = num_buckets if causal else num_buckets // 2
  return _look_up(jnp.asarray(past_buckets(side, max_distance)), distance.astype(jnp.int32), side, causal)


def _look_up(past: Int[Array, " m"], distance: Int[Array, "*tu"], side: int, causal: bool) -> Int[Array, "*tu"]:
  """Buckets of whole distances; `past` has those of 0, 1, ... and its last serves all further ones."""
  if causal:
    return past[jnp.clip(distance, 0, past.shape[0] - 1)]
  return past[jnp.minimum(jnp.abs(distance), past.shape[0] - 1)] + jnp.where(distance < 0, side, 0)


def read(table: Float[Array, " n"], distance: Num[Array, "*tu"], past: Int[Array, " m"], causal: bool) -> Float[Array, "*tu"]:
  """One head's bias: its table's entry for the bucket; a fraction mixes its two whole neighbours linearly.

  Args:
    table: one number per bucket, in logits.
    distance: i - j, in tokens.
    past: bucket of each distance 0, 1, ...; the last serves all further ones (see `past_buckets`).
    causal: whether only the past is told apart.
  """
  side = table.shape[0] if causal else table.shape[0] // 2
  at = lambda whole: jnp.take(table, _look_up(past, whole.astype(jnp.int32), side, causal), mode="clip")
  if jnp.issubdtype(distance.dtype, jnp.integer):
    return at(distance)
  below = jnp.floor(distance)
  part = distance - below
  return (1 - part) * at(below) + part * at(below + 1)


@dataclasses.dataclass(frozen=True)
class T5(Encoding):
  """Adds a trained bias per head and bucket: b(i, j) = table[h, bucket(i - j)].

  Acts on the scores. Parameters: table [h, num_buckets]. T5 itself does not scale q.k by 1/sqrt(c) and shares one table
  among its layers; here the scores are scaled as everywhere, and sharing is a field of the model. A fractional distance
  (interpolated positions) mixes the biases of its two whole neighbours linearly.

  Attributes:
    num_buckets: buckets in all; half of them for each direction if not causal.
    max_distance: from here on all distances share the last bucket, in tokens.
    causal: whether only the past is told apart.

  Reference:
    Raffel et al., "Exploring the Limits of Transfer Learning", 2020, section 2.1. arXiv:1910.10683
  """

  num_buckets: int = 32
  max_distance: int = 128
  causal: bool = True

  by_head: ClassVar = ("table",)

  def __post_init__(self):
    _check(self.num_buckets, self.max_distance, self.causal)

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    # T5's own scale: the bias starts as large as an unscaled score is.
    return {"table": jax.random.normal(key, (dims.num_heads, self.num_buckets), jnp.float32) * dims.model_dim**-0.5}

  @property
  def side(self) -> int:
    """Buckets of one direction."""
    return self.num_buckets if self.causal else self.num_buckets // 2

  def bias(self, p: Arrays, distance: Num[Array, "*tu"]) -> Float[Array, "*tu"]:
    return read(p["table"], distance, jnp.asarray(past_buckets(self.side, self.max_distance)), self.causal)
