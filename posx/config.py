"""Experiment configurations: typed sections, overrides from the command line, and every check that can be made before a run.

A configuration file is Python with a function `get_config(arg)` that returns what `default(encoding)` gives, changed:

    def get_config(encoding="rope"):
      config = posx.config.default(encoding)
      config.train.steps = 250
      return config

Sections `model`, `data`, `positions`, `train` and `eval` have the fields of the dataclasses in `posx.sections`; `encoding` and
`extension` have a `name` and the fields of the dataclass of that name in the catalogue.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ml_collections import config_dict

from posx import catalogue
from posx.errors import UserError, unknown
from posx.fields import Kind, coerce, fields
from posx.sections import SECTIONS

if TYPE_CHECKING:
  from posx.encodings.base import Dims, Encoding

if TYPE_CHECKING:
  ConfigDict = Any  # its fields are made at run time
else:
  ConfigDict = config_dict.ConfigDict


KINDS = ("encoding", "extension")


# Fields and their types.


def class_of(kind: str, name: str) -> type:
  """The dataclass of that name in the catalogue of encodings or extensions."""
  return catalogue.find(importlib.import_module(f"posx.{kind}s").CATALOGUE, name)


def _section(cls: type, **first: Any) -> ConfigDict:
  made = config_dict.ConfigDict(first)
  for name, (kind, value) in fields(cls).items():
    made[name] = config_dict.placeholder(kind.base) if value is None else kind.base(value)
  return made.lock()


def section(kind: Literal["encoding", "extension"], name: str) -> ConfigDict:
  """The section of an encoding or extension with its defaults, locked: {name, fields...}; extension '' is none.

  Raises:
    UserError: if the name is unknown; lists the known ones.
  """
  if kind == "extension" and not name:
    return config_dict.ConfigDict({"name": ""}).lock()
  return _section(class_of(kind, name), name=name)


def default(encoding: str = "rope", extension: str = "") -> ConfigDict:
  """A whole configuration with defaults; locked, so that a misspelt field is an error."""
  config = config_dict.ConfigDict({"seed": 0, "encoding": section("encoding", encoding), "extension": section("extension", extension)})
  for name, cls in SECTIONS.items():
    config[name] = _section(cls)
  return config.lock()


def kinds(config: ConfigDict, part: str) -> dict[str, Kind]:
  """field -> kind, for one section of this configuration."""
  if part in SECTIONS:
    return {name: kind for name, (kind, _) in fields(SECTIONS[part]).items()}
  name = config[part].name
  own = fields(class_of(part, name)) if name else {}
  return {"name": Kind(str), **{field: kind for field, (kind, _) in own.items()}}


# Overrides.


def _override(config: ConfigDict, path: str, value: Any) -> None:
  part, _, field = path.partition(".")
  if path == "seed":
    config.seed = coerce("config.seed", value, Kind(int))
  elif part not in (*KINDS, *SECTIONS):
    every = ["seed", *(f"{p}.{f}" for p in (*KINDS, *SECTIONS) for f in kinds(config, p))]
    raise UserError(unknown("config field", path, every, listed=("seed", *(f"{p}.*" for p in (*KINDS, *SECTIONS)))))
  elif not field:
    raise UserError(f"config.{part} is a section; set one of its fields: {', '.join(f'{part}.{f}' for f in kinds(config, part))}")
  elif field not in (known := kinds(config, part)):
    of = f" of {part} {config[part].name!r}" if part in KINDS else ""
    raise UserError(unknown(f"config field{of}", path, [f"{part}.{f}" for f in known]))
  elif field != "name" or part not in KINDS:
    config[part][field] = coerce(f"config.{path}", value, known[field])
  elif value != config[part].name:
    config[part] = section(part, coerce(f"config.{path}", value, Kind(str)))  # type: ignore[arg-type]


def override(config: ConfigDict, overrides: Iterable[str] | Mapping[str, Any]) -> ConfigDict:
  """Sets fields, e.g. ['encoding.base=5e5', 'train.steps=100'] or {'encoding.base': 5e5}; names of sections come first.

  A new `encoding.name` or `extension.name` replaces that section by the defaults of the new name.

  Raises:
    UserError: for an unknown field (lists the known ones), a wrong type, a number that is not finite.
  """
  if isinstance(overrides, Mapping):
    pairs = list(overrides.items())
  else:
    for text in overrides:
      if "=" not in text:
        raise UserError(f"an override is field=value, e.g. train.steps=100; got {text!r}")
    pairs = [tuple(text.split("=", 1)) for text in overrides]
  names = [f"{kind}.name" for kind in KINDS]
  for path, value in sorted(pairs, key=lambda pair: pair[0] not in names):
    _override(config, path, value)
  return config


# Files.


def load(file_arg: str | Path, overrides: Iterable[str] | Mapping[str, Any] = ()) -> ConfigDict:
  """Reads FILE.py or FILE.py:ARG, applies the overrides, checks everything.

  Args:
    file_arg: the file, and after a colon what its `get_config` receives, e.g. 'configs/quickstart.py:rope'.
    overrides: see `override`.

  Returns:
    A locked, fully checked configuration.

  Raises:
    UserError: for anything that is wrong with the file, the argument, an override or the result.
  """
  from posx import tracking  # which imports this module, as does:
  from posx.checks import check_fields

  config = read(file_arg)
  check_fields(config)
  check(override(config, overrides))
  tracking.installed(config.train.track)
  return config.lock()


def check(config: ConfigDict) -> None:
  """Raises UserError, naming the field, if the configuration cannot be run as it stands."""
  from posx import checks  # which imports this module

  checks.check(config)


def read(file_arg: str | Path) -> Any:
  """What `get_config(ARG)` of FILE.py returns, unchecked."""
  text = str(file_arg)
  path, colon, arg = text.partition(".py:")
  path = path + ".py" if colon else text
  if not Path(path).is_file():
    raise UserError(f"config file {path!r} does not exist; give FILE.py or FILE.py:ARG, e.g. configs/quickstart.py:rope")
  try:
    spec = importlib.util.spec_from_file_location("posx_config_file", path)
    if spec is None or spec.loader is None:
      raise UserError(f"config file {path!r} is not a Python file; give FILE.py or FILE.py:ARG")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    get_config = getattr(module, "get_config", None)
    if get_config is None:
      raise UserError(f"config file {path!r} defines no function get_config(arg)")
    try:
      inspect.signature(get_config).bind(*([arg] if colon else []))
    except TypeError as error:
      raise UserError(f"{path}: get_config {'takes no argument' if colon else 'needs an argument: give ' + path + ':ARG'}") from error
    return get_config(arg) if colon else get_config()
  except UserError:
    raise
  except Exception as error:
    raise UserError(f"config file {path!r} failed: {type(error).__name__}: {error}") from error


def to_json(config: ConfigDict) -> str:
  """The resolved configuration as JSON; `from_json` gives an equal one back."""
  return json.dumps(config.to_dict(), indent=2, allow_nan=False)


def from_json(text: str) -> ConfigDict:
  """The configuration that `to_json` wrote.

  Raises:
    UserError: if its fields are not those of this version of posx.
  """
  values = json.loads(text)
  config = default(values["encoding"]["name"], values["extension"]["name"])
  given = {path: value for path, value in flat(values).items() if value is not None}
  lacking = sorted(set(flat(config.to_dict())) - set(flat(values)))
  if lacking:
    raise UserError(f"the saved configuration lacks {', '.join(lacking)}: another version of posx wrote it")
  for path in [p for p, v in flat(values).items() if v is None and p in flat(config.to_dict())]:
    given[path] = None
  return override(config, given)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """field -> value, for nested sections; a field is written 'section.field'."""
  found: dict[str, Any] = {}
  for name, value in values.items():
    found.update(flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value})
  return found


def diff(a: ConfigDict, b: ConfigDict) -> dict[str, tuple[Any, Any]]:
  """field -> (value in a, value in b) where they differ; None for a field that is absent."""
  one, two = flat(a.to_dict()), flat(b.to_dict())
  return {path: (one.get(path), two.get(path)) for path in {**one, **two} if one.get(path) != two.get(path)}


# What a configuration builds.


def dims(config: ConfigDict) -> Dims:
  """The sizes that the encoding serves."""
  from posx.encodings.base import Dims

  model, original = config.model, config.train.original_length or config.train.length
  return Dims(model.num_heads, model.head_dim or model.model_dim // model.num_heads, model.model_dim, original)


def make(kind: Literal["encoding", "extension"], values: Mapping[str, Any]) -> Any:
  """The encoding or extension of a section {name, fields...}.

  Raises:
    UserError: if a field has a value that it refuses.
  """
  try:
    return importlib.import_module(f"posx.{kind}s").make(values["name"], **{n: v for n, v in values.items() if n != "name"})
  except (ValueError, TypeError) as error:
    raise UserError(f"{kind} {values['name']!r}: {error}") from error


def extension(config: ConfigDict) -> Any:
  """The context extension of the configuration, or None."""
  return make("extension", config.extension.to_dict()) if config.extension.name else None


def extended(encoding: Encoding, values: Mapping[str, Any], name: str) -> Encoding:
  """The encoding, called `name`, under the extension of a section; as it is if that has no name.

  Raises:
    UserError: if the extension does not fit the encoding.
  """
  if not values["name"]:
    return encoding
  from posx.extensions import apply

  chosen = make("extension", values)
  try:
    return apply(chosen, encoding)
  except (ValueError, TypeError) as error:
    raise UserError(f"extension {values['name']!r} on encoding {name!r}: {error}") from error


def encoding(config: ConfigDict) -> Encoding:
  """The encoding of the configuration, of each of its layers if they differ, under its extension if it has one.

  Raises:
    UserError: if a field has a value that the encoding refuses, or the extension does not fit the encoding.
  """
  from posx import layers

  plain = layers.build(config) if config.model.layers else make("encoding", config.encoding.to_dict())
  return extended(plain, config.extension.to_dict(), ", ".join(config.model.layers) or config.encoding.name)
