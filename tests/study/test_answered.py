"""Answers in a study: tables and figures of their own, apart from every table of perplexities."""

from __future__ import annotations

import math

import pytest
from study_rows import row

from posx.study import answered, compare, heat, results, series, table


def task(run, length, exact, accuracy):
  made = row(run, length, 2.0, protocol="task", data="task:copy", documents=64, exact=exact, accuracy=accuracy)
  return {**made, "perplexity": None, "bits_per_byte": None, "ratio_to_truncation": None}


def key(length, depth, loss, control=""):
  made = row("rope", length, 2.0, protocol="passkey", control=control, accuracy=0.5, depth=depth, target_hash=f"{length}{depth}")
  return {**made, "perplexity": None, "loss": loss}


@pytest.fixture
def rows():
  tasks = [task("rope", 64, 1.0, 1.0), task("rope", 128, 0.25, 0.75), task("alibi", 64, 0.5, 0.875), task("alibi", 128, 0.0, 0.5)]
  return [*tasks, *(key(n, d, 2.0 - d, control) for n in (128, 256) for d in (0.0, 0.5) for control in ("", "wrong_key"))]


@pytest.fixture
def folder(rows, tmp_path):
  results.append(tmp_path / results.FILE, [*rows, row("rope", 64, 3.0), row("rope", 128, 4.0)])
  return tmp_path


def test_they_are_in_no_table_of_perplexities(folder):
  rows = series.read([folder])
  assert table.texts(rows) == [("sotu", "test")]
  assert series.protocols(rows) == ["nonoverlapping"]


def test_compare_writes_both(folder, capsys):
  written = {path.name for path in compare.report([folder], folder)}
  assert {"exact-task-copy-test.png", "accuracy-task-copy-test.png", "passkey-rope.png", "perplexity.png"} <= written
  page = (folder / "table.txt").read_text()
  shown = [line.split() for line in page.splitlines()]
  assert ["rope", "100.0%", "25.0%"] in shown and ["alibi", "87.5%", "50.0%"] in shown
  assert capsys.readouterr().out.count("task:copy") >= 2


def test_shares_know_the_error_of_a_proportion(folder):
  curves = answered.shares(results.select(series.read([folder]), protocol="task"), "exact")
  point = next(c for c in curves if c.family == "alibi").points[64]
  # of 64 instances: sqrt(0.5 * 0.5 / 64)
  assert point.loss == 0.5 and point.stderr == pytest.approx(0.0625)


def test_grid_of_depths_and_lengths(rows):
  lengths, depths, values = heat.grid(results.select(rows, protocol="passkey"), "loss")
  assert (lengths, depths, values) == ([128, 256], [0.0, 0.5], [[2.0, 2.0], [1.5, 1.5]])
  assert heat.grid([key(128, 0.0, 1.0), key(256, 0.5, 3.0)], "loss")[2] == [[1.0, None], [None, 3.0]]


def test_tables_of_the_report(rows, tmp_path):
  wrong = [key(128, 0.5, 4.0, "wrong_key") if (r["length"], r["control"], r.get("depth")) == (128, "wrong_key", 0.5) else r for r in rows]
  results.append(tmp_path / results.FILE, wrong)
  exact, accuracy, first, gain = answered.grids(series.read([tmp_path]))
  assert exact["title"].startswith("task:copy (test): answers that are right") and exact["columns"] == ["64", "128"] and exact["share"]
  assert {line["name"]: line["values"] for line in exact["rows"]} == {"rope": [1.0, 0.25], "alibi": [0.5, 0.0]}
  assert {line["name"]: line["values"] for line in accuracy["rows"]} == {"rope": [1.0, 0.75], "alibi": [0.875, 0.5]}
  assert first["title"] == "passkey, rope: the key's tokens that come first" and first["corner"] == "depth of the key"
  assert [line["name"] for line in first["rows"]] == ["0", "0.5"] and first["rows"][0]["values"] == [0.5, 0.5]
  # a loss of 1.5 nats beside 4 with the wrong key
  assert not gain["share"] and gain["rows"][1]["values"] == [pytest.approx(2.5 / math.log(2)), 0.0]
