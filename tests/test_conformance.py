"""The page of comparisons is whole and up to date, and what it rests on is right; the peers themselves are not needed."""

import importlib
import math
import re

import numpy as np
import pytest

from conformance import available, definitions, oracles, page
from conformance.rows import Comparison, Result, failures, measure
from posx import encodings, extensions
from posx.errors import UserError

main = importlib.import_module("conformance.__main__")
PAGE = main.PAGE.read_text(encoding="utf-8")
COMPARISONS = [comparison for each in page.PARTS.values() for comparison in each]


# The page.


def test_page_has_every_comparison_and_no_other():
  rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)
  rows = [row for row in rows if not (oracles.TESTS / "oracles" / f"{row[0]}.json").exists()]
  assert rows == [(c.method, c.compared, c.peer) for c in COMPARISONS]


def test_page_speaks_of_every_method():
  compared = {c.method for c in COMPARISONS}
  assert compared | set(page.alone()) == {*encodings.CATALOGUE, *extensions.CATALOGUE}
  assert page.relisted(PAGE) == PAGE, "run python -m conformance --list"
  with pytest.raises(ValueError, match="measure it anew"):
    page.relisted("")


def test_page_was_measured_with_the_pinned_versions():
  pins = dict(line.split("==") for line in (main.PAGE.parents[1] / "constraints.txt").read_text().split())
  measured = dict(item.split(" ") for item in re.findall(r"^Versions: (.*?);", PAGE, re.MULTILINE)[0].split(", "))
  assert set(measured) == set(page.PACKAGES)
  assert {name: version.partition("+")[0] for name, version in measured.items()} == {name: pins[name] for name in page.PACKAGES}


def test_page_counts_the_recorded_numbers():
  assert f"There are {oracles.count(oracles.cases())} arrays in" in PAGE


def test_notes_say_of_which_kind_a_difference_is():
  for c in COMPARISONS:
    assert (c.close is None) == bool(c.note), c
    assert not c.note or c.note.startswith(("definition: ", "precision: ")), c


# What a line rests on.


def row(ours, theirs, exact, **fields):
  return Comparison("rope", "numbers", "someone", lambda: (ours, theirs, exact), **fields)


def test_differences_by_hand():
  assert measure(row([1.0, 2.5], [1.0, 2.0], [1.0, 2.0])) == Result(0.5, 0.0, 0.5)
  assert measure(row([1.0, 5.0], [1.0, 4.0], [0.0, 4.0], relative=True)) == Result(1.0, 1.0, 0.25)
  assert math.isnan(measure(row([1.0], [np.nan], [1.0])).peer)
  with pytest.raises(ValueError, match="shapes"):
    measure(row([1.0], [1.0, 2.0], [1.0]))
  with pytest.raises(ValueError, match="not finite"):
    measure(row([1.0], [1.0], [np.inf]))


@pytest.mark.parametrize(
  ("fields", "result", "said"),
  [
    ({}, Result(1e-3, 0, 1e-3), ["from the definition", "from the peer"]),
    ({}, Result(0, 1e-3, 1e-3), ["from the peer"]),
    ({}, Result(math.nan, 0, math.nan), ["from the definition", "from the peer"]),
    ({"close": None, "apart": 0.1}, Result(0, 0.01, 0.01), ["said to differ"]),
    ({"close": None, "apart": 0.1}, Result(0, math.nan, math.nan), []),
    ({}, Result(1e-6, 1e-6, 2e-6), []),
  ],
)
def test_lines_that_are_not_true(fields, result, said):
  found = failures(row(0, 0, 0, **fields), result)
  assert len(found) == len(said) and all(words in line for words, line in zip(said, found, strict=True))


def test_definitions_by_hand():
  x = np.array([[1.0, 2.0, 3.0, 4.0]])
  half, interleaved = (definitions.rotate(x, np.array([3]), definitions.frequencies(4), layout)[0] for layout in ("half", "interleaved"))
  np.testing.assert_allclose(half, [-1.41335252, 1.87911807, -2.82885748, 4.05819114], atol=1e-7)
  np.testing.assert_allclose(interleaved, [-1.27223251, -1.83886499, 2.8786681, 4.08818664], atol=1e-7)
  yarn = [1, 0.25693506, 0.0625, 0.01383496, 0.0025, 0.00079057, 0.00025, 0.00007906]
  np.testing.assert_allclose(definitions.yarn(16, 1e4, 4.0, 256), yarn, atol=1e-8)
  np.testing.assert_allclose(definitions.dynamic_ntk(64, 1e4, 2.0, 2048, 4096)[1] ** -32, 31082.2367, rtol=1e-6)
  llama3 = definitions.by_turns(128, 5e5, 8.0, 8192, 4.0, 1.0) / definitions.frequencies(128, 5e5)
  np.testing.assert_allclose(llama3[[28, 29, 34, 35]], [1, 0.82816841, 0.19021074, 0.125], atol=1e-8)
  assert definitions.longrope_gain(32.0, 4096) == pytest.approx(1.1902381) and definitions.yarn_gain(4.0) == pytest.approx(1.13862944)
  assert definitions.alibi_slopes(3).tolist() == [0.0625, 0.00390625, 0.25]
  assert [definitions.t5_bucket(-n, True, 32, 128) for n in (15, 16, 31, 63, 90, 127, 128)] == [15, 16, 21, 26, 29, 31, 31]
  assert [definitions.t5_bucket(n, False, 32, 128) for n in (-8, -31, -64, 8)] == [8, 11, 14, 24]


# What it needs.


def test_missing_peers_are_named(monkeypatch):
  monkeypatch.setattr(main, "PEERS", ("numpy", "no_such_peer"))
  with pytest.raises(UserError, match=r"not installed: no-such-peer; run scripts/conformance"):
    main.main(["--check"])


def test_pytorch_for_cuda_is_told_from_one_for_cpus():
  def report(*needs):
    return {"install": [{"metadata": {"name": "torch", "requires_dist": ["filelock", *needs]}}]}

  assert available.cuda({"install": [{"metadata": {"name": "torch"}}]}) == available.cuda(report('nvidia-cublas; extra == "cuda"')) == []
  assert available.cuda(report("nvidia-cublas==13.0", 'triton; sys_platform == "nowhere"')) == ["nvidia-cublas"]


def test_numbers_that_no_test_reads_are_found(monkeypatch):
  case = oracles._load(oracles.TESTS / "conftest.py").Case("a", {}, {}, {"read": np.zeros(2), "ignored": np.zeros(2)})

  def test(oracle):
    for each in oracle("X"):
      np.testing.assert_array_equal(each.arrays["read"], [0, 0])

  monkeypatch.setattr(oracles, "tests", lambda: [("test", lambda oracle: test(oracle))])
  assert oracles.unnoticed({"X": [case]}) == ["X a ignored"]
