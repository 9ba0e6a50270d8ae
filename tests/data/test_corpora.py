import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from posx import data
from posx.data import corpora, files
from posx.errors import CorruptError, UserError


def run(script, **settings):
  """Starts a Python process that has `data` and `settings`; the cache folder is inherited."""
  head = "import sys, types\nfrom posx import data\nfrom posx.data import corpora, files, store\n"
  head += f"settings = types.SimpleNamespace(**{settings!r})\n"
  return subprocess.Popen([sys.executable, "-c", head + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def texts(settings):
  return {(s, n): c.decode(c.document(i)) for s in files.SPLITS for c in [data.load(settings, s)] for i, n in enumerate(c.names)}


def test_own_files_from_disk_to_tokens(settings, books):
  chosen = settings(path=books)
  data.prepare(chosen)
  got = texts(chosen)
  expected = {path.relative_to(Path(books).parent.parent).as_posix(): path.read_bytes().decode() for path in files.find_files(books)}
  assert {name: text for (_, name), text in got.items()} == expected
  assert sorted({split for split, _ in got}) == ["test", "train", "validation"]


def test_one_file_is_cut_by_position(settings, tmp_path):
  (tmp_path / "one.txt").write_text("abcdefghij" * 20)
  chosen = settings(path=str(tmp_path / "one.txt"))
  data.prepare(chosen)
  got = texts(chosen)
  assert "".join(got[split, f"one.txt[{split}]"] for split in files.SPLITS) == "abcdefghij" * 20


def test_not_prepared_says_the_command(settings, books, cache):
  with pytest.raises(UserError, match=r"'sotu' is not prepared in .*; run: python -m experiments.prepare --name=sotu$"):
    data.load(settings("sotu"), "train")
  chosen = settings(path=books, tokenizer="sentencepiece", vocab_size=400, dir=str(cache / "else"))
  with pytest.raises(
    UserError, match=r"run: python -m experiments.prepare --name=text '--path=.*' --tokenizer=sentencepiece --vocab_size=400 --dir="
  ):
    data.load(chosen, "train")
  assert not cache.exists() or not (cache / "tokens").exists()


def test_load_may_prepare(settings, books):
  assert data.load(settings(path=books), "train", download=True).num_documents == 3


def test_changed_files_are_another_corpus(settings, books):
  chosen = settings(path=books)
  data.prepare(chosen)
  before = {data.load(chosen, s).fingerprint for s in files.SPLITS}
  with open(Path(books).parent.parent / "a.txt", "a") as file:
    file.write("more")
  with pytest.raises(UserError, match="not prepared"):
    data.load(chosen, "train")
  data.prepare(chosen)
  after = {data.load(chosen, s).fingerprint for s in files.SPLITS}
  assert len(before & after) == 2


def test_unknown_split(settings, books):
  data.prepare(settings(path=books))
  with pytest.raises(UserError, match="has no split 'dev'; it has train, validation, test"):
    data.load(settings(path=books), "dev")


def test_sentencepiece_is_trained_on_the_train_split(settings, tmp_path):
  for i in range(4):
    (tmp_path / f"{i}.txt").write_text(f"Text number {i} speaks of ships and the sea. " * 60 + "\n")
  chosen = settings(path=str(tmp_path / "*.txt"), tokenizer="sentencepiece", vocab_size=330)
  data.prepare(chosen)
  corpus = data.load(chosen, "test")
  assert corpus.vocab_size == 330 and corpus.tokens.dtype == np.uint16
  text = (tmp_path / corpus.names[0]).read_text()
  assert corpus.decode(corpus.document(0)) == text
  assert corpus.num_bytes(corpus.document(0)) == len(text)
  assert corpus.num_tokens < len(text) / 2
  other = settings(path=str(tmp_path / "*.txt"))
  data.prepare(other)
  assert data.load(other, "test").vocab_size == 256


def test_damaged_store_is_refused_with_the_command_and_repaired_by_it(settings, books):
  chosen = settings(path=books)
  folder = data.prepare(chosen)
  whole = data.load(chosen, "train").fingerprint
  path = folder / "train" / "tokens.bin"
  path.write_bytes(path.read_bytes()[:-1] + b"\0")
  with pytest.raises(CorruptError, match=r"checksum is .* expected .*; prepare it again: python -m experiments.prepare --name=text"):
    data.load(chosen, "train")
  data.prepare(chosen)
  assert data.load(chosen, "train").fingerprint == whole


def test_damaged_data_set_is_removed_and_made_anew(settings, books, cache):
  chosen = settings(path=books)
  folder = data.prepare(chosen)
  whole = data.load(chosen, "train").fingerprint
  for path in folder.rglob("*"):
    if path.is_file():
      path.unlink()
  for path in (cache / "tfds" / "text").rglob("*.array_record*"):
    path.write_bytes(path.read_bytes()[:-40])
  with pytest.raises(CorruptError, match=r"was damaged and is removed .*; run the same command again"):
    data.prepare(chosen)
  data.prepare(chosen)
  assert data.load(chosen, "train").fingerprint == whole


def test_prepared_data_stays_where_it_is(settings, books):
  folder = data.prepare(settings(path=books))
  before = (folder / "store.json").stat().st_mtime_ns
  assert data.prepare(settings(path=books)) == folder
  assert (folder / "store.json").stat().st_mtime_ns == before


def test_two_processes_prepare_at_once(books, settings):
  slow = (
    "import time\nadd = store.SplitWriter.add\nstore.SplitWriter.add = lambda *a: (time.sleep(0.1), add(*a))\nprint(data.prepare(settings))"
  )
  both = [run(slow, **vars(settings(path=books))) for _ in range(2)]
  done = [process.communicate(timeout=60) for process in both]
  assert [process.returncode for process in both] == [0, 0], done
  assert done[0][0] == done[1][0]
  assert sum("waiting for another process" in err for _, err in done) == 1
  assert data.load(settings(path=books), "train").num_documents == 3
  assert not list(Path(done[0][0].strip()).parent.glob(".*"))


KILLS = {
  "while tokens are written": "add = store.SplitWriter.add\nstore.SplitWriter.add = lambda *a: (add(*a), os.kill(os.getpid(), 9))",
  "before the folder gets its name": "store.publish = lambda *a: os.kill(os.getpid(), 9)",
  "while the data set is written": "files.read_text = lambda *a: os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("moment", KILLS)
def test_killed_preparation_leaves_a_usable_state(moment, settings, books, cache):
  chosen = settings(path=books)
  files.fingerprint(files.find_files(books), cache / "text")  # so that reading starts in the builder
  process = run(f"import os\n{KILLS[moment]}\ndata.prepare(settings)", **vars(chosen))
  process.communicate(timeout=60)
  assert process.returncode == -signal.SIGKILL
  with pytest.raises(UserError, match="is not prepared"):
    data.load(chosen, "train")
  data.prepare(chosen)
  assert data.load(chosen, "train").num_documents == 3
  assert not list((cache / "tokens").glob(".*")) and not list(cache.rglob("incomplete.*"))


def test_failed_preparation_leaves_nothing(settings, tmp_path, cache):
  for name, content in (("a", b"good"), ("b", b"\xff"), ("c", b"good")):
    (tmp_path / f"{name}.txt").write_bytes(content)
  with pytest.raises(UserError, match=r"b\.txt is not UTF-8: byte 0xff at offset 0"):
    data.prepare(settings(path=str(tmp_path / "*.txt")))
  assert not list(cache.rglob("tokens.bin"))


def test_cache_folder_that_cannot_be_made(settings, tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises((UserError, CorruptError), match=r"cannot be written|cannot write"):
    data.prepare(settings("sotu", dir=str(tmp_path / "file" / "cache")))


def test_where_the_cache_is(monkeypatch, tmp_path):
  assert data.cache_folder("/x") == Path("/x")
  assert data.cache_folder() == tmp_path / "cache"
  monkeypatch.delenv("POSX_CACHE")
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  assert data.cache_folder() == tmp_path / "home" / ".cache" / "posx"
  monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
  assert data.cache_folder() == Path("/xdg/posx")


def test_sotu_end_to_end(settings):
  """The default text, opened in a process that imports nothing heavy; sizes from the package's own files."""
  chosen = settings("sotu")
  data.prepare(chosen)
  documents = files.sotu_documents(files.sotu_folder())
  for split in files.SPLITS:
    corpus = data.load(chosen, split)
    assert corpus.offsets.tolist() == np.cumsum([0, *(len(text.encode()) for _, text in documents[split])]).tolist()
    assert list(corpus.names) == [name for name, _ in documents[split]]
  rows, names = data.segments(data.load(chosen, "test"), length=32768, documents=16)
  assert rows.shape == (16, 32769) and names[0] == max(documents["test"], key=lambda d: len(d[1].encode()))[0]
  process = run(
    "import time\nstart = time.perf_counter()\ncorpus = data.load(settings, 'train')\nprint(time.perf_counter() - start)\n"
    "data.batch(corpus, seed=0, step=0, batch_size=2, length=512)\n"
    "print([m for m in ('jax', 'tensorflow', 'tensorflow_datasets', 'sentencepiece', 'pandas', 'sotu') if m in sys.modules])",
    **vars(chosen),
  )
  seconds, modules = process.communicate(timeout=60)[0].split("\n")[:2]
  assert float(seconds) < 0.2
  assert modules == "[]"


def test_preparing_needs_neither_tensorflow_nor_a_network(settings, books):
  script = """
import socket
def refuse(*arguments, **more): raise AssertionError("network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
data.prepare(settings)
print(data.load(settings, "train").num_documents, "tensorflow" in sys.modules)
"""
  process = run(script, **vars(settings(path=books)))
  out, err = process.communicate(timeout=60)
  assert (out, err) == ("3 False\n", "")


def test_lock_is_let_go_when_its_holder_dies(cache):
  holder = run("import time\nlock = corpora._lock(data.cache_folder(), 'x')\nlock.__enter__()\nprint('held', flush=True)\ntime.sleep(60)")
  assert holder.stdout.readline() == "held\n"
  os.kill(holder.pid, signal.SIGKILL)
  holder.wait()
  start = time.monotonic()
  with corpora._lock(cache, "x"):
    assert time.monotonic() - start < 5
