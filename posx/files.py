"""Files that survive a crash and several writers: atomic replacement, appended JSON lines."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posx.errors import CorruptError


def write_atomic(path: Path, text: str) -> None:
  """Replaces the file in one step: a reader sees the old text or the new one, also after a crash."""
  temporary = path.with_name(f".{path.name}.{os.getpid()}")
  with open(temporary, "w", encoding="utf-8") as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def read_json(path: Path) -> Any:
  """The content of a JSON file; None if there is none.

  Raises:
    CorruptError: if it is not JSON.
  """
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except ValueError as error:
    raise CorruptError(f"{path} is not JSON ({error}); restore it or start in another workdir") from error


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
  """Appends one JSON line per row; writers in several processes may share the file.

  What a killed writer left of a line is cut off first, so every line of the file is whole. Values must be finite.
  """
  text = "".join(json.dumps(dict(row), allow_nan=False) + "\n" for row in rows).encode()
  with open(path, "a+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    size = file.seek(0, os.SEEK_END)
    whole = _whole(file, size)
    if whole < size:
      file.truncate(whole)
    file.write(text)
    file.flush()
    os.fsync(file.fileno())


def _whole(file: Any, size: int) -> int:
  """Bytes up to and including the last newline."""
  end = size
  while end > 0:
    start = max(0, end - 4096)
    file.seek(start)
    newline = file.read(end - start).rfind(b"\n")
    if newline >= 0:
      return start + newline + 1
    end = start
  return 0


def read_rows(path: Path) -> list[dict[str, Any]]:
  """The rows of a file of `append_rows`; a last line without its newline is still being written and is left out.

  Raises:
    CorruptError: if a whole line is not JSON; names the line.
  """
  if not path.exists():
    return []
  rows = []
  for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
    try:
      rows.append(json.loads(line))
    except ValueError as error:
      raise CorruptError(f"{path} line {number} is not JSON ({error}); delete that line to go on") from error
  return rows
