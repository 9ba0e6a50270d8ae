"""The ranking: ties where a paired test cannot tell, and protocols that contradict each other."""

import math

import pytest
from study_rows import row

from posx.study import ranking, series, table

EACH = [0.0, 0.4, -0.3, 0.2, -0.1, 0.5, -0.4, -0.3]  # what a document adds to the loss; sums to 0
NOISE = [0.02, -0.02, 0.03, -0.03, 0.01, -0.01, 0.02, -0.02]  # sums to 0


def measured(encoding, perplexity, length=2048, noise=0.0, **fields):
  loss = math.log(perplexity)
  losses = [loss + d + noise * n for d, n in zip(EACH, NOISE, strict=True)]
  return row(encoding, length, perplexity, documents=len(EACH), document_losses=losses, **fields)


def curves(rows):
  return series.curves([{**r, series.VARIANT: r["encoding"], "_label": r["encoding"]} for r in rows])


def text(rows, width=120):
  return table.plain(ranking.lines(curves(rows), width)).splitlines()


def test_what_is_told_apart_by_pairs_is_ranked_and_what_is_not_is_tied():
  # Documents differ by far more than the encodings: only pairs tell.
  rows = [measured("rope", 5.5), measured("alibi", 5.0), measured("t5", 5.02, noise=1), measured("nope", 7.0)]
  lines = text(rows)
  assert lines[:2] == ["ranking", "   2K  1. alibi = t5  3. rope  4. nope"]
  assert lines[2] == "= not told apart by a paired t-test over documents, of one seed (5%, Bonferroni at each length)" and len(lines) == 3


def test_controls_do_not_take_part_and_missing_numbers_are_named():
  rows = [measured("rope", 5.5), measured("alibi", 5.0), measured("alibi", 4.0, control="truncate"), row("learned", 2048, None)]
  assert text(rows)[1] == "   2K  1. alibi  2. rope  no number: learned (nan)"


@pytest.mark.parametrize("change", [{"target_hash": "other"}, {"document_losses": None}, {"document_losses": [None] * 8}])
def test_what_cannot_be_tested_says_so(change):
  lines = text([measured("rope", 5.5), {**measured("alibi", 5.0), **change}])
  assert lines[1] == "   2K  1. alibi  2. rope?" and lines[-1].startswith("? not tested: the losses of each document are not known")


def test_perplexity_that_overflows_is_last():
  rows = [measured("rope", 5.5), {**measured("alibi", 5.0), "loss": 900.0, "perplexity": None, "document_losses": [900.0] * 8}]
  assert text(rows)[1] == "   2K  1. rope  2. alibi"


def test_one_curve_is_no_ranking():
  assert ranking.lines(curves([measured("rope", 5.0)])) == []


def test_lines_are_broken_to_the_width():
  lines = text([measured(f"encoding{i}", 5.0 + i) for i in range(9)], width=60)
  assert all(len(line.rstrip()) <= 62 for line in lines[1:-1]) and lines[2].startswith("       ")
  assert " ".join(lines).count("encoding") == 9


def test_opposite_orders_of_two_protocols_are_said():
  one = [measured("alibi", 5.0), measured("t5", 5.5), measured("rope", 6.0)]
  two = [measured(name, p, protocol="last_k", k=64) for name, p in (("alibi", 5.6), ("t5", 5.2), ("rope", 9.0))]
  found = ranking.disagreements({"nonoverlapping": curves(one), "last_k:64": curves(two)})
  assert found == ["at 2K non-overlapping windows has alibi < t5; last 64 tokens of each window the other way round"]


def test_an_opposite_order_that_may_be_chance_is_no_disagreement():
  one = [measured("alibi", 5.0), measured("t5", 5.5)]
  two = [measured("alibi", 5.52, protocol="last_k", k=64), measured("t5", 5.5, protocol="last_k", k=64, noise=1)]
  assert ranking.disagreements({"nonoverlapping": curves(one), "last_k:64": curves(two)}) == []
