"""Extensions that act on positions, for any encoding: interpolated positions, and tables that are not to be exceeded."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from posx.encodings.base import Arrays, Dims, Encoding
from posx.encodings.learned import Learned
from posx.errors import UserError
from posx.extensions.around import Around
from posx.extensions.base import ByFactor, Extension, check_length, stretch


@dataclasses.dataclass(frozen=True)
class Interpolated(Around):
  """An encoding that sees every position divided by a factor: position interpolation.

  Acts where the encoding inside acts, with the same parameters. A whole distance d becomes d / factor; tables are read
  between their rows.

  Attributes:
    inner: the encoding as it was trained.
    factor: new length / trained length; 0 takes the length in play over the trained length.
    original_length: the trained length; 0 for the model's own.

  Reference:
    Chen et al., "Extending Context Window of Large Language Models via Position Interpolation", 2023. arXiv:2306.15595
  """

  own: ClassVar = ("interpolation",)

  factor: float = 0.0
  original_length: int = 0

  def _factor(self, dims: Dims, length: int) -> float:
    # A table ends where its rows end, whatever the model was trained on.
    rows = self.inner.rows if isinstance(self.inner, Learned) else 0
    known = self.original_length or rows or dims.train_length
    if not (self.factor or known):
      raise UserError("interpolated positions need the trained length or a factor: give original_length, in tokens, or factor")
    return stretch(self.factor, known, length)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    self.check(dims, length)
    return {**self.inner.constants(dims, length), "interpolation": np.float32(self._factor(dims, length))}

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    return {**self.inner.prepare(params, constants), "interpolation": constants["interpolation"]}

  def on_input(self, p, x, positions):
    return self.inner.on_input(p, x, _divide(positions, p))

  def on_query_key(self, p, q, k, q_pos, k_pos):
    return self.inner.on_query_key(p, q, k, _divide(q_pos, p), _divide(k_pos, p))

  def bias(self, p, distance):
    return self.inner.bias(p, _divide(distance, p))

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    if self.inner.form == "distance":
      # Whole positions are subtracted before the division, so the distance is exact.
      return scores + self.bias(p, q_pos[:, None] - k_pos[None, :])
    return self.inner.on_scores(p, scores, q, k, *self._nearby(q_pos, k_pos, p))

  def separable(self, p, q_pos, k_pos):
    return self.inner.separable(p, *self._nearby(q_pos, k_pos, p))

  def on_values(self, p, weights, q_pos, k_pos):
    return self.inner.on_values(p, weights, *self._nearby(q_pos, k_pos, p))

  def _nearby(self, q_pos, k_pos, p):
    """Both positions over the factor; counted from the first key where only differences matter, so that these are exact far out."""
    start = k_pos[:1] if self.inner.relative else 0
    return _divide(q_pos - start, p), _divide(k_pos - start, p)

  @property
  def length_dependent(self) -> bool:
    return self.factor == 0 or self.inner.length_dependent

  def check(self, dims: Dims, length: int) -> None:
    self.inner.check(dims, math.floor((length - 1) / self._factor(dims, length)) + 1)

  def program(self) -> Encoding:
    return Interpolated(inner=self.inner.program())


def _divide(positions: jax.Array, p: Arrays) -> jax.Array:
  return positions.astype(jnp.float32) / p["interpolation"]


@dataclasses.dataclass(frozen=True)
class Truncated(Around):
  """An encoding that asks to be fed no more than the last `tokens` tokens; its formulas are those inside.

  Attributes:
    tokens: the most tokens at once; 0 for the trained length.
  """

  tokens: int = 0

  @property
  def max_context(self) -> int | None:
    return self.tokens

  def program(self) -> Encoding:
    return self.inner.program()


@dataclasses.dataclass(frozen=True)
class Truncate(Extension):
  """Feeds a learned table no more than the last tokens that it has rows for.

  A policy, not a formula: positions beyond the table stay an error, and `max_context` of the encoding tells whoever feeds
  tokens how many of the last ones to keep.

  Attributes:
    original_length: tokens to keep; 0 for all that the table has rows for.
  """

  name: ClassVar = "truncate"
  serves: ClassVar = "a learned table of positions"

  original_length: int = 0

  def __post_init__(self):
    check_length(self.name, self.original_length)

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    return isinstance(encoding, Learned)

  def extend(self, encoding: Encoding) -> Encoding:
    rows = getattr(encoding, "rows", 0)
    if rows and self.original_length > rows:
      raise UserError(f"truncate keeps original_length={self.original_length} tokens, but the table has {rows} rows; give at most {rows}")
    return Truncated(encoding, self.original_length or rows)


@dataclasses.dataclass(frozen=True)
class Interpolate(ByFactor):
  """Squeezes positions into a learned table and reads it between its rows.

  Row (p / factor), mixed linearly from its two neighbours.

  Attributes:
    factor: new length / rows; 0 takes the length in play over the rows (no change up to that length).
    original_length: the trained length; 0 for the rows of the table.
  """

  name: ClassVar = "interpolate"
  serves: ClassVar = "a learned table of positions"

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    return isinstance(encoding, Learned)

  def extend(self, encoding: Encoding) -> Encoding:
    return Interpolated(encoding, self.factor, self.original_length)
