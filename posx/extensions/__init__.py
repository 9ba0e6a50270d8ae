"""The catalogue of context extensions: train once, evaluate the same weights at any length.

`CATALOGUE` maps a name to its class, `make` builds one from a name and fields, `apply` puts it on an encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posx import catalogue

if TYPE_CHECKING:
  from posx.encodings.base import Encoding
  from posx.extensions.base import Extension

CATALOGUE = catalogue.Catalogue(
  "extension",
  __name__,
  {
    "pi": "frequencies:PI",
    "ntk": "frequencies:NTK",
    "dynamic_ntk": "frequencies:DynamicNTK",
    "ntk_by_parts": "by_parts:NTKByParts",
    "yarn": "by_parts:YaRN",
    "dynamic_yarn": "by_parts:DynamicYaRN",
    "longrope": "by_parts:LongRoPE",
    "llama3": "by_parts:Llama3",
    "abf": "frequencies:ABF",
    "proportional": "frequencies:Proportional",
    "truncate": "positions:Truncate",
    "interpolate": "positions:Interpolate",
    "self_extend": "distances:SelfExtend",
    "rerope": "distances:ReRoPE",
    "leaky_rerope": "distances:LeakyReRoPE",
    "dca": "distances:DCA",
    "stretch_buckets": "buckets:StretchBuckets",
    "window": "masks:Window",
    "sinks": "masks:Sinks",
    "lm_infinite": "masks:LMInfinite",
    "log_n": "logits:LogN",
    "ssmax": "logits:SSMax",
    "llama4": "logits:Llama4",
  },
)


def make(name: str, **fields: Any) -> Extension:
  """The extension of that name.

  Args:
    name: a name of `CATALOGUE`, or 'package.module:Class' for an extension that lives outside posx.
    **fields: settings; the others keep their defaults.

  Raises:
    UserError: (a ValueError) for an unknown name or field, a value of the wrong type, nan or infinity, and for settings
      that would change nothing.

  Example:
    >>> make("pi", factor=4.0)
    PI(factor=4.0, original_length=0)
  """
  return catalogue.make(CATALOGUE, name, fields)


def apply(extension: Extension, encoding: Encoding) -> Encoding:
  """The encoding under the extension, with the same parameters; see `posx.extensions.base.apply`.

  Raises:
    UserError: if the extension has no meaning for the encoding, or the encoding is already extended that way.
  """
  from posx.extensions import base

  return base.apply(extension, encoding)


__all__ = ["CATALOGUE", "apply", "make"]
