"""The results table: one JSON line a row, appended atomically, read from many folders, the newest of equal keys wins."""

from __future__ import annotations

import csv
import datetime
import fcntl
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from posx.errors import CorruptError, UserError

Row = dict[str, Any]

FILE = "results.jsonl"
OF_TEXT = ("nonoverlapping", "sliding", "last_k", "bucket")
OF_ANSWERS = ("task", "passkey", "recall")
PROTOCOLS = (*OF_TEXT, *OF_ANSWERS)
"""Losses of a text, from which perplexities come, and of answers that are known; no table holds both."""
CONTROLS = ("", "window", "truncate", "wrong_key")
KEY = (
  *("run", "extension", "factor", "length", "protocol", "stride", "k", "bucket", "depth", "control", "data", "split", "target_hash"),
  "positions",
)
"""What makes two rows the same measurement; of equal keys the newest row counts."""

_TEXT = ("run", "encoding", "extension", "protocol", "control", "data", "split", "target_hash")
_COUNTS = ("train_length", "length", "tokens", "documents")
NUMBERS = ("perplexity", "loss", "bits_per_byte", "stderr", "ratio_to_truncation")
REQUIRED = ("seed", *_TEXT, *_COUNTS, *NUMBERS)


def validate(row: Row) -> None:
  """Raises UserError, naming the field, unless `row` can stand in the table.

  A number that does not exist (nan, infinite, not computable) is None, and then `note` says why.
  """
  missing = [name for name in REQUIRED if name not in row]
  if missing:
    raise UserError(f"a row of results lacks {', '.join(missing)}; every row has {', '.join(REQUIRED)}")
  for name in _TEXT:
    _expect(row, name, isinstance(row[name], str), "a string")
  for name in _COUNTS:
    _expect(row, name, isinstance(row[name], int) and not isinstance(row[name], bool) and row[name] >= 0, "a count")
  for name in NUMBERS:
    value = row[name]
    _expect(row, name, value is None or (isinstance(value, int | float) and math.isfinite(value)), "a finite number, or null")
  _expect(row, "protocol", row["protocol"] in PROTOCOLS, f"one of {', '.join(PROTOCOLS)}")
  _expect(row, "control", row["control"] in CONTROLS, f"one of {', '.join(map(repr, CONTROLS))}")
  if row["protocol"] == "bucket":
    bucket(row)
  if each := row.get("document_losses"):
    _expect(row, "document_losses", isinstance(each, list) and len(each) == row["documents"], f"a list of {row['documents']} losses")
  if row["loss"] is None and not row.get("note"):
    raise UserError(f"row {row['run']} at length {row['length']} has no loss: it needs a field note that says why")


def _expect(row: Row, name: str, holds: bool, what: str) -> None:
  if not holds:
    raise UserError(f"field {name} of a row of results is {row[name]!r}; it must be {what}")


def bucket(row: Row) -> tuple[int, int]:
  """(first position, one past the last) of a 'bucket' row, whose field reads '512-1024' or [512, 1024]."""
  value = row.get("bucket")
  try:
    start, end = value.split("-") if isinstance(value, str) else value  # type: ignore[union-attr, misc]
    return int(start), int(end)
  except (TypeError, ValueError, AttributeError):
    raise UserError(f"field bucket of a row of results is {value!r}; it must be 'start-end', the end exclusive") from None


def key(row: Row) -> tuple[Any, ...]:
  """The identity of a measurement, see `KEY`."""
  return tuple(_hashable(row.get(name)) for name in KEY)


def _hashable(value: Any) -> Any:
  return tuple(value) if isinstance(value, list) else value


def append(path: str | os.PathLike, rows: Sequence[Row]) -> None:
  """Adds rows to the file at `path`, all or none, safe among concurrent writers.

  One `write` on a descriptor in append mode under a lock. A torn last line, left by a writer that was killed, is removed first.

  Raises:
    UserError: if a row is not valid.
    CorruptError: if the disk did not take the rows; the file is then as before.
  """
  if not rows:
    return
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
  rows = [{"written": now, **row} for row in rows]
  for row in rows:
    validate(row)
  data = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
  Path(path).parent.mkdir(parents=True, exist_ok=True)
  descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    size = _repair(descriptor, path)
    try:
      if os.write(descriptor, data) == len(data):
        return
      problem = "the disk is full"
    except OSError as error:
      problem = str(error)
    os.ftruncate(descriptor, size)
    raise CorruptError(f"could not add {len(rows)} rows to {path}: {problem}")
  finally:
    os.close(descriptor)


