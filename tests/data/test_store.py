import json

import numpy as np
import pytest

from posx import data
from posx.data import store, tokenizers
from posx.errors import CorruptError, UserError

TEXTS = ["first", "zweite Ü", "third one"]


@pytest.fixture
def folder(tmp_path):
  made = tmp_path / "made"
  writer = store.SplitWriter(made / "train", tokenizers.Bytes())
  for i, text in enumerate([*TEXTS, ""]):
    writer.add(text, f"n{i}")
  store.finish(made, tokenizers.Bytes(), {"train": writer.close()}, dataset="three")
  store.publish(made, tmp_path / "store")
  return tmp_path / "store"


def test_what_was_written_is_read(folder):
  corpus = store.open_split(folder, "train")
  assert [corpus.decode(corpus.document(i)) for i in range(corpus.num_documents)] == TEXTS
  assert list(corpus.names) == ["n0", "n1", "n2"]
  assert corpus.offsets.tolist() == [0, 5, 14, 23]
  assert corpus.vocab_size == 256 and corpus.num_tokens == 23 and corpus.tokens.dtype == np.uint8
  assert (
    store.describe(folder)["splits"]["train"] | {"documents": 3, "tokens": 23, "bytes": 23, "empty": 1, "longest": 9}
    == store.describe(folder)["splits"]["train"]
  )
  with pytest.raises(IndexError, match="document 3 of 3"):
    corpus.document(3)


def test_fingerprint_follows_content_and_borders(tmp_path):
  def fingerprint(texts):
    made = tmp_path / str(texts)
    writer = store.SplitWriter(made / "train", tokenizers.Bytes())
    for text in texts:
      writer.add(text)
    store.finish(made, tokenizers.Bytes(), {"train": writer.close()}, dataset="x")
    return store.open_split(made, "train").fingerprint

  assert len({fingerprint(texts) for texts in (["ab", "c"], ["a", "bc"], ["ab", "d"])}) == 3


def test_documents_without_names_are_numbered(tmp_path):
  writer = store.SplitWriter(tmp_path / "s" / "test", tokenizers.Bytes())
  for text in TEXTS:
    writer.add(text)
  store.finish(tmp_path / "s", tokenizers.Bytes(), {"test": writer.close()}, dataset="x")
  names = store.open_split(tmp_path / "s", "test").names
  assert list(names) == ["test/0", "test/1", "test/2"] and names[-1] == "test/2" and names[1:] == ["test/1", "test/2"]
  with pytest.raises(IndexError):
    names[3]


def flip(path):
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.npy"])
@pytest.mark.parametrize(
  "damage", [flip, lambda p: p.write_bytes(p.read_bytes()[:-1]), lambda p: p.write_bytes(p.read_bytes() + b"x"), lambda p: p.unlink()]
)
def test_damage_is_noticed(folder, name, damage):
  damage(folder / "train" / name)
  with pytest.raises(CorruptError, match=rf"{name}: checksum is .*, expected "):
    store.open_split(folder, "train")


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("store.json", "{", "store.json cannot be read"),
    ("store.json", json.dumps({"format": 99}), "format 99, this version reads 1"),
    ("train/names.json", "[1", "cannot be read"),
    ("train/names.json", '["a"]', "do not fit each other"),
  ],
)
def test_damaged_descriptions(folder, name, content, message):
  (folder / name).write_text(content)
  with pytest.raises(CorruptError, match=message):
    store.open_split(folder, "train")


def test_unknown_split_lists_the_known(folder):
  with pytest.raises(UserError, match="data set 'three' has no split 'dev'; it has train"):
    store.open_split(folder, "dev")


def test_large_files_are_sampled_from_first_to_last_byte(tmp_path, monkeypatch):
  monkeypatch.setattr(store, "_WHOLE", 64)
  monkeypatch.setattr(store, "_BLOCK", 8)
  path = tmp_path / "large"
  content = bytes(range(250)) * 8
  path.write_bytes(content)
  whole = store.checksum(path)
  for changed in (b"x" + content[1:], content[:-1] + b"x", content[:-1], content + b"x"):
    path.write_bytes(changed)
    assert store.checksum(path) != whole
  path.write_bytes(content)
  assert store.checksum(path) == whole


def test_second_writer_keeps_the_first_one_s_folder(folder, tmp_path):
  late = tmp_path / "late"
  writer = store.SplitWriter(late / "train", tokenizers.Bytes())
  writer.add("other")
  store.finish(late, tokenizers.Bytes(), {"train": writer.close()}, dataset="late")
  store.publish(late, folder)
  assert not late.exists()
  assert store.describe(folder)["dataset"] == "three"


def test_tokens_that_lose_text_are_refused(tmp_path):
  class Lossy(tokenizers.Bytes):
    def encode(self, text):
      return super().encode(text)[1:]

  writer = store.SplitWriter(tmp_path / "x", Lossy())
  with pytest.raises(UserError, match="document 'short': its tokens stand for 4 bytes, its text has 5"):
    writer.add("short", "short")


def test_from_texts():
  corpus = data.from_texts(TEXTS)
  assert corpus.document(1).tolist() == list("zweite Ü".encode())
  assert corpus.fingerprint != data.from_texts(["firs", "tzweite Ü", "third one"]).fingerprint
