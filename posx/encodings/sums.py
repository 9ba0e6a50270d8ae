"""Sums along a sequence whose differences stay exact: what cumulative gates are made of.

A sum of 32,768 gates of -0.7 is near -23,000, where float32 is spaced by 0.002: the difference between neighbours would be
off by that much. Here a sum is a whole number, exact up to 2^24, and a rest of at most 1/2, and the two are subtracted apart.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def running(x: Float[Array, "t *h"], before: Float[Array, "*h 2"] | None = None) -> Float[Array, "t *h 2"]:  # noqa: F821
  """x_1, x_1 + x_2, ..., each as (whole, rest); gradients reach x through the rests.

  Args:
    x: float32, the terms.
    before: (whole, rest) of what was summed earlier; None for nothing.

  Example:
    >>> running(jnp.array([0.25, 0.5, 1.0]))
    Array([[ 0.  ,  0.25],
           [ 1.  , -0.25],
           [ 2.  , -0.25]], dtype=float32)
  """
  nothing = jnp.zeros_like(x)
  whole, rest = lax.associative_scan(_add, _add((nothing, x), (nothing, nothing)))
  if before is not None:
    whole, rest = _add((whole, rest), (before[None, ..., 0], before[None, ..., 1]))
  return jnp.stack([whole, rest], -1)


def _add(a, b):
  rest = a[1] + b[1]
  carry = jnp.round(lax.stop_gradient(rest))
  return a[0] + b[0] + carry, rest - carry


def between(q: Float[Array, "t 2"], k: Float[Array, "u 2"]) -> Float[Array, "t u"]:
  """What was summed after key j up to query i: s_i - s_j."""
  return (q[:, None, 0] - k[None, :, 0]) + (q[:, None, 1] - k[None, :, 1])


def as_channels(q: Float[Array, "t 2"], k: Float[Array, "u 2"]) -> tuple[Float[Array, "t 3"], Float[Array, "u 3"]]:
  """Two arrays whose products over the last axis are `between(q, k)`."""
  ones = jnp.ones_like
  return jnp.concatenate([-ones(q), q.sum(-1, keepdims=True)], -1), jnp.concatenate([k, ones(k[:, :1])], -1)
