"""A cache folder of its own for every test, and nothing found outside of it."""

import types

import numpy as np
import pytest

from posx.data import store, tokenizers


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("POSX_CACHE", str(tmp_path / "cache"))
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
  return tmp_path / "cache"


@pytest.fixture
def settings():
  """The data section of a configuration, as any object with these attributes."""

  def make(name="text", **fields):
    defaults = {"path": "", "field": "text", "tokenizer": "bytes", "vocab_size": 0, "packing": "documents", "dir": ""}
    return types.SimpleNamespace(name=name, **{**defaults, **fields})

  return make


@pytest.fixture
def books(tmp_path):
  """Five small files with letters outside ASCII, and the glob that finds them."""
  folder = tmp_path / "books"
  (folder / "deep").mkdir(parents=True)
  for i, name in enumerate(("a", "b", "c", "deep/d", "deep/e")):
    (folder / f"{name}.txt").write_text(f"Über Buch {name}.\r\n\n" + "Zeile und noch eine.\n" * (3 + i), encoding="utf-8", newline="")
  return str(folder / "**" / "*.txt")


@pytest.fixture
def numbered():
  """A corpus whose token at place i is the number i, so that every token of a window says where it comes from."""

  def make(*lengths):
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    return store.Corpus(
      np.arange(offsets[-1], dtype=np.int32), offsets, [str(i) for i in range(len(lengths))], tokenizers.Bytes(), "numbered"
    )

  return make
