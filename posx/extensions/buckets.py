"""The extension of T5's buckets: the same trained numbers for distances further out."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from posx.encodings import t5
from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError
from posx.extensions.around import Around
from posx.extensions.base import ByFactor, stretch


@dataclasses.dataclass(frozen=True)
class Stretched(Around):
  """T5 whose logarithmic buckets reach further: `max_distance` times a factor; near buckets stay single distances.

  Attributes:
    inner: T5 as it was trained.
    factor: new max_distance / trained one; 0 takes the length in play over the trained length.
    original_length: the trained length in tokens; 0 for the model's own.
  """

  own: ClassVar = ("past",)

  inner: t5.T5 = dataclasses.field(default_factory=t5.T5)
  factor: float = 0.0
  original_length: int = 0

  @property
  def length_dependent(self) -> bool:
    return self.factor == 0

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    known = self.original_length or dims.train_length
    if not (self.factor or known):
      raise UserError("stretch_buckets needs the trained length or a factor: give original_length, in tokens, or factor")
    furthest = math.ceil(self.inner.max_distance * stretch(self.factor, known, length))
    return {**self.inner.constants(dims, length), "past": t5.past_buckets(self.inner.side, furthest)}

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    return {**self.inner.prepare(params, constants), "past": constants["past"]}

  def bias(self, p, distance):
    return t5.read(p["table"], distance, p["past"], self.inner.causal)

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    return scores + self.bias(p, q_pos[:, None] - k_pos[None, :])

  def program(self) -> Encoding:
    return Stretched(dataclasses.replace(self.inner, max_distance=self.inner.num_buckets))


@dataclasses.dataclass(frozen=True)
class StretchBuckets(ByFactor):
  """Spreads T5's logarithmic buckets over longer distances; the near ones, a distance each, stay as they are.

  bucket(d) with max_distance s M in place of M: d < e: d; else e + floor(log(d/e) / log(s M/e) (B - e)). Distances that
  were told apart nearby still are, and what lies beyond M is graded instead of sharing the last bucket. The counterpart for
  T5 of what NTK-aware scaling is for RoPE; no paper proposes it, and position interpolation (`pi`) is the other choice.

  Attributes:
    factor: s; 0 takes the length in play over the trained length (no change up to that).
    original_length: the trained length L0 in tokens; 0 for the model's own.

  Reference:
    of posx; the buckets are those of Raffel et al., 2020, section 2.1. arXiv:1910.10683
  """

  name: ClassVar = "stretch_buckets"
  serves: ClassVar = "T5's bias"

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    return isinstance(encoding, t5.T5)

  def extend(self, encoding: Encoding) -> Encoding:
    return Stretched(encoding, self.factor, self.original_length)  # type: ignore[arg-type]
