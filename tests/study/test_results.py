"""The results table: whole or not at all, newest wins, every field checked."""

import csv
import fcntl
import json
import multiprocessing
import os
import threading

import pytest
from study_rows import row, table

from posx.errors import CorruptError, UserError
from posx.study import results


def test_what_is_appended_is_read(tmp_path):
  path = tmp_path / "new" / "results.jsonl"
  results.append(path, table()[:2])
  results.append(path, table()[2:])
  got = results.read_file(path)
  assert [{k: v for k, v in r.items() if k != "written"} for r in got] == table()
  assert all(r["written"] for r in got)


@pytest.mark.parametrize("torn", ['{"run": "rope", "le', '{"run": "rope", "le\n', "\0\0\0\0"])
def test_a_torn_last_line_is_left_out_and_then_removed(tmp_path, capsys, torn):
  path = tmp_path / "results.jsonl"
  results.append(path, table()[:2])
  whole = path.read_bytes()
  path.write_bytes(whole + torn.encode())
  assert len(results.read_file(path)) == 2
  assert "torn last line" in capsys.readouterr().err
  results.append(path, table()[2:3])
  assert path.read_bytes().startswith(whole) and len(path.read_bytes().splitlines()) == 3
  assert "removed a torn last line" in capsys.readouterr().err
  assert len(results.read_file(path)) == 3 and not capsys.readouterr().err


def test_every_cut_of_the_last_line_keeps_the_rows_before(tmp_path, capsys):
  path = tmp_path / "results.jsonl"
  results.append(path, table()[:2])
  first, second = path.read_bytes().splitlines(keepends=True)
  for cut in range(len(second) - 1):
    path.write_bytes(first + second[:cut])
    results.append(path, table()[2:3])
    assert [r["length"] for r in results.read_file(path)] == [512, 2048]


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path):
  path = tmp_path / "results.jsonl"
  results.append(path, table()[:1])
  path.write_bytes(path.read_bytes().rstrip(b"\n"))
  results.append(path, table()[1:2])
  assert [r["length"] for r in results.read_file(path)] == [512, 1024]


def test_a_broken_line_in_the_middle_is_corrupt(tmp_path):
  path = tmp_path / "results.jsonl"
  path.write_text(json.dumps(row("rope", 512, 6.0)) + "\n{oops\n" + json.dumps(row("rope", 1024, 6.0)) + "\n")
  with pytest.raises(CorruptError, match=r"results\.jsonl line 2 is not a JSON object"):
    results.read_file(path)


def test_a_full_disk_leaves_the_table_as_it_was(tmp_path, monkeypatch):
  path = tmp_path / "results.jsonl"
  results.append(path, table()[:1])
  before = path.read_bytes()
  write = os.write
  monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:40]))
  with pytest.raises(CorruptError, match="disk is full"):
    results.append(path, table()[1:3])
  assert path.read_bytes() == before


def _write(path, name):
  for length in range(1, 101):
    results.append(path, [row(name, length, 6.0), row(name, length, 7.0, protocol="sliding")])


def test_writers_at_the_same_time_lose_nothing(tmp_path):
  path = tmp_path / "results.jsonl"
  context = multiprocessing.get_context("spawn")
  workers = [context.Process(target=_write, args=(path, f"run{i}")) for i in range(3)]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join()
    assert worker.exitcode == 0
  got = results.read_file(path)
  assert len(results.merge(got)) == len(got) == 600
  # A call's rows stand together.
  assert all(a["run"] == b["run"] and a["length"] == b["length"] for a, b in zip(got[::2], got[1::2], strict=True))


def test_the_newest_of_equal_keys_wins():
  old, new = row("rope", 512, 6.0, written="2026-01-01"), row("rope", 512, 5.0, written="2026-01-02")
  assert results.merge([new, old]) == results.merge([old, new]) == [new]
  untimed = [row("rope", 512, 6.0), row("rope", 512, 5.0)]
  assert results.merge(untimed) == untimed[1:]


@pytest.mark.parametrize(
  "change",
  [
    {"factor": 8.0},
    {"stride": 64},
    {"k": 32},
    {"bucket": [0, 8]},
    {"control": "window"},
    {"target_hash": "x"},
    {"split": "train"},
    {"data": "text"},
    {"extension": "pi"},
    {"run": "b"},
  ],
)
def test_other_keys_are_other_rows(change):
  rows = [row("rope", 512, 6.0), row("rope", 512, 6.0, **change)]
  assert results.merge(rows) == rows


@pytest.mark.parametrize(
  "change, message",
  [
    ({"protocol": "slide"}, "field protocol .* 'slide'; it must be one of nonoverlapping, sliding, last_k, bucket"),
    ({"control": "none"}, "field control .* it must be one of '', 'window', 'truncate', 'wrong_key'"),
    ({"length": 512.0}, "field length .* it must be a count"),
    ({"tokens": -1}, "field tokens .* it must be a count"),
    ({"loss": float("nan")}, "field loss .* nan; it must be a finite number, or null"),
    ({"perplexity": "12"}, "field perplexity .* finite number"),
    ({"loss": None}, "has no loss: it needs a field note"),
    ({"run": None}, "field run .* it must be a string"),
    ({"protocol": "bucket", "bucket": 3}, "field bucket .* must be 'start-end'"),
    ({"document_losses": [1.0, 2.0]}, "field document_losses .* it must be a list of 16 losses"),
  ],
)
def test_rows_are_checked(tmp_path, change, message):
  with pytest.raises(UserError, match=message):
    results.append(tmp_path / "results.jsonl", [row("rope", 512, 6.0), {**row("rope", 1024, 6.0), **change}])
  assert not (tmp_path / "results.jsonl").exists()


def test_missing_fields_are_named():
  with pytest.raises(UserError, match=r"lacks seed, stderr; every row has seed, run"):
    results.validate({k: v for k, v in row("rope", 512, 6.0).items() if k not in ("seed", "stderr")})


def test_csv_has_all_fields(tmp_path):
  rows = [row("rope", 512, 6.0), row("rope", 1024, None, extra="x")]
  results.write_csv(tmp_path / "a" / "rows.csv", rows)
  with open(tmp_path / "a" / "rows.csv", newline="") as file:
    got = list(csv.DictReader(file))
  assert set(got[0]) == set(rows[1]) and got[0]["perplexity"] == "6.0"
  assert got[1]["perplexity"] == "" and got[1]["extra"] == "x" and got[1]["note"] == "nan in the logits"


def test_a_writer_waits_for_the_one_before(tmp_path):
  path = tmp_path / "results.jsonl"
  results.append(path, table()[:1])
  with open(path) as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    writer = threading.Thread(target=results.append, args=(path, table()[1:2]))
    writer.start()
    writer.join(0.3)
    assert writer.is_alive() and len(results.read_file(path)) == 1
  writer.join(10)
  assert len(results.read_file(path)) == 2
