"""Names to classes: the catalogues of encodings and extensions, and how an object is made from a name and its fields."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from posx.errors import UserError, unknown
from posx.fields import coerce, fields


class Catalogue(Mapping[str, type]):
  """A read-only dictionary name -> class, whose classes are imported when they are asked for.

  Args:
    kind: what it lists, for messages: 'encoding' or 'extension'.
    package: the package that holds them.
    entries: name -> 'module:Class' inside the package.
  """

  def __init__(self, kind: str, package: str, entries: Mapping[str, str]):
    self.kind, self._package, self._entries = kind, package, dict(entries)

  def __getitem__(self, name: str) -> type:
    module, _, attribute = self._entries[name].partition(":")
    return getattr(importlib.import_module(f"{self._package}.{module}"), attribute)

  def __contains__(self, name: object) -> bool:
    return name in self._entries

  def __iter__(self) -> Iterator[str]:
    return iter(self._entries)

  def __len__(self) -> int:
    return len(self._entries)

  def __repr__(self) -> str:
    return f"Catalogue({self.kind!r}: {', '.join(self._entries)})"


def find(catalogue: Catalogue, name: str) -> type:
  """The class of that name; 'package.module:Class' for one that lives elsewhere.

  Raises:
    UserError: if there is none; the message lists the known names and the nearest one.
  """
  if name in catalogue:
    return catalogue[name]
  module, colon, attribute = str(name).partition(":")
  if not colon:
    raise UserError(unknown(catalogue.kind, name, catalogue) + "; or 'package.module:Class' for one of your own")
  try:
    found = getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError, ValueError) as error:
    raise UserError(f"{catalogue.kind} {name!r} cannot be imported: {error}") from error
  if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
    raise UserError(f"{catalogue.kind} {name!r} must be a frozen dataclass, got {found!r}")
  return found


def make(catalogue: Catalogue, name: str, values: Mapping[str, Any]) -> Any:
  """An object of the class of that name with these fields; the others keep their defaults.

  Raises:
    UserError: for an unknown name or field (lists the known ones), a value of the wrong type, nan or infinity.
  """
  cls = find(catalogue, name)
  known = fields(cls)
  checked = {}
  for field, value in values.items():
    if field not in known:
      own = unknown(f"field of {name}", field, known) if known else f"{name} has no fields, got {field!r}"
      raise UserError(own)
    kind = known[field][0]
    path = f"{name}.{field}"
    # A text is a number on a command line only.
    if isinstance(value, str) and (kind.base is not str):
      raise UserError(f"{path} expects {kind.base.__name__}, got the text {value!r}")
    if kind.base is tuple and any(isinstance(v, str) for v in value if kind.item is not str):
      raise UserError(f"{path} expects numbers, got {value!r}")
    item = getattr(value, "item", None)
    checked[field] = coerce(path, item() if item is not None and getattr(value, "ndim", 1) == 0 else value, kind)
  return cls(**checked)