def _repair(descriptor: int, path: str | os.PathLike) -> int:
  """Drops a torn last line (or ends a whole one) and returns the size of the file."""
  size = os.fstat(descriptor).st_size
  data = os.pread(descriptor, size, 0)
  if not data or (data.endswith(b"\n") and _parse(data[:-1].rpartition(b"\n")[2]) is not None):
    return size
  head, _, last = data.rstrip(b"\n").rpartition(b"\n")
  if _parse(last) is not None:
    os.write(descriptor, b"\n")
    return size + 1
  size = len(head) + 1 if head else 0
  os.ftruncate(descriptor, size)
  _note(f"removed a torn last line of {len(last)} bytes from {path}")
  return size


def _parse(line: bytes) -> Row | None:
  try:
    row = json.loads(line)
  except ValueError:
    return None
  return row if isinstance(row, dict) else None


def _note(text: str) -> None:
  print(f"note: {text}", file=sys.stderr)


def read_file(path: str | os.PathLike, note: Callable[[str], None] = _note) -> list[Row]:
  """All rows of one file in the order of writing; a torn last line is left out with a note.

  Raises:
    CorruptError: naming the line, if any other line is not a row.
  """
  lines = Path(path).read_bytes().rstrip(b"\n").split(b"\n")
  rows = []
  for number, line in enumerate(lines, 1):
    row = _parse(line)
    if row is not None:
      rows.append(row)
    elif number == len(lines):
      if line.strip():
        note(f"left out a torn last line of {path}; the next writer removes it")
    else:
      raise CorruptError(f"{path} line {number} is not a JSON object: remove the line, or the file and evaluate again")
  return rows


def merge(rows: Iterable[Row]) -> list[Row]:
  """One row per key: the newest by `written`, the last of equal times; in the order in which keys first appear."""
  newest: dict[tuple[Any, ...], Row] = {}
  for row in rows:
    old = newest.get(key(row))
    if old is None or row.get("written", "") >= old.get("written", ""):
      newest[key(row)] = row
  # Assignment to a key that is there keeps its place.
  return list(newest.values())


def files(folder: str | os.PathLike) -> list[Path]:
  """The results files of a study or run folder, or the file itself."""
  folder = Path(folder)
  if folder.is_file():
    return [folder]
  return [path for path in (folder / FILE, *sorted(folder.glob(f"runs/*/{FILE}"))) if path.is_file()]


def select(rows: Iterable[Row], **fields: Any) -> list[Row]:
  """The rows whose fields equal the given values; a tuple, list or set allows any of its values.

  Example:
    >>> select([{"length": 512}, {"length": 1024}, {"length": 2048}], length=(512, 2048))
    [{'length': 512}, {'length': 2048}]
  """

  def fits(row: Row) -> bool:
    return all(row.get(n) in v if isinstance(v, tuple | list | set) else row.get(n) == v for n, v in fields.items())

  return [row for row in rows if fits(row)]


def values(rows: Iterable[Row], field: str) -> list[Any]:
  """The distinct values of a field in order of appearance."""
  return list(dict.fromkeys(_hashable(row.get(field)) for row in rows))


def write_csv(path: str | os.PathLike, rows: Sequence[Row]) -> None:
  """The whole table as comma-separated values: required fields first, then all others; null is empty."""
  columns = list(dict.fromkeys([*REQUIRED, *(name for row in rows for name in row if not name.startswith("_"))]))
  Path(path).parent.mkdir(parents=True, exist_ok=True)
  with open(path, "w", newline="") as file:
    writer = csv.DictWriter(file, columns)
    writer.writeheader()
    writer.writerows(
      {name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items() if name in columns} for row in rows
    )
