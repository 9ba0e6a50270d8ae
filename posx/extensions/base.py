"""The contract of context extensions: a frozen dataclass that turns an encoding into another with the same parameters.

Train once at length L0, then evaluate the same weights under any extension at any length.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from posx.encodings.base import Encoding
from posx.encodings.combine import Chain
from posx.encodings.layers import PerLayer
from posx.errors import UserError


@dataclasses.dataclass(frozen=True)
class Extension:
  """A context extension; its fields are its settings and nothing else.

  Class attributes:
    name: its name in the catalogue, for messages.
    serves: the encodings it can extend, in words, for messages.
    whole: whether it extends a chain as one encoding, rather than its members.
  """

  name: ClassVar[str] = ""
  serves: ClassVar[str] = ""
  whole: ClassVar[bool] = False

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    """Whether this extension has a meaning for the encoding."""
    raise NotImplementedError

  def extend(self, encoding: Encoding) -> Encoding:
    """The extended encoding; called with one that it accepts."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class ByFactor(Extension):
  """An extension with a factor and a trained length.

  Attributes:
    factor: target length / trained length; 0 takes the length in play over the trained length (no change up to that).
    original_length: the trained length L0 in tokens; 0 for the model's own.
  """

  factor: float = 0.0
  original_length: int = 0

  def __post_init__(self):
    check_factor(self.name, self.factor)
    check_length(self.name, self.original_length)


def apply(extension: Extension, encoding: Encoding) -> Encoding:
  """The encoding under the extension: same parameters, other positions, angles or limits.

  In a chain it extends every member that it has a meaning for, among layers that differ also those that have no window of their own.

  Args:
    extension: from `posx.extensions.make`, or any `Extension`.
    encoding: what the model was trained with.

  Raises:
    UserError: if the extension has no meaning for the encoding, or the encoding is already extended that way.

  Example:
    >>> from posx.encodings.rope import RoPE
    >>> from posx.extensions.by_parts import YaRN
    >>> apply(YaRN(factor=16.0), RoPE()).scaling.factor
    16.0
  """
  if isinstance(encoding, PerLayer):
    return dataclasses.replace(encoding, parts=_layers(extension, encoding))
  if isinstance(encoding, Chain) and not extension.whole:
    if not any(extension.accepts(part) for part in encoding.parts):
      names = ", ".join(type(part).__name__ for part in encoding.parts) or "nothing"
      raise UserError(f"{extension.name} extends {extension.serves}; none of the chain ({names}) is one")
    return dataclasses.replace(encoding, parts=tuple(apply(extension, p) if extension.accepts(p) else p for p in encoding.parts))
  if not extension.accepts(encoding):
    raise UserError(f"{extension.name} extends {extension.serves}, got {title(encoding)}{_others(encoding)}")
  return extension.extend(encoding)


def _layers(extension: Extension, encoding: PerLayer) -> tuple[Encoding, ...]:
  """The parts, extended where they can be; a layer with a window of its own sees no distance that it was not trained on."""
  chosen = [window == 0 and extension.accepts(part) for part, window in zip(encoding.parts, encoding.windows, strict=True)]
  if not any(chosen):
    names = ", ".join(type(part).__name__ + " with a window" * (w > 0) for part, w in zip(encoding.parts, encoding.windows, strict=True))
    raise UserError(
      f"{extension.name} extends {extension.serves}, and leaves layers with a window of their own as they are; none of the layers "
      f"({names}) is to be extended"
    )
  return tuple(apply(extension, part) if yes else part for part, yes in zip(encoding.parts, chosen, strict=True))


def _others(encoding: Encoding) -> str:
  from posx.extensions import CATALOGUE

  names = [name for name, cls in CATALOGUE.items() if cls.accepts(encoding)]
  return f"; for that there is: {', '.join(names)}" if names else ""


def title(encoding: Encoding) -> str:
  """The name of an encoding in a message."""
  return "NoPE, which has no positions to extend" if type(encoding) is Encoding else type(encoding).__name__


def check_factor(name: str, factor: float, least: float = 1.0, automatic: bool = True) -> None:
  """Refuses a factor that shrinks the context or changes nothing; 0 stands for an automatic one where there is such."""
  if automatic and factor == 0:
    return
  hint = "; 0 takes the length in play over the trained length" if automatic else ""
  if not math.isfinite(factor) or factor < 1:
    raise UserError(f"{name} needs a factor above 1 (target length / trained length), got {factor}{hint}")
  if factor == 1 and least == 1:
    raise UserError(f"{name} with factor 1 changes nothing; give target length / trained length{hint}")


def check_length(name: str, original_length: int) -> None:
  """Refuses a trained length below 0; 0 stands for the one the model knows."""
  if original_length < 0:
    raise UserError(f"{name}'s original_length is the trained length in tokens (0: the model's own), got {original_length}")


def stretch(factor: float, original_length: int, length: int) -> float:
  """The factor in force: the one given, or length / original_length (at least 1) where that is 0."""
  return factor or max(1.0, length / original_length)
