"""Tokens on disk: written once into a folder that appears complete or not at all, opened by mapping it into memory.

<folder>/store.json           what it holds, with sizes and checksums
<folder>/token_bytes.npy      UTF-8 bytes of each token id
<folder>/sentencepiece.model  if that is the tokenizer
<folder>/SPLIT/tokens.bin     token ids of all documents, one after the other, in the smallest integer type that holds them
<folder>/SPLIT/offsets.npy    int64 [documents + 1], where each document starts
<folder>/SPLIT/names.json     names of the documents, if they have any
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posx.data.shuffle import digest
from posx.data.tokenizers import Bytes, SentencePiece, Tokenizer
from posx.errors import CorruptError, UserError

FORMAT = 1
_WHOLE = 32 << 20
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
  """The documents of one split, as tokens.

  Attributes:
    tokens: token ids of all documents, one after the other [n]; an unsigned integer type, often mapped from disk.
    offsets: int64 [documents + 1]; document i is `tokens[offsets[i] : offsets[i + 1]]`, never empty.
    names: one per document.
    tokenizer: what made the tokens and decodes them.
    fingerprint: changes whenever tokens, borders or tokenizer do.
    split: 'train', 'validation', 'test' or what the data set calls it.
    dataset: its name.
  """

  tokens: np.ndarray
  offsets: np.ndarray
  names: Sequence[str]
  tokenizer: Tokenizer
  fingerprint: str
  split: str = "train"
  dataset: str = ""
  sizes: np.ndarray | None = None
  memo: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False)

  @property
  def vocab_size(self) -> int:
    return self.tokenizer.vocab_size

  @property
  def num_documents(self) -> int:
    return len(self.offsets) - 1

  @property
  def num_tokens(self) -> int:
    return int(self.offsets[-1])

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """Tokens of each document, int64."""
    return np.diff(self.offsets)

  def document(self, i: int) -> np.ndarray:
    """Tokens of document i as int32."""
    if not 0 <= i < self.num_documents:
      raise IndexError(f"document {i} of {self.num_documents}")
    return np.asarray(self.tokens[self.offsets[i] : self.offsets[i + 1]], np.int32)

  @functools.cached_property
  def token_bytes(self) -> np.ndarray:
    """How many UTF-8 bytes each token id stands for, int32 [vocab_size]."""
    return self.tokenizer.token_bytes() if self.sizes is None else self.sizes

  def num_bytes(self, tokens: Any) -> int:
    """UTF-8 bytes that these tokens stand for (any shape), the denominator of bits per byte."""
    return int(self.token_bytes[np.asarray(tokens)].sum(dtype=np.int64))

  def encode(self, text: str) -> np.ndarray:
    """Tokens of a text as int32."""
    return self.tokenizer.encode(text).astype(np.int32)

  def decode(self, tokens: Any) -> str:
    """The text of tokens."""
    return self.tokenizer.decode(tokens)


def from_texts(texts: Iterable[str], names: Sequence[str] | None = None, tokenizer: Tokenizer | None = None) -> Corpus:
  """A corpus in memory, one document a text.

  Example:
    >>> corpus = from_texts(["one", "three"])
    >>> corpus.num_documents, corpus.document(1).tolist()
    (2, [116, 104, 114, 101, 101])
  """
  tokenizer = tokenizer or Bytes()
  parts = [tokenizer.encode(text) for text in texts]
  tokens = np.concatenate(parts or [np.zeros(0, np.uint8)])
  offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
  names = names or [str(i) for i in range(len(parts))]
  return Corpus(tokens, offsets, names, tokenizer, digest(hashlib.sha256(tokens.tobytes()).hexdigest(), offsets.tolist()))


class IndexNames(Sequence[str]):
  """'split/0', 'split/1', ... without storing them."""

  def __init__(self, split: str, size: int):
    self._split, self._size = split, size

  def __len__(self) -> int:
    return self._size

  def __getitem__(self, i: Any) -> Any:
    if isinstance(i, slice):
      return [self[j] for j in range(*i.indices(self._size))]
    if not -self._size <= i < self._size:
      raise IndexError(i)
    return f"{self._split}/{i % self._size}"


class SplitWriter:
  """Writes the documents of one split into a folder, one by one, so that memory does not grow with the text."""

  def __init__(self, folder: Path, tokenizer: Tokenizer):
    folder.mkdir(parents=True)
    self._folder, self._tokenizer, self._sizes = folder, tokenizer, tokenizer.token_bytes()
    self._dtype = np.dtype(np.uint8 if tokenizer.vocab_size <= 1 << 8 else np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
    self._file = open(folder / "tokens.bin", "wb")
    self._offsets, self._names = [0], list[str]()
    self._bytes = self._empty = 0

  def add(self, text: str, name: str | None = None) -> None:
    """Appends a document; an empty one is counted and left out."""
    tokens = self._tokenizer.encode(text)
    if not len(tokens):
      self._empty += 1
      return
    size = int(self._sizes[tokens].sum(dtype=np.int64))
    if size != len(text.encode("utf-8")):
      raise UserError(
        f"document {name or len(self._offsets) - 1!r}: its tokens stand for {size} bytes, its text has {len(text.encode('utf-8'))}"
      )
    self._file.write(tokens.astype(self._dtype).tobytes())
    self._offsets.append(self._offsets[-1] + len(tokens))
    self._bytes += size
    if name is not None:
      self._names.append(name)

  def close(self) -> dict[str, Any]:
    """Finishes the files and returns what `store.json` says about the split."""
    self._file.flush()
    os.fsync(self._file.fileno())
    self._file.close()
    offsets = np.asarray(self._offsets, np.int64)
    np.save(self._folder / "offsets.npy", offsets)
    if self._names:
      (self._folder / "names.json").write_text(json.dumps(self._names), encoding="utf-8")
    return {
      "documents": len(offsets) - 1,
      "tokens": int(offsets[-1]),
      "bytes": self._bytes,
      "empty": self._empty,
      "longest": int(np.diff(offsets).max(initial=0)),
      "dtype": self._dtype.name,
      "named": bool(self._names),
      "checksums": {name: checksum(self._folder / name) for name in ("tokens.bin", "offsets.npy")},
    }


def checksum(path: Path) -> str:
  """sha256 of a file; above 32 MiB of its size and 32 blocks of 1 MiB spread from its first byte to its last."""
  size = path.stat().st_size
  found = hashlib.sha256(str(size).encode())
  with open(path, "rb") as file:
    if size <= _WHOLE:
      found.update(file.read())
    else:
      for start in np.linspace(0, size - _BLOCK, _WHOLE // _BLOCK, dtype=np.int64).tolist():
        file.seek(start)
        found.update(file.read(_BLOCK))
  return found.hexdigest()


def finish(folder: Path, tokenizer: Tokenizer, splits: dict[str, dict[str, Any]], **about: Any) -> None:
  """Writes what is common to the splits; the last thing before the folder gets its name."""
  np.save(folder / "token_bytes.npy", tokenizer.token_bytes())
  model = tokenizer.sha256 if isinstance(tokenizer, SentencePiece) else ""
  content = {"format": FORMAT, "vocab_size": tokenizer.vocab_size, "model_sha256": model, "splits": splits, **about}
  with open(folder / "store.json", "w", encoding="utf-8") as file:
    json.dump(content, file, indent=1)
    file.flush()
    os.fsync(file.fileno())


def publish(made: Path, folder: Path) -> None:
  """Gives a finished folder its final name; if another process was first, its folder stays and ours goes."""
  try:
    made.rename(folder)
  except OSError:
    if not (folder / "store.json").exists():
      raise
    shutil.rmtree(made)


def describe(folder: Path) -> dict[str, Any]:
  """The content of `store.json`.

  Raises:
    CorruptError: if it cannot be read or was written by another version.
  """
  try:
    content = json.loads((folder / "store.json").read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise CorruptError(f"prepared data {folder}: store.json cannot be read ({error})") from error
  if content.get("format") != FORMAT:
    raise CorruptError(f"prepared data {folder}: format {content.get('format')}, this version reads {FORMAT}")
  return content


def open_split(folder: Path, split: str) -> Corpus:
  """Maps one split into memory after checking sizes and checksums.

  Raises:
    UserError: if there is no such split; lists those there are.
    CorruptError: if a file is missing, cut or changed.
  """
  content = describe(folder)
  if split not in content["splits"]:
    raise UserError(f"data set {content['dataset']!r} has no split {split!r}; it has {', '.join(content['splits'])}")
  about = content["splits"][split]
  here = folder / split
  for name, expected in about["checksums"].items():
    found = checksum(here / name) if (here / name).is_file() else "no file"
    if found != expected:
      raise CorruptError(f"prepared data {here / name}: checksum is {found}, expected {expected}")
  tokens = np.memmap(here / "tokens.bin", about["dtype"], "r") if about["tokens"] else np.zeros(0, about["dtype"])
  try:
    offsets = np.load(here / "offsets.npy", mmap_mode="r")
    sizes = np.load(folder / "token_bytes.npy")
    names = json.loads((here / "names.json").read_text(encoding="utf-8")) if about["named"] else IndexNames(split, about["documents"])
  except (OSError, ValueError) as error:
    raise CorruptError(f"prepared data {here}: cannot be read ({error})") from error
  if not (
    len(names) == about["documents"] == len(offsets) - 1
    and offsets[-1] == len(tokens) == about["tokens"]
    and len(sizes) == content["vocab_size"]
  ):
    raise CorruptError(f"prepared data {here}: sizes of tokens, offsets and names do not fit each other")
  model = content["model_sha256"]
  tokenizer = SentencePiece(str(folder / "sentencepiece.model"), content["vocab_size"], model) if model else Bytes()
  fingerprint = digest(content["dataset"], split, model, *about["checksums"].values())
  return Corpus(tokens, offsets, names, tokenizer, fingerprint, split, content["dataset"], sizes)
