"""Encodings under extensions: which pairs there are, with settings that show the extension in a small model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from posx import extensions
from posx.encodings.base import Dims, Encoding
from posx.errors import UserError
from posx.fields import fields

SAMPLES: dict[str, Any] = {"factor": 2.0, "group": 2, "window": 4}
"""Fields that many extensions have, at values for a model trained on 8 tokens."""


def settings(cls: type, dims: Dims, frequencies: int = 0) -> dict[str, Any]:
  """Fields for an extension that differ from its defaults; one factor for each frequency (0: c / 2) where it asks for a list."""
  known = fields(cls)
  found = {name: value for name, value in SAMPLES.items() if name in known and isinstance(known[name][1], type(value))}
  lists = {name for name, (kind, _) in known.items() if kind.base is tuple and kind.item is float}
  return found | {name: tuple(1.0 + 0.5 * n for n in range(frequencies or dims.head_dim // 2)) for name in lists}


def make(name: str, encoding: Encoding, dims: Dims) -> Encoding:
  """The encoding under the extension of that name, with sample settings, or with its defaults where those do not fit.

  Raises:
    UserError: if it cannot be made from either.
  """
  cls = extensions.CATALOGUE[name]
  frequencies = np.size(encoding.constants(dims, dims.train_length).get("inv_freq", ()))
  try:
    return extensions.apply(extensions.make(name, **settings(cls, dims, frequencies)), encoding)
  except UserError:
    return extensions.apply(extensions.make(name), encoding)


def under(encoding: Encoding, dims: Dims) -> Iterator[tuple[str, Encoding]]:
  """(name, extended encoding) for every extension of the catalogue that has a meaning for the encoding."""
  for name, cls in extensions.CATALOGUE.items():
    if cls.accepts(encoding):
      yield name, make(name, encoding, dims)
