"""The examples in docstrings run, and every public formula says what it is."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import posx.encodings
import posx.extensions

MODULES = [
  f"{package.__name__}.{module.name}" for package in (posx.encodings, posx.extensions) for module in pkgutil.iter_modules(package.__path__)
] + ["posx.encodings", "posx.extensions", "posx.catalogue"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
  assert doctest.testmod(importlib.import_module(name), raise_on_error=False).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_documented(name):
  module = importlib.import_module(name)
  for attribute, value in vars(module).items():
    if not attribute.startswith("_") and inspect.isroutine(value) and getattr(value, "__module__", "") == name:
      assert value.__doc__, f"{name}.{attribute}"
    if inspect.isclass(value) and value.__module__ == name:
      assert value.__doc__, f"{name}.{attribute}"


@pytest.mark.parametrize("catalogue", [posx.encodings.CATALOGUE, posx.extensions.CATALOGUE], ids=["encodings", "extensions"])
def test_entries_cite_their_source_and_explain_their_fields(catalogue):
  for name, cls in catalogue.items():
    if name not in ("truncate", "interpolate"):
      assert "Reference:" in cls.__doc__, name
    own = [f for f in cls.__annotations__ if f not in ("by_head",) and not str(cls.__annotations__[f]).startswith("ClassVar")]
    for field in own:
      assert f"{field}:" in cls.__doc__ or field in ("factor",) or cls.__name__ == "Encoding", f"{name}.{field}"
