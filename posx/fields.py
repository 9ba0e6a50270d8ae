"""Typed fields: which fields of a dataclass a text can set, and how the text becomes a value of the right type."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from posx.errors import UserError, unknown


class Kind(NamedTuple):
  """The type of a field: base type, what a tuple holds, the words allowed, whether None is a value."""

  base: type
  item: type | None = None
  words: tuple[str, ...] = ()
  optional: bool = False


def plain(hint: Any) -> Kind | None:
  """The kind of a type hint that a text can set: int, float, bool, str, words, a tuple of these, or any of them `| None`."""
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    rest = [a for a in typing.get_args(hint) if a is not type(None)]
    # int | float means the wider of the two.
    one = plain(float if set(rest) == {int, float} else rest[0]) if len(rest) == 1 or set(rest) == {int, float} else None
    return one and one._replace(optional=type(None) in typing.get_args(hint))
  if hint in (int, float, bool, str):
    return Kind(hint)
  if typing.get_origin(hint) is Literal:
    return Kind(str, words=typing.get_args(hint))
  if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] in (int, float, bool, str):
    return Kind(tuple, item=typing.get_args(hint)[0])
  return None


@functools.cache
def fields(cls: type) -> Mapping[str, tuple[Kind, Any]]:
  """name -> (kind, default) of the fields that a configuration sets; default None where there is none.

  A field that holds another object (RoPE's `scaling`) is no configuration field: an extension sets it. Kept for each class: a study
  of many extensions asks thousands of times.
  """
  hints = typing.get_type_hints(cls)
  found = {}
  for field in dataclasses.fields(cls):
    kind = plain(hints[field.name])
    if kind is not None and field.init:
      default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
      found[field.name] = (kind, None if default is dataclasses.MISSING else default)
  return types.MappingProxyType(found)


def _scalar(path: str, value: Any, base: type) -> Any:
  text, number = isinstance(value, str), isinstance(value, int | float) and not isinstance(value, bool)
  word = value.lower() if isinstance(value, str) else ""
  if base is str and text:
    if word in ("none", "null"):
      raise UserError(f"{path} is a text, and {value!r} would be that word, not the absence of one; give a text, or '' for none")
    return value
  if base is bool and (isinstance(value, bool) or word in ("true", "false")):
    return value if isinstance(value, bool) else word == "true"
  try:
    if base is int and (text or (number and isinstance(value, int))):
      return int(value)
    if base is float and (text or number):
      value = float(value)
      if math.isfinite(value):
        return value
  except (ValueError, OverflowError):
    pass
  form = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}[base]
  raise UserError(f"{path} expects {form}, got {value!r}")


def coerce(path: str, value: Any, kind: Kind) -> Any:
  """`value` (a text from the command line, or a Python value) as a value of `kind`; `path` names the field in errors.

  Raises:
    UserError: for a wrong type, a number that is not finite, a word that is not allowed.
  """
  if value is None or (kind.optional and isinstance(value, str) and value.lower() in ("none", "")):
    if kind.optional:
      return None
    raise UserError(f"{path} needs a value, got {value!r}")
  if kind.base is tuple:
    if isinstance(value, str):
      value = [v.strip().strip("'\"") for v in value.strip().strip("()[]").split(",") if v.strip()]
    if not isinstance(value, list | tuple) or kind.item is None:
      raise UserError(f"{path} expects values separated by commas, got {value!r}")
    return tuple(_scalar(path, v, kind.item) for v in value)
  value = _scalar(path, value, kind.base)
  if kind.words and value not in kind.words:
    raise UserError(unknown(path, value, kind.words))
  return value
