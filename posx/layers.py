"""Layers that differ, as a configuration spells them: `config.model.layers` lists one period, a text for each of its layers.

    rope:window=512            an encoding, and the window of this layer alone
    rope:base=1e6              with a field of the encoding
    nope+log_n                 under an extension
    rope+pi:extension.factor=8 with a field of the extension

A layer called like `config.encoding`, or by no name at all (`:window=512`), has the fields of that section, others have their defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posx.errors import UserError, unknown
from posx.fields import Kind, coerce, fields

if TYPE_CHECKING:
  from posx.encodings.layers import PerLayer


def build(config: Any) -> PerLayer:
  """The encoding of a configuration with `model.layers`, without the extension of the configuration.

  Raises:
    UserError: for a text that cannot be understood, naming it; or layers that do not fit together.
  """
  from posx.encodings.layers import PerLayer

  made = [_layer(config, text) for text in config.model.layers]
  return PerLayer(tuple(encoding for encoding, _ in made), tuple(window for _, window in made))


def _layer(config: Any, text: str) -> tuple[Any, int]:
  """(encoding, window) of one text."""
  from posx import config as configs

  where = f"config.model.layers: {text!r}"
  names, *pairs = text.split(":")
  name, _, extension = names.partition("+")
  name = name or config.encoding.name
  own = dict(config.encoding.to_dict()) if name == config.encoding.name else configs.section("encoding", name).to_dict()
  section = configs.section("extension", extension).to_dict()
  window = 0
  for pair in pairs:
    field, equals, value = pair.partition("=")
    if not equals:
      raise UserError(f"{where}: {pair!r} is no field=value; a layer is spelled NAME+EXTENSION:field=value:..., e.g. rope:window=512")
    if field == "window":
      window = coerce(where, value, Kind(int))
      continue
    kind, short, part = ("extension", field[10:], section) if field.startswith("extension.") else ("encoding", field, own)
    known = fields(configs.class_of(kind, part["name"])) if part["name"] else {}
    if short not in known:
      of = f"field of {kind} {part['name']!r}"
      raise UserError(f"{where}: {unknown(of, short, [*known, 'window'])}")
    part[short] = coerce(where, value, known[short][0])
  encoding = configs.make("encoding", own)
  return configs.extended(encoding, section, name), window
