"""Data sets of tensorflow-datasets by name, with small ones made here; no network but this machine's own."""

import json
import shutil
import socket
import struct
import time

import numpy as np
import pytest

from posx import data
from posx.data import prepared
from posx.errors import CorruptError, PosxError, UserError

SPLITS = {"train": 45, "test": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """Three data sets as any user of tensorflow-datasets would have them on disk."""
  import tensorflow_datasets as tfds

  class Made(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": ""}  # noqa: RUF012
    FEATURES = {"body": tfds.features.Text(), "pages": tfds.features.Scalar(np.int32)}  # noqa: RUF012
    SPLITS = SPLITS

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(self.FEATURES), disable_shuffling=True)

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(split, n) for split, n in self.SPLITS.items()}

    def _generate_examples(self, split, n):
      for i in range(n):
        yield i, {name: f"{name} of {split} {i}: größer" if name != "pages" else i for name in self.FEATURES}

  class PlainBooks(Made):
    pass

  class TwoTexts(Made):
    FEATURES = {"title": tfds.features.Text(), "body": tfds.features.Text()}  # noqa: RUF012
    SPLITS = {"train": 3, "validation": 1, "test": 1}  # noqa: RUF012

  class OneBook(Made):
    SPLITS = {"train": 1}  # noqa: RUF012

  class Languages(Made):
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ("de", "en")]  # noqa: RUF012

  root = tmp_path_factory.mktemp("made")
  for builder in (PlainBooks, TwoTexts, OneBook):
    builder(data_dir=root, file_format="array_record").download_and_prepare()
  for config in ("de", "en"):
    Languages(data_dir=root, file_format="array_record", config=config).download_and_prepare()
  return root


@pytest.fixture
def root(made, tmp_path):
  shutil.copytree(made, tmp_path / "data")
  return tmp_path / "data"


def documents(corpus):
  return [corpus.decode(corpus.document(i)) for i in range(corpus.num_documents)]


@pytest.mark.parametrize(
  ("text", "parts"),
  [
    ("pg19", ("pg19", "", "")),
    ("wiki40b/en", ("wiki40b", "en", "")),
    ("lm1b:1.1.0", ("lm1b", "", "1.1.0")),
    ("c4/en.noclean:3.1.0", ("c4", "en.noclean", "3.1.0")),
  ],
)
def test_names(text, parts):
  assert prepared.parse(text) == parts


@pytest.mark.parametrize("text", ["", "a b", "a//b", "a:1", "../a"])
def test_no_names(settings, text):
  with pytest.raises(UserError, match="is not a data set; give 'sotu', 'text', or a tfds name"):
    data.load(settings(text), "train")


def test_texts_by_name_and_the_missing_split(settings, root):
  """45 training examples: two of them (a twentieth, rounded) become the missing validation split."""
  chosen = settings("plain_books", field="", dir=str(root))
  data.prepare(chosen)
  train, validation, test = (documents(data.load(chosen, split)) for split in ("train", "validation", "test"))
  assert test == [f"body of test {i}: größer" for i in range(4)]
  every = [f"body of train {i}: größer" for i in range(45)]
  assert len(validation) == 2 and sorted(train + validation) == sorted(every)
  assert train == [text for text in every if text in set(train)]  # stored order
  assert data.load(chosen, "test").names[2] == "test/2"


def test_one_example_is_cut_by_position(settings, root):
  chosen = settings("one_book", field="body", dir=str(root))
  data.prepare(chosen)
  text = "body of train 0: größer"
  assert [documents(data.load(chosen, split)) for split in ("train", "validation", "test")] == [[text[:20]], [text[20:21]], [text[21:]]]


def test_found_in_the_usual_places(settings, root, monkeypatch, cache):
  chosen = settings("plain_books", field="body")
  with pytest.raises(UserError, match="'plain_books' is not prepared in"):
    data.load(chosen, "test")
  monkeypatch.setenv("TFDS_DATA_DIR", str(root))
  data.prepare(chosen)
  assert data.load(chosen, "test").num_documents == 4
  monkeypatch.delenv("TFDS_DATA_DIR")
  shutil.copytree(root / "plain_books", cache / "tfds" / "plain_books")
  assert data.load(chosen, "test").num_documents == 4


@pytest.mark.parametrize(
  ("name", "field", "message"),
  [
    ("plain_books", "text", r"plain_books/1.0.0 has no text feature 'text'; give data.field, one of: body \(all: body, pages\)"),
    ("plain_books", "pages", "has no text feature 'pages'"),
    ("two_texts", "", r"two_texts/1.0.0 has 2 text features; give data.field, one of: body, title"),
  ],
)
def test_field(settings, root, name, field, message):
  with pytest.raises(UserError, match=message):
    data.prepare(settings(name, field=field, dir=str(root)))


def test_field_by_name(settings, root):
  chosen = settings("two_texts", field="title", dir=str(root))
  data.prepare(chosen)
  assert documents(data.load(chosen, "validation")) == ["title of validation 0: größer"]


