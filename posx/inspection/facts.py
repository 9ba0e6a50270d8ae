"""Facts that the code of an entry states about itself: where it acts, what it learns, its fields, its source."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from posx.encodings.base import Dims, Encoding
from posx.fields import fields

PLACES = {
  "on_input": "input",
  "on_query_key": "queries and keys",
  "bias": "scores",
  "on_scores": "scores",
  "on_values": "values",
}

# Primes far from every default, so that a size in a shape can be told by its value.
SIZES = {"h": 47, "c": 106, "d": 4982, "L0": 1009}
_DIMS = Dims(num_heads=SIZES["h"], head_dim=SIZES["c"], model_dim=SIZES["d"], train_length=SIZES["L0"])


def places(encoding: Encoding) -> str:
  """Where the encoding acts, in words."""
  return ", ".join(dict.fromkeys(place for hook, place in PLACES.items() if encoding.uses(hook))) or "nowhere"


def size(n: int) -> str:
  """A size by its letter (h heads, c channels of a head, d of the model, L0 trained length), else as a number."""
  return next((letter for letter, value in SIZES.items() if value == n), str(n))


def learned(encoding: Encoding) -> str:
  """Names and shapes of one layer's parameters."""
  import jax

  shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), _DIMS))
  return ", ".join(f"{name} [{' '.join(map(size, x.shape))}]" if x.shape else name for name, x in sorted(shapes.items())) or "nothing"


def spell(value: Any) -> str:
  """A field's value as it is given on a command line."""
  return ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


def settings(cls: type) -> str:
  """The fields with their defaults."""
  return ", ".join(f"`{name}={spell(value)}`" for name, (_, value) in fields(cls).items())


def _documented(cls: type, mark: str = "") -> str:
  """The docstring of the class, or of the nearest one it derives from, that contains the mark."""
  for each in cls.__mro__:
    text = each.__dict__.get("__doc__") or ""
    if text and mark in text:
      return inspect.cleandoc(text)
  return ""


def source(cls: type) -> str:
  """Authors, year and arXiv numbers of the class's Reference section, or of the class it derives from; 'none' without one.

  Raises:
    ValueError: for a Reference section without a year.
  """
  text = " ".join(_documented(cls, "Reference:").partition("Reference:")[2].split())
  if not text:
    return "none"
  year = re.search(r"\b(19|20)\d\d\b", text)
  if year is None:
    raise ValueError(f"{cls.__module__}.{cls.__name__}: its Reference must begin with authors, title, year; got {text!r}")
  who, *others = [name.strip() for name in text[: year.start()].split('"')[0].split(",") if name.strip()]
  papers = dict.fromkeys(re.findall(r"arXiv:(\d+\.\d+)", text))
  links = [f"[{paper}](https://arxiv.org/abs/{paper})" for paper in papers]
  return ", ".join([f"{who}{' et al.' if others else ''} {year[0]}", *links])


def idea(cls: type) -> str:
  """The first sentence of its docstring."""
  return " ".join(_documented(cls).split("\n\n")[0].split())


def formula(cls: type) -> str:
  """What its docstring says before its fields: idea, formula, where it acts."""
  return re.split(r"\n(?:Attributes|Class attributes|Reference|Example):", _documented(cls))[0].strip()


def described(cls: type) -> dict[str, str]:
  """field -> what its docstring says it is."""
  found: dict[str, str] = {}
  for each in cls.__mro__:
    section = re.search(r"\nAttributes:\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(each.__dict__.get("__doc__") or ""), re.DOTALL)
    for name, text in re.findall(r"^  (\w+): (.*?)(?=^  \w+:|\Z)", section[1] if section else "", re.DOTALL | re.MULTILINE):
      found.setdefault(name, " ".join(text.split()))
  return {name: found.get(name, "") for name in fields(cls)}


def lines_of_code(cls: type, module: bool = True) -> int:
  """Lines of its file, or of the class alone, that are neither empty, nor comment, nor docstring."""
  text = inspect.getsource(inspect.getmodule(cls) if module else cls)  # type: ignore[arg-type]
  lines = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.strip().startswith("#")}
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
      said = node.body[0]
      lines -= set(range(said.lineno, (said.end_lineno or said.lineno) + 1))
  return len(lines)


def accepted(cls: Any) -> list[str]:
  """The encodings of the catalogue that the extension has a meaning for."""
  from posx import encodings

  return [name for name in encodings.CATALOGUE if cls.accepts(encodings.make(name))]


def extended(cls: Any) -> str:
  """`accepted` in words.

  Raises:
    ValueError: if there are none.
  """
  from posx import encodings

  fit = accepted(cls)
  left = [name for name in encodings.CATALOGUE if name not in fit]
  if not fit:
    raise ValueError(f"{cls.__name__} extends nothing in the catalogue")
  if len(fit) <= len(left) + 1:
    return ", ".join(fit)
  return "all" + (f" but {', '.join(left)}" if left else "")
