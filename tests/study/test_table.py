"""The comparison table against one written by hand."""

import pytest
from study_rows import row, table

from posx.study import series
from posx.study import table as tables

GOLDEN = """\
perplexity, non-overlapping windows; 8,192 targets in 16 documents of sotu (test); trained at 512; ± standard error over documents

perplexity                   512           1K            2K
alibi                6.12 ±0.12    5.82 ±0.12    5.71 ±0.11
  window control     6.00 ±0.12    6.00 ±0.12    6.00 ±0.12
  truncate control   6.00 ±0.12    6.00 ±0.12    6.00 ±0.12
t5                   6.03 ±0.12*   5.58 ±0.11*   5.21 ±0.10*
rope                 6.07 ±0.12    7.49 ±0.15   14.20 ±0.28
  + yarn                       -   6.20 ±0.12    6.50 ±0.13

ratio to truncation    512     1K     2K
alibi                1.020  0.970  0.952
t5                   1.005  0.930  0.868
rope                 1.012  1.248  2.367
  + yarn                 -  1.033  1.083
below 1 the context beyond the training length helps; above 1 it would be better to forget it
* best of its length
"""


def tagged(rows):
  return [{**r, series.VARIANT: r["run"], "_label": r["run"]} for r in rows]


def render(rows, width=120):
  name, chosen = series.choose(tagged(rows))
  return tables.render(chosen, name, series.curves(chosen), width)


def test_golden():
  got = tables.plain(render(table()))
  # Only the width of the label column is the code's to choose.
  squeeze = lambda text: [" ".join(line.split()) for line in text.splitlines()]
  assert squeeze(got) == squeeze(GOLDEN)


def test_columns_are_aligned():
  lines = tables.plain(render(table())).splitlines()
  heads, rows = lines[2], lines[3:9]
  for head in ("1K", "2K"):
    # Cells end in a mark or a space, heads do not.
    end = heads.index(head) + 2
    assert all(line[end - 1 : end].strip(" *0123456789-") == "" and line[end : end + 2].strip() == "" for line in rows)


def test_narrow_terminals_get_blocks_of_columns():
  lines = tables.plain(render(table(), width=52)).splitlines()
  body = lines[2 : lines.index("* best of its length")]
  assert sum(line.startswith("perplexity ") for line in body) == 2
  assert all(len(line) <= 52 for line in body if not line.startswith("below 1"))
  # Six curves, each with a number in both blocks.
  assert sum("±" in line for line in body) == 12


def test_controls_are_dimmed_and_never_best():
  rows = [*table(), row("alibi", 512, 1.5, control="window")]
  lines = render([r for r in rows if not (r["control"] == "window" and r["perplexity"] == 6.0)])
  control = next(line for line in lines if line and "window control" in line[0][0])
  assert {style for _, style in control} == {"dim"} and not any("*" in text for text, _ in control)
  best = [(line[0][0].strip(), text.strip()) for line in lines for text, style in line if style == "bold" and "*" in text]
  assert best == [("t5", "6.03 ±0.12*"), ("t5", "5.58 ±0.11*"), ("t5", "5.21 ±0.10*")]


def test_what_has_no_number_says_why():
  rows = [row("rope", 512, 6.0), row("rope", 1024, None), row("rope", 2048, None, note="refused: the table has 512 rows")]
  rows.append({**row("rope", 4096, 6.0), "loss": 900.0, "perplexity": None})
  text = tables.plain(render(rows))
  (line,) = [line for line in text.splitlines() if line.startswith("rope") and "±" in line]
  assert line.split() == ["rope", "6.00", "±0.12*", "nan", "n/a", "overflow*"]
  assert "rope at 1K: nan in the logits" in text and "rope at 2K: refused: the table has 512 rows" in text


def test_reasons_that_differ_in_a_number_are_one_line():
  rows = [row("learned", n, None, note=f"512 rows cannot serve {n} positions") for n in (1024, 2048)]
  text = tables.plain(render([row("learned", 512, 6.0), *rows]))
  assert "learned at 1K, learned at 2K: 512 rows cannot serve 1024 positions" in text and "serve 2048" not in text


def test_averages_of_seeds_and_unequal_targets_are_said():
  rows = [row("rope", 512, p, run="rope", seed=s, target_hash=h) for s, p, h in ((0, 2.0, "a"), (1, 8.0, "b"))]
  rows.append(row("alibi", 512, 5.0, target_hash="a"))
  text = tables.plain(render(rows))
  assert "± standard error over seeds" in text and "rope 4.00" in " ".join(text.split())
  assert "CAUTION: not all rows score the same targets" in text and "CAUTION: from 1 to 2 seeds" in text


@pytest.mark.parametrize("protocol, words", [("sliding:256", "sliding window, stride 256"), ("last_k:64", "last 64 tokens of each window")])
def test_protocols_are_named_in_words(protocol, words):
  assert tables.describe(protocol) == words


def test_an_extension_without_its_encoding_has_a_full_name():
  text = tables.plain(render([row("t5", 512, 6.0), row("learned", 512, 6.1, extension="truncate")]))
  assert "\nlearned + truncate" in text
