"""What extensions of distances share: pairs of tokens are shown to the encoding at other positions than their own.

`posx.extensions.distances` and `posx.extensions.masks` have the rules.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Num

from posx.encodings.base import Arrays, Dims, Encoding, Form
from posx.extensions.around import Around
from posx.extensions.base import Extension


class Fold(NamedTuple):
  """Which positions each pair of tokens is seen at.

  Attributes:
    which: [t, u], number of the branch that holds for the pair.
    branches: (positions of the queries [t], of the keys [u]), one pair for each number.
  """

  which: Int[Array, "t u"]
  branches: tuple[tuple[Num[Array, " t"], Num[Array, " u"]], ...]


def beyond(window: Num[Array, ""], q_pos: Int[Array, " t"], k_pos: Int[Array, " u"]) -> Int[Array, "t u"]:
  """1 for distances from the window on, else 0."""
  return (q_pos[:, None] - k_pos[None, :] >= window).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Folding(Extension):
  """An extension that shows an encoding other distances, pair by pair."""

  serves: ClassVar = "relative encodings of the distance alone (RoPE, PoPE, ALiBi, T5, KERPLE, ...)"
  relative: ClassVar[bool] = True

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    acts = encoding.uses("on_query_key") or encoding.uses("bias")
    return acts and encoding.relative and encoding.form in ("none", "distance") and not isinstance(encoding, Around)

  def extend(self, encoding: Encoding) -> Encoding:
    return Folded(encoding, self)

  @property
  def length_dependent(self) -> bool:
    """Whether `numbers` change with the length in play."""
    return getattr(self, "factor", 1.0) == 0

  def numbers(self, dims: Dims, length: int) -> dict[str, Any]:
    """The settings in force as int32 or float32 numbers, made on the host."""
    raise NotImplementedError

  def fold(self, n: Arrays, q_pos: Int[Array, " t"], k_pos: Int[Array, " u"]) -> Fold:
    """The positions that count, from `numbers` and the true ones; the settings themselves are not looked at."""
    raise NotImplementedError

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    """See `Encoding.visibility`."""
    del dims
    return None, 0

  def program(self) -> Folding:
    """The extension to trace with: equal programs differ in `numbers` only."""
    return type(self)()


@dataclasses.dataclass(frozen=True)
class Folded(Around):
  """An encoding that sees some pairs of tokens at other positions than their own.

  Acts on the scores, tile by tile, with the same parameters; queries and keys stay as they are, so a cache keeps them
  unrotated. Every branch beside the first costs one more product and rotation per tile.

  Attributes:
    inner: the encoding as it was trained; rotary, or a bias of the distance.
    by: the extension that tells the positions.
  """

  own: ClassVar = ("fold",)

  by: Folding = dataclasses.field(default_factory=Folding)

  @property
  def content_free(self) -> bool:  # type: ignore[override]
    return not self.inner.uses("on_query_key")

  @property
  def relative(self) -> bool:  # type: ignore[override]
    return self.by.relative

  @property
  def norm_preserving(self) -> bool:  # type: ignore[override]
    return True

  @property
  def form(self) -> Form:
    return "elementwise"

  @property
  def length_dependent(self) -> bool:
    return self.by.length_dependent or self.inner.length_dependent

  def uses(self, hook: str) -> bool:
    return hook == "on_scores"

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    return self.by.visibility(dims)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    return {**self.inner.constants(dims, length), "fold": self.by.numbers(dims, length)}

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    return {**self.inner.prepare(params, constants), "fold": constants["fold"]}

  def on_query_key(self, p, q, k, q_pos, k_pos):
    return q, k

  def bias(self, p, distance):
    raise NotImplementedError("the bias of folded distances depends on both positions")

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    which, branches = self.by.fold(p["fold"], q_pos, k_pos)
    if self.inner.uses("bias"):
      scores = scores + self.inner.bias(p, _choose(which, [i[:, None] - j[None, :] for i, j in branches]))
    if self.inner.uses("on_query_key"):
      product = lambda q, k: jnp.matmul(q, k.T, preferred_element_type=jnp.float32, precision="highest")
      turned = _choose(which, [product(*self.inner.on_query_key(p, q, k, *at)) for at in branches])
      scores = scores + (turned - product(q, k)) * q.shape[-1] ** -0.5
    return scores

  def split(self) -> tuple[Encoding, Encoding]:
    return Encoding(), self

  def program(self) -> Encoding:
    return Folded(self.inner.program(), self.by.program())


def _choose(which: Int[Array, "t u"], of: list[jax.Array]) -> jax.Array:
  """of[which], pair by pair."""
  chosen = of[-1]
  for n in range(len(of) - 2, -1, -1):
    chosen = jnp.where(which == n, of[n], chosen)
  return chosen
