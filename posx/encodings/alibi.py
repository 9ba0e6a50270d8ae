"""ALiBi: attention with linear biases."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError


def slopes(num_heads: int) -> Float[Array, " h"]:
  """Per-head slopes of ALiBi, a geometric sequence from 2^(-8/h) down to 2^-8.

  m_n = 2^(-8 n / h), n = 1..h. Early heads look near, late heads far. For h not a power of two, the authors' rule:
  the slopes of the power of two below, then every other slope of the one above.

  Args:
    num_heads: h, the number of query heads (global, before any sharding).

  Returns:
    Positive float32 slopes [h], in logits per token of distance.

  Raises:
    UserError: if `num_heads` is not positive.

  Example:
    >>> slopes(8)[:3]
    Array([0.5  , 0.25 , 0.125], dtype=float32)

  Reference:
    Press, Smith, Lewis, "Train Short, Test Long", ICLR 2022, section 3. arXiv:2108.12409
  """
  return jnp.asarray(slopes64(num_heads), jnp.float32)


def slopes64(num_heads: int) -> np.ndarray:
  """The same on the host in float64, whether or not a program is being traced."""
  if num_heads < 1:
    raise UserError(f"ALiBi needs at least one head, got num_heads={num_heads}")

  def geometric(n: int) -> np.ndarray:
    return 2.0 ** (-8.0 * np.arange(1, n + 1) / n)

  below = 1 << (num_heads.bit_length() - 1)
  return np.concatenate([geometric(below), geometric(2 * below)[::2][: num_heads - below]])


@dataclasses.dataclass(frozen=True)
class ALiBi(Encoding):
  """Subtracts slope x distance from the scores: b(i, j) = -m_h |i - j|.

  Acts on the scores; nothing is learned.

  Reference:
    Press, Smith, Lewis, "Train Short, Test Long", ICLR 2022, section 3. arXiv:2108.12409
  """

  by_head: ClassVar = ("slope",)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    del length
    return {"slope": slopes64(dims.num_heads).astype(np.float32)}

  def bias(self, p: Arrays, distance: Num[Array, "..."]) -> Float[Array, "..."]:
    return -p["slope"] * jnp.abs(distance).astype(jnp.float32)

  def separable(self, p: Arrays, q_pos: Num[Array, " t"], k_pos: Num[Array, " u"]) -> tuple[Float[Array, "t 2"], Float[Array, "u 2"]]:
    i, j = (x.astype(jnp.float32) for x in (q_pos, k_pos))
    return p["slope"] * jnp.stack([jnp.ones_like(i), -i], -1), jnp.stack([j, jnp.ones_like(j)], -1)
