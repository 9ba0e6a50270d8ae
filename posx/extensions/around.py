"""The base of encodings under an extension: whatever the extension leaves alone is that of the encoding inside."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax

from posx.encodings.base import Arrays, Dims, Encoding, Form


@dataclasses.dataclass(frozen=True)
class Around(Encoding):
  """An encoding that hands everything to the one inside; the base of wrappers.

  Class attributes:
    own: names of what `prepare` adds to the parameters and constants of the encoding inside.
  """

  own: ClassVar[tuple[str, ...]] = ()

  inner: Encoding = dataclasses.field(default_factory=Encoding)

  @property
  def by_head(self) -> tuple[str, ...]:  # type: ignore[override]
    return self.inner.by_head

  @property
  def elementwise(self) -> bool:  # type: ignore[override]
    return self.inner.elementwise

  @property
  def content_free(self) -> bool:  # type: ignore[override]
    return self.inner.content_free

  @property
  def relative(self) -> bool:  # type: ignore[override]
    return self.inner.relative

  @property
  def norm_preserving(self) -> bool:  # type: ignore[override]
    return self.inner.norm_preserving

  @property
  def mixes_heads(self) -> bool:  # type: ignore[override]
    return self.inner.mixes_heads

  @property
  def ordered(self) -> bool:  # type: ignore[override]
    return self.inner.ordered

  @property
  def form(self) -> Form:
    return self.inner.form

  @property
  def length_dependent(self) -> bool:
    return self.inner.length_dependent

  @property
  def max_context(self) -> int | None:
    return self.inner.max_context

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    return self.inner.init(key, dims)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    return self.inner.constants(dims, length)

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    return self.inner.prepare(params, constants)

  def heads(self, p: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    # What the wrapper adds is shared by the heads, whatever names stand inside it.
    own = {name: value for name, value in p.items() if name in self.own}
    mine, shared = self.inner.heads({name: value for name, value in p.items() if name not in own})
    return mine, {**shared, **own}

  def features(self, p, x, positions):
    return self.inner.features(p, x, positions)

  def sums(self, features):
    return self.inner.sums(features)

  def join(self, p, query, key):
    return self.inner.join(p, query, key)

  def on_input(self, p, x, positions):
    return self.inner.on_input(p, x, positions)

  def on_query_key(self, p, q, k, q_pos, k_pos):
    return self.inner.on_query_key(p, q, k, q_pos, k_pos)

  def bias(self, p, distance):
    return self.inner.bias(p, distance)

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    return self.inner.on_scores(p, scores, q, k, q_pos, k_pos)

  def separable(self, p, q_pos, k_pos):
    return self.inner.separable(p, q_pos, k_pos)

  def on_values(self, p, weights, q_pos, k_pos):
    return self.inner.on_values(p, weights, q_pos, k_pos)

  def uses(self, hook: str) -> bool:
    return self.inner.uses(hook)

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    return self.inner.visibility(dims)

  def check(self, dims: Dims, length: int) -> None:
    self.inner.check(dims, length)

  def split(self) -> tuple[Encoding, Encoding]:
    return tuple(self if self.inner is half else half for half in self.inner.split())  # type: ignore[return-value]

  def program(self) -> Encoding:
    return dataclasses.replace(self, inner=self.inner.program())