def test_configurations_and_versions(settings, root):
  chosen = settings("languages/en", field="body", dir=str(root))
  data.prepare(chosen)
  assert data.load(chosen, "test").num_documents == 4
  default = prepared.find(prepared.parse("languages"), [root])
  assert default == root / "languages" / "de" / "1.0.0"  # what the data set itself calls its default
  shutil.rmtree(root / "languages" / ".config")
  with pytest.raises(UserError, match="several configurations of languages are prepared; name one: languages/de, languages/en"):
    data.load(settings("languages", dir=str(root)), "test")
  for version in ("1.0.10", "1.0.9"):
    shutil.copytree(root / "languages" / "en" / "1.0.0", root / "languages" / "en" / version)
  assert prepared.find(prepared.parse("languages/en"), [root]).name == "1.0.10"
  assert prepared.find(prepared.parse("languages/en:1.0.9"), [root]).name == "1.0.9"
  assert prepared.find(prepared.parse("languages/en:2.0.0"), [root]) is None


def test_known_names(root):
  assert prepared.known([root]) == ["languages/de", "languages/en", "one_book", "plain_books", "two_texts"]


def test_tfrecord_files_are_read_without_tensorflow(settings, root):
  """The same examples as TFRecord, written here from the format's definition."""
  from array_record.python.array_record_module import ArrayRecordReader

  folder = root / "plain_books" / "1.0.0"
  for path in list(folder.glob("*.array_record*")):
    reader = ArrayRecordReader(str(path))
    records = [reader.read([i])[0] for i in range(reader.num_records())]
    target = folder / path.name.replace("array_record", "tfrecord")
    target.write_bytes(b"".join(struct.pack("<QI", len(record), 0) + record + struct.pack("<I", 0) for record in records))
    path.unlink()
  info = json.loads((folder / "dataset_info.json").read_text())
  (folder / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "tfrecord"}))
  chosen = settings("plain_books", field="body", dir=str(root))
  data.prepare(chosen)
  assert documents(data.load(chosen, "test")) == [f"body of test {i}: größer" for i in range(4)]
  assert data.load(chosen, "train").num_documents == 43

  (folder / "extra.json").write_text("")
  (folder / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "tfrecord", "description": "again"}))
  target.write_bytes(target.read_bytes()[:-1])
  with pytest.raises(CorruptError, match="ends in the middle of a record"):
    data.prepare(chosen)


def test_incomplete_description(settings, root):
  (root / "plain_books" / "1.0.0" / "features.json").unlink()
  with pytest.raises(CorruptError, match=r"features\.json cannot be read"):
    data.load(settings("plain_books", dir=str(root)), "test")


def test_not_prepared_says_the_command_at_once(settings):
  start = time.monotonic()
  with pytest.raises(UserError, match=r"'lm1b' is not prepared in .*; run: python -m experiments.prepare --name=lm1b --download$"):
    data.load(settings("lm1b"), "train")
  assert time.monotonic() - start < 5


@pytest.mark.parametrize(
  ("name", "hint"),
  [
    ("tiny-shakespear", "did you mean 'tiny_shakespeare'"),
    ("sotus", "did you mean 'sotu'"),
    ("wiki40", "'wiki40b'"),
    ("qqq", "known: sotu, text"),
  ],
)
def test_unknown_data_set(settings, name, hint):
  with pytest.raises(UserError, match=f"unknown data set '{name}'.*{hint}"):
    data.load(settings(name), "train")


# The network.


@pytest.fixture
def remote():
  """Makes a data set that wants a file from an address."""
  import tensorflow_datasets as tfds

  def make(url):
    class RemoteText(tfds.core.GeneratorBasedBuilder, skip_registration=True):
      name = "remote_text"
      VERSION = tfds.core.Version("1.0.0")

      def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

      def _split_generators(self, dl_manager):
        path = dl_manager.download(url)
        return {"train": iter([(0, {"text": path.read_text()})])}

      def _generate_examples(self):
        return iter(())

    return RemoteText

  return make


def attempt(monkeypatch, cls, settings):
  import tensorflow_datasets as tfds

  monkeypatch.setattr(tfds, "builder", lambda name, **arguments: cls(**arguments))
  start = time.monotonic()
  with pytest.raises(PosxError) as caught:
    data.prepare(settings("remote_text"), download=True)
  return caught.value, time.monotonic() - start


def test_nobody_answers(monkeypatch, settings, remote, cache):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  error, seconds = attempt(monkeypatch, remote(f"http://127.0.0.1:{port}/a.txt"), settings)
  assert "'remote_text' could not be downloaded, the network did not answer" in str(error) and "\n" not in str(error)
  assert error.exit_code == 1 and seconds < 10
  assert not list(cache.rglob("tokens.bin"))


def test_somebody_listens_and_never_answers(monkeypatch, settings, remote):
  monkeypatch.setattr(prepared, "_READ_SECONDS", 0.3)
  with socket.socket() as silent:
    silent.bind(("127.0.0.1", 0))
    silent.listen()
    error, seconds = attempt(monkeypatch, remote(f"http://127.0.0.1:{silent.getsockname()[1]}/a.txt"), settings)
  assert "the network did not answer" in str(error) and seconds < 10


def test_a_builder_that_needs_tensorflow(monkeypatch, settings):
  def broken(name, **arguments):
    raise ImportError("No module named 'tensorflow'", name="tensorflow")

  import tensorflow_datasets as tfds

  monkeypatch.setattr(tfds, "builder", broken)
  with pytest.raises(UserError, match="its tfds builder needs tensorflow, which is not installed; install it to prepare, or prepare"):
    data.prepare(settings("pg19"), download=True)
