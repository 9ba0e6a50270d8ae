"""Published curves: complete, sourced, and never beside another protocol."""

import math

import pytest
from study_rows import PERPLEXITIES, row, table

from posx.errors import UserError
from posx.study import figures, published, series
from posx.study.looks import looks


def curves(rows):
  return series.curves([{**r, series.VARIANT: r["run"], series.LABEL: r["run"]} for r in rows])


def test_every_curve_has_its_source_and_a_number_for_each_length():
  assert len(published.load()) == 8
  for each in published.load():
    assert each.source and each.setup and each.title and each.protocol_as_published and each.train_length > 0
    assert list(each.lengths) == sorted(each.lengths)
    for values in (*each.perplexity.values(), *each.std.values()):
      assert len(values) == len(each.lengths) and all(v is None or v > 0 for v in values)
    assert each.protocol == "" or each.protocol.partition(":")[0] in ("nonoverlapping", "sliding", "last_k")


def test_the_numbers_are_those_of_the_paper():
  (kerple,) = published.choose(["kerple_arxiv"], "nonoverlapping")
  for encoding, perplexities in PERPLEXITIES.items():
    assert kerple.perplexity[encoding][:3] == perplexities


def test_only_the_same_protocol_matches():
  assert {each.name for each in published.matching("sliding:1")} == {"alibi_wikitext103_sliding"}
  assert {each.name for each in published.matching("last_k:256")} == {"dape_arxiv_last256"}
  assert "kerple_arxiv" in {each.name for each in published.matching("nonoverlapping")}
  # What does not say how it was measured stands beside nothing.
  assert published.matching("sliding:256") == published.matching("") == []


def test_other_names_and_protocols_are_refused():
  with pytest.raises(UserError, match=r"unknown published curves 'kerple_arxv'; did you mean 'kerple_arxiv'\?"):
    published.choose(["kerple_arxv"], "nonoverlapping")
  with pytest.raises(UserError, match=r"measured under another protocol \(non-overlapping.*\) than last_k:64; those that match: none"):
    published.choose(["kerple_arxiv"], "last_k:64")


def test_as_curves_they_keep_numbers_errors_and_gaps():
  made = {c.label: c for c in published.curves(published.load())}
  point = made["rope (KERPLE, ArXiv)"].points[16384]
  assert point.perplexity == pytest.approx(85.4) and point.stderr == pytest.approx(7.4 / 85.4)
  assert 15512 not in made["t5 (ALiBi, WikiText-103)"].points


def test_a_figure_shows_them_in_the_colour_of_the_encoding():
  known = published.curves(published.choose(["kerple_arxiv"], "nonoverlapping"))
  own = curves(table())
  axis = figures.perplexity([*own, *known], "title").axes[0]
  line = {each.get_label(): each for each in axis.get_lines()}
  assert line["alibi (KERPLE, ArXiv)"].get_ydata()[0] == pytest.approx(math.exp(math.log(6.12)))
  assert line["alibi (KERPLE, ArXiv)"].get_color() == line["alibi"].get_color()
  styles = [
    (look.colour, str(look.dashes), look.marker) for c, look in zip([*own, *known], looks([*own, *known]), strict=True) if not c.control
  ]
  assert len(set(styles)) == len(styles)


def test_they_take_no_colour_from_curves_of_ones_own():
  own = curves([row(f"mine{i}", 512, 6.0) for i in range(8)])
  known = published.curves(published.choose(["kerple_arxiv"], "nonoverlapping"))
  assert [look.colour for look in looks([*own, *known])][:8] == [look.colour for look in looks(own)]
  assert len({look.colour for look in looks(own)}) == 8
