"""From what a command line says to an encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from posx.encodings.base import Encoding


def encoding_of(name: str, fields: Sequence[str], extension: str = "", extension_fields: Sequence[str] = ()) -> Encoding:
  """The encoding of that name with fields 'field=value', under an extension if one is named.

  Raises:
    UserError: for an unknown name or field, a wrong value, or an extension that does not fit.
  """
  from posx import config
  from posx.errors import UserError

  if extension_fields and not extension:
    raise UserError(f"--extension.{extension_fields[0]} is a field of an extension; name one with --extension=NAME")
  made = config.default(name, extension)
  pairs = [("encoding", f) for f in fields] + [("extension", f) for f in extension_fields]
  return config.encoding(config.override(made, [f"{kind}.{field}" for kind, field in pairs]))
