"""The figures, by what matplotlib's axes hold."""

import itertools

import pytest
from study_rows import buckets, row, table

from posx.study import figures, series


def curves(rows):
  return series.curves([{**r, series.VARIANT: r["run"], "_label": r["run"]} for r in rows])


def lines(axis):
  return [line.get_label() for line in axis.get_lines() if not line.get_label().startswith("_")]


def test_one_line_a_curve_and_the_training_length():
  figure = figures.perplexity(curves(table()), "title")
  trained, extended = figure.axes
  assert lines(trained) == ["alibi", "alibi, window", "alibi, truncate", "t5", "rope"] and lines(extended) == ["rope + yarn"]
  for axis in figure.axes:
    marks = [line for line in axis.get_lines() if line.get_label() == "_train"]
    assert [list(mark.get_xdata()) for mark in marks] == [[512, 512]]
    assert any(text.get_text().strip() == "trained at 512" for text in axis.texts)
    assert axis.get_xscale() == axis.get_yscale() == "log"
  alibi = trained.get_lines()[1]
  assert (
    alibi.get_label() == "alibi"
    and list(alibi.get_xdata()) == [512, 1024, 2048]
    and list(alibi.get_ydata()) == pytest.approx([6.12, 5.82, 5.71])
  )


def test_without_extensions_there_is_one_panel():
  figure = figures.perplexity(curves([r for r in table() if not r["extension"]]), "title")
  assert len(figure.axes) == 1


def test_ticks_are_lengths():
  axis = figures.perplexity(curves(table()), "title").axes[0]
  formatter = axis.xaxis.get_major_formatter()
  assert [formatter(x, 0) for x in axis.xaxis.get_major_locator()()] == ["512", "1K", "2K"]


def test_controls_are_dashed_and_bands_are_one_standard_error():
  axis = figures.perplexity(curves(table()), "title").axes[0]
  control = next(line for line in axis.get_lines() if line.get_label() == "alibi, truncate")
  assert control.is_dashed() and control.get_alpha() < 1
  band = axis.collections[0].get_paths()[0].get_extents()
  assert (band.y0, band.y1) == pytest.approx((5.71 * 0.98, 6.12 * 1.02), rel=1e-3)


def test_a_curve_far_above_leaves_through_the_top_with_its_number():
  rows = [*table(), *(row("sinusoidal", n, p) for n, p in ((512, 6.3), (1024, 221.0), (2048, 6674.0)))]
  axis = figures.perplexity(curves(rows), "title").axes[0]
  assert axis.get_ylim()[1] < 200
  assert [t.get_text() for t in axis.texts if "sinusoidal" in t.get_text()] == ["sinusoidal ↑6,674"]
  assert [t.get_text() for t in axis.texts if "rope" in t.get_text()] == ["rope"]


def test_numbers_that_are_none_are_left_out():
  axis = figures.perplexity(curves([row("rope", 512, 6.0), row("rope", 1024, None), row("rope", 2048, 7.0)]), "title").axes[0]
  assert list(axis.get_lines()[1].get_xdata()) == [512, 2048]


def test_names_at_the_right_follow_the_ends_of_the_curves():
  axis = figures.perplexity(curves(table()), "title").axes[0]
  heights = {t.get_text(): t.get_position()[1] for t in axis.texts if "trained" not in t.get_text()}
  assert sorted(heights, key=heights.get) == ["t5", "alibi", "rope"]
  assert all(b - a >= 0.05 for a, b in itertools.pairwise(sorted(heights.values())))


@pytest.mark.parametrize("wanted", [[0.0] * 12, [1.0] * 12, [0.1, 0.1, 0.5, 0.52, 0.9, 1.0, 1.0]])
def test_spread_names_do_not_overlap(wanted):
  heights = figures.spread(wanted, 0.05)
  assert all(b - a > 0.0499 for a, b in itertools.pairwise(heights)) and heights[0] >= 0 and heights[-1] <= 1


def test_every_curve_of_many_has_a_look_of_its_own():
  rows = [row(f"encoding{i}", 512, 6.0) for i in range(14)]
  rows += [row(f"encoding{i}", 512, 6.0, extension=e) for i in range(3) for e in ("pi", "ntk", "yarn", "dca")]
  made = curves(rows)
  found = figures.looks(made)
  assert len(set(map(str, found))) == len(made) == 26
  plain = {(look.colour, look.marker) for c, look in zip(made, found, strict=True) if not c.extension}
  assert len(plain) == 14
  family = [look.colour for c, look in zip(made, found, strict=True) if c.family == "encoding0"]
  assert len(set(family)) == 1 and len(family) == 5


def test_colours_of_known_encodings_do_not_depend_on_the_company():
  alone, both = curves([row("rope", 512, 6.0)]), curves([row("mine", 512, 6.0), row("alibi", 512, 6.0), row("rope", 512, 6.0)])
  assert figures.looks(alone)[0].colour == figures.looks(both)[2].colour


def test_loss_by_position():
  figure = figures.position(curves(buckets()), "title")
  (axis,) = figure.axes
  assert lines(axis) == ["alibi", "rope"] and axis.get_ylabel() == "bits per byte"
  # log2 of 6.5, 5.5 and 5 at the middles of the buckets.
  assert list(axis.get_lines()[1].get_xdata()) == [256, 768, 1536]
  assert list(axis.get_lines()[1].get_ydata()) == pytest.approx([2.700440, 2.459432, 2.321928], abs=1e-6)
  tokens = figures.position(curves([{**r, "bits_per_byte": None} for r in buckets()]), "title")
  assert tokens.axes[0].get_ylabel() == "bits per token"


def test_files_are_written_and_repeat(tmp_path):
  written = figures.save(figures.perplexity(curves(table()), "title"), tmp_path / "a" / "perplexity")
  assert [path.name for path in written] == ["perplexity.png", "perplexity.svg"]
  assert written[0].read_bytes().startswith(b"\x89PNG") and written[0].stat().st_size > 10_000
  text = written[1].read_text()
  assert "<svg" in text and "trained at 512" in text
  again = figures.save(figures.perplexity(curves(table()), "title"), tmp_path / "b" / "perplexity")
  assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_bands_are_inside_the_axes():
  """Two curves that hardly differ, with an error far larger than their difference."""
  rows = [row(name, n, p, stderr=0.07) for name, p in (("rope", 14.0), ("alibi", 13.8)) for n in (512, 2048)]
  low, high = figures.perplexity(curves(rows), "title").axes[0].get_ylim()
  # 13.8 e^-0.07 and 14 e^0.07
  assert low < 12.867 and high > 15.015
