"""Positional encodings and context extension in JAX.

`import posx` costs next to nothing: everything below is imported when it is first asked for.

    posx.attend, posx.bias_matrix   attention with any encoding at any positions
    posx.Dims, posx.Encoding        the sizes an encoding serves; the base class of all encodings
    posx.encodings                  CATALOGUE, make
    posx.extensions                 CATALOGUE, make, apply
    posx.attention                  the plans behind attend
    posx.config, posx.data, posx.decoder, posx.training, posx.checkpoint, posx.evaluation, posx.study

Encodings, extensions and attention need jax, numpy and jaxtyping alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from posx import attention, checkpoint, config, data, decoder, encodings, errors, evaluation, extensions, study, training
  from posx.attention import attend, bias_matrix
  from posx.encodings.base import Dims, Encoding

__version__ = "0.1.0"

_NAMES = {
  "attend": "posx.attention",
  "bias_matrix": "posx.attention",
  "Dims": "posx.encodings.base",
  "Encoding": "posx.encodings.base",
}

__all__ = [
  "Dims",
  "Encoding",
  "__version__",
  "attend",
  "attention",
  "bias_matrix",
  "checkpoint",
  "config",
  "data",
  "decoder",
  "encodings",
  "errors",
  "evaluation",
  "extensions",
  "study",
  "training",
]


def __getattr__(name: str) -> Any:
  if name in _NAMES:
    value = getattr(importlib.import_module(_NAMES[name]), name)
  elif name in __all__:
    value = importlib.import_module(f"posx.{name}")
  else:
    raise AttributeError(f"module 'posx' has no attribute {name!r}")
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
