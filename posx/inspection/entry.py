"""Everything there is to say about one encoding, alone or under an extension: facts, claims, figures, pictures."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from posx.encodings.base import Encoding
from posx.inspection import facts, landscape
from posx.inspection.landscape import LENGTH, Landscape
from posx.testing import measures, suite
from posx.testing.subject import Subject
from posx.testing.textbook import HOOKS

CLAIMS = ("relative", "norm_preserving", "content_free", "elementwise", "linear_shift", "interpolable")


@dataclasses.dataclass(frozen=True)
class Entry:
  """An encoding to be looked at.

  Attributes:
    name: in the catalogue, or 'package.module:Class'.
    encoding: under its extension, if it has one.
    cls: whose docstring and code it is: the encoding's class, or the extension's.
    trained: the encoding without the extension; None for an encoding alone.
    settings: fields that are not at their defaults, as 'field=value'.
  """

  name: str
  encoding: Encoding
  cls: type
  trained: Entry | None = None
  settings: tuple[str, ...] = ()

  @property
  def title(self) -> str:
    """Name and settings, and what is extended."""
    own = self.name + (f" ({', '.join(self.settings)})" if self.settings else "")
    return own if self.trained is None else f"{own} on {self.trained.title}"

  @functools.cached_property
  def subject(self) -> Subject:
    return suite.subject(self.encoding, dims=landscape.DIMS)

  @functools.cached_property
  def landscape(self) -> Landscape:
    with suite.hasty():
      return landscape.of(self.encoding)

  @functools.cached_property
  def before(self) -> Landscape | None:
    return None if self.trained is None else self.trained.landscape

  @functools.cached_property
  def measured(self) -> dict[str, str]:
    """What was measured, in words."""
    with suite.hasty():
      return {
        "acts on": facts.places(self.encoding),
        "hooks": ", ".join(hook for hook in HOOKS if self.encoding.uses(hook)) or "none",
        "form of the score hook": self.encoding.form,
        "learned in one layer": f"{facts.learned(self.encoding)}; {parameters(self.encoding):,} numbers at {_sizes()}",
        "longest position": self.longest,
        "shift-invariance error": self.shift_error,
        "norm error": self.norm_error,
        "never rises up to distance": self.decay,
        "visible keys": self.visible,
        "lines of code": str(self.lines),
      }

  @property
  def lines(self) -> int:
    return facts.lines_of_code(self.cls, module=self.trained is None)

  @property
  def longest(self) -> str:
    found = measures.longest(Subject(self.encoding, dims=landscape.DIMS))
    return f"{found - 1:,}" + (" or more" if found == measures.FURTHEST else f" (trained on {landscape.DIMS.train_length})")

  @property
  def shift_error(self) -> str:
    return f"{measures.shift_error(self.subject):.0e}"

  @property
  def norm_error(self) -> str:
    return f"{measures.norm_error(self.subject):.0e}" if self.encoding.uses("on_query_key") else "0 (leaves them alone)"

  @property
  def decay(self) -> str:
    """Up to which distance equal tokens never count for more."""
    if self.landscape.input is not None:
      return "does not act on scores"
    if not self.encoding.uses("on_query_key") and self.encoding.form == "none":
      return "is flat"
    far = landscape.decay(self.landscape.kernel)
    return f"{far:,}" + (" (all that was looked at)" if far == LENGTH - 1 else "")

  @property
  def visible(self) -> str:
    window, sinks = self.encoding.visibility(landscape.DIMS)
    if window is None:
      return "all of the past"
    return f"the last {window:,}" + (f" and the first {sinks:,}" if sinks else "")

  def claims(self) -> str:
    """The claims that the encoding makes, and those it does not."""
    return ", ".join(name if getattr(self.encoding, name) else f"not {name}" for name in CLAIMS)

  @functools.cached_property
  def orders(self) -> list[tuple[str, float, float]]:
    """(sentence, difference without a mask, with a causal mask) from 'dog bites man', largest of a word."""
    with suite.hasty():
      measured = lambda order, causal: measures.order_difference(self.subject, order, causal)
      return [(said, measured(order, False), measured(order, True)) for said, order in measures.ORDERS.items()]

  def figure(self) -> Any:
    from posx.inspection import pictures

    return pictures.figure(self.landscape, self.before, self.title)


def parameters(encoding: Encoding) -> int:
  return measures.parameters(Subject(encoding, dims=landscape.DIMS))


def _sizes() -> str:
  d = landscape.DIMS
  return f"{d.num_heads} heads of {d.head_dim}, {d.model_dim} wide, trained on {d.train_length}"


def of(name: str, encoding: Encoding, cls: type | None = None, trained: Entry | None = None, settings: Sequence[str] = ()) -> Entry:
  """The entry of an encoding; or of the extension of class `cls` on what it extends."""
  return Entry(name, encoding, cls or type(encoding), trained, tuple(settings))
