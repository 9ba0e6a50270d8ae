"""JAX that is imported when it is first used, for commands whose answer does not need it.

The modules of the catalogues import JAX, and a listing needs their fields only. Inside `importing()` their `import jax`
binds stand-ins; the first use of any name of one imports the real thing, which then stands in all places.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

_NAMES = ("jax", "jax.numpy", "jax.core", "jaxtyping")


class _Late(types.ModuleType):
  """Stands for a module until one of its names is asked for."""

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__") and name != "__path__":
      raise AttributeError(name)
    _drop()
    return getattr(importlib.import_module(self.__name__), name)


class _Word:
  """Any name of an annotation, with or without a shape."""

  def __class_getitem__(cls, item: Any) -> type:
    return cls


class _Annotations(_Late):
  """jaxtyping: its names stand in annotations, which are not evaluated."""

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"):
      raise AttributeError(name)
    return _Word


def _drop() -> None:
  for name in _NAMES:
    if isinstance(sys.modules.get(name), _Late):
      del sys.modules[name]


@contextlib.contextmanager
def importing() -> Iterator[None]:
  """Inside, JAX is imported only if it is used; does nothing where it is there already."""
  if any(name in sys.modules for name in _NAMES):
    yield
    return
  for name in _NAMES:
    made = (_Annotations if name == "jaxtyping" else _Late)(name)
    # Others ask whether JAX is installed by the spec of what is imported.
    made.__spec__ = importlib.util.find_spec(name) if "." not in name else None
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent:
      setattr(sys.modules[parent], last, made)
  try:
    yield
  finally:
    _drop()
