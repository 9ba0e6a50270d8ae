"""Layers that differ: encodings and windows that repeat over the depth of a model, as in local/global models and iRoPE."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax

from posx.encodings.base import Dims, Encoding
from posx.encodings.combine import Chain
from posx.errors import UserError


@dataclasses.dataclass(frozen=True)
class PerLayer(Encoding):
  """Layer n has encoding `parts[n % period]` and, if its window is not 0, sees the last `windows[n % period]` tokens.

  A model is given this in place of an encoding; attention never sees it, for every layer has one part. What acts on the input acts
  once, so all parts must agree in that. Constants are dictionaries keyed by the place in the period, '0', '1', ...

  Attributes:
    parts: encodings of one period.
    windows: tokens that these layers see; 0 for no window of their own.

  Reference:
    Meta, Llama 4 (iRoPE), 2025; Yang et al., "RoPE to NoPE and Back Again", 2025. arXiv:2501.18795. Gemma Team, "Gemma 3", 2025,
    section 2 (local and global layers with bases of their own). arXiv:2503.19786
  """

  parts: tuple[Encoding, ...] = (Encoding(),)
  windows: tuple[int, ...] = (0,)

  by_head: ClassVar = ()

  def __post_init__(self):
    if not self.parts or len(self.parts) != len(self.windows) or min(self.windows) < 0:
      raise UserError(f"every layer of a period needs an encoding and a window (0: none), got {len(self.parts)} and {self.windows}")
    if len({_first(part) for part in self.parts}) > 1:
      names = ", ".join(sorted({type(first).__name__ for first in map(_first, self.parts)}))
      raise UserError(f"what acts on the input acts once, so layers cannot differ in it, got {names}; give all of them the same, or none")

  @property
  def period(self) -> int:
    return len(self.parts)

  @property
  def content_free(self) -> bool:  # type: ignore[override]
    return all(part.content_free for part in self.parts)

  @property
  def relative(self) -> bool:  # type: ignore[override]
    return all(part.relative for part in self.parts)

  @property
  def mixes_heads(self) -> bool:  # type: ignore[override]
    return any(part.mixes_heads for part in self.parts)

  @property
  def length_dependent(self) -> bool:
    return any(part.length_dependent for part in self.parts)

  @property
  def max_context(self) -> int | None:
    return Chain(self.parts).max_context

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    """For parameters that all layers share; those of different encodings cannot be shared."""
    if len({_inner(part) for part in self.parts}) > 1:
      raise UserError("share_encoding gives all layers the same parameters, and these layers have different encodings; set it to false")
    return self.parts[0].init(key, dims)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    return {str(n): part.constants(dims, length) for n, part in enumerate(self.parts)}

  def uses(self, hook: str) -> bool:
    return any(part.uses(hook) for part in self.parts)

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    """What the layer that sees most sees."""
    seen = [part.visibility(dims) for part in self.parts]
    widths = [min((w for w in (own or None, width) if w), default=0) for (width, _), own in zip(seen, self.windows, strict=True)]
    return max(widths) if all(widths) else None, max(sinks for _, sinks in seen)

  def check(self, dims: Dims, length: int) -> None:
    for part in self.parts:
      part.check(dims, length)

  def split(self) -> tuple[Encoding, Encoding]:
    return _first(self.parts[0]), dataclasses.replace(self, parts=tuple(map(_inner, self.parts)))

  def program(self) -> Encoding:
    return dataclasses.replace(self, parts=tuple(part.program() for part in self.parts))


def _first(encoding: Encoding) -> Encoding:
  first = encoding.split()[0]
  return first if first.uses("on_input") else Encoding()


def _inner(encoding: Encoding) -> Encoding:
  return encoding.split()[1]


def of_period(encoding: Encoding) -> list[tuple[Encoding, int]]:
  """(encoding, window or 0) of every layer of a period; one layer where all are the same."""
  if isinstance(encoding, PerLayer):
    return list(zip(encoding.parts, encoding.windows, strict=True))
  return [(encoding, 0)]
