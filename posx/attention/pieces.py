"""What the plans share: padding to whole tiles, and the end of a softmax that was summed piece by piece."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from posx.attention.dense import NEGATIVE

HIDDEN = -NEGATIVE
"""Log-sum-exp of a row that sees nothing: every weight exp(score - HIDDEN) is 0."""


def round_up(n: int, to: int) -> int:
  return -(-n // to) * to


def pad(x: Any, n: int, axis: int = 0, mode: Literal["constant", "edge"] = "constant") -> Any:
  """Appends rows up to n."""
  if x is None or x.shape[axis] == n:
    return x
  xp = np if isinstance(x, np.ndarray) else jnp
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, n - x.shape[axis])
  return xp.pad(x, widths, mode=mode)


def finish(acc, total, top):
  """Output and log-sum-exp of rows: weighted values, the sum of weights, the largest score."""
  seen = ~(total <= 0)
  safe = jnp.where(seen, total, 1.0)
  inverse = 1.0 / safe + 0.0 * top  # a NaN or infinite score shows in the output
  return acc * inverse[:, None], jnp.where(seen, top + jnp.log(safe), HIDDEN)
