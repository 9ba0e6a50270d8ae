"""What is being tested: an encoding with parameters that have moved from where they start, and one compiled program for all checks."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posx.encodings.base import Dims, Encoding
from posx.testing import textbook
from posx.testing.textbook import DIMS, HOOKS

TOKENS = 8
"""Every check asks about so many tokens, so that one program serves them all."""
NEAR = np.array([0, 1, 3, 8, 20, 41, 50, 60], np.int32)
FAR = np.array([0, 1, 1000, 65535, 100_000, 131_069, 131_070, 131_071], np.int32)


class Failed(AssertionError):
  """A check that an encoding does not pass; the message says what was measured and what was expected."""


class Inapplicable(Exception):
  """A check that has no meaning for this encoding; the message says why."""


def require(condition: Any, message: str) -> None:
  """Raises Failed unless the condition holds."""
  if not condition:
    raise Failed(message)


@dataclasses.dataclass(frozen=True)
class Subject:
  """An encoding under test.

  Attributes:
    encoding: extended or not.
    dtype: of queries, keys and inputs.
    jit: whether the hooks run compiled, or operation by operation.
    dims: sizes of the model.
  """

  encoding: Encoding
  dtype: str = "float32"
  jit: bool = True
  dims: Dims = DIMS

  @functools.cached_property
  def start(self) -> Any:
    """Parameters as they start."""
    return self.encoding.init(jax.random.key(0), self.dims)

  @functools.cached_property
  def params(self) -> Any:
    """Parameters that have moved from where they start, which for some is 0."""
    leaves, tree = jax.tree.flatten(self.start)
    rng = np.random.default_rng(7)
    return jax.tree.unflatten(tree, [x + 0.3 * rng.normal(size=x.shape).astype(np.float32) for x in leaves])

  def constants(self, length: int) -> Any:
    return jax.tree.map(jnp.asarray, self.encoding.constants(self.dims, length))

  def refusal(self, length: int) -> str:
    """What the encoding says about so many positions; '' if it serves them."""
    try:
      self.encoding.check(self.dims, length)
    except ValueError as error:
      return str(error)
    return ""

  def tokens(self, seed: int = 0) -> dict[str, jax.Array]:
    """x [t d], q and k [h t c]: content at random."""
    rng, h, c = np.random.default_rng(seed), self.dims.num_heads, self.dims.head_dim
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), self.dtype)
    return {"x": draw(TOKENS, self.dims.model_dim), "q": draw(h, TOKENS, c), "k": draw(h, TOKENS, c)}

  def run(
    self, q_pos: Any = NEAR, k_pos: Any = None, *, which: str = "everything", tokens=None, length: int = 0, params: Any = None, seen=None
  ) -> Any:
    """Everything that the hooks make of the tokens at these positions, see `posx.testing.textbook`; causal unless `seen` is given."""
    tokens = tokens or self.tokens()
    q_pos = np.asarray(q_pos, np.int32)
    k_pos = q_pos if k_pos is None else np.asarray(k_pos, np.int32)
    seen = q_pos[:, None] >= k_pos[None, :] if seen is None else np.broadcast_to(seen, (TOKENS, TOKENS))
    constants = self.constants(length or self.dims.train_length)
    params = self.params if params is None else params
    arrays = params, constants, tokens["x"], tokens["q"], tokens["k"], jnp.asarray(q_pos), jnp.asarray(k_pos), jnp.asarray(seen)
    if self.jit:
      return textbook.compiled(which)(self.encoding.program(), *arrays)
    return {"everything": textbook.everything, "slope": textbook.slope}[which](self.encoding, *arrays)

  @property
  def hooks(self) -> tuple[str, ...]:
    return tuple(hook for hook in HOOKS if self.encoding.uses(hook))


def difference(a: Any, b: Any, where: Any = ...) -> float:
  """The largest absolute difference."""
  return float(np.abs(np.asarray(a, np.float32)[where] - np.asarray(b, np.float32)[where]).max(initial=0.0))


def finite(x: Any) -> bool:
  return bool(np.isfinite(np.asarray(x, np.float32)).all())


PAST = np.s_[:, NEAR[:, None] >= NEAR[None, :]]
"""Where in [h t u] a query may look."""
