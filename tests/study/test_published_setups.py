"""Configurations of papers: they are what the papers say, and the published numbers stand beside what they measure, and only there."""

import pytest
from study_rows import row

from posx import config as configs
from posx.errors import UserError
from posx.study import cost, report, results, series

ALIBI = "configs/published/alibi.py"
KERPLE = "configs/base512.py"
ROWS = {"alibi_wikitext103_nonoverlapping", "alibi_wikitext103_sliding", "kerple_arxiv", "kerple_github", "kerple_openwebtext2"}


def beside(config, folder):
  """protocol -> names of the published curves that the report has, for rows of what the configuration measures."""
  e = config.eval
  spelled = [{"protocol": "nonoverlapping"}, *([{"protocol": "sliding", "stride": e.stride}] if e.stride else [])]
  spelled += [{"protocol": "last_k", "k": e.last_k}] if e.last_k else []
  rows = [row(config.encoding.name, n, 6.0, train_length=config.train.length, **p) for p in spelled for n in e.lengths]
  folder.mkdir(parents=True)
  results.append(folder / results.FILE, rows)
  (text,) = report.collect(series.read([folder]), "")["texts"]
  return {p["name"]: {each["name"] for each in p["published"]} & ROWS for p in text["protocols"]}


def test_alibi_is_as_large_and_trains_as_long_as_in_the_paper():
  config = configs.load(f"{ALIBI}:alibi")
  assert cost.cost(config).parameters == pytest.approx(247e6, rel=0.01)
  for length in (512, 1024, 1536, 3072):
    train = configs.load(f"{ALIBI}:alibi,{length}").train
    assert train.length == length and train.batch_size * length == 8 * 9216
    # 103,227,021 words of training text
    assert train.steps * train.batch_size * length / 103_227_021 == pytest.approx(205, rel=0.01)


@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal", "rope", "t5"])
def test_each_comes_in_a_size_for_a_cpu(encoding):
  for words in ("", ",sliding"):
    config = configs.load(f"{ALIBI}:{encoding}{words},cpu")
    assert config.encoding.name == encoding and config.train.length == min(config.eval.lengths)
    found = cost.cost(config)
    assert found.train_flops + found.eval_flops < 5 * 60 * 15e9, "five minutes of a core"


def test_published_numbers_stand_beside_the_same_protocol(tmp_path):
  assert beside(configs.load(f"{ALIBI}:alibi"), tmp_path / "whole")["nonoverlapping"] >= {"alibi_wikitext103_nonoverlapping"}
  for size in ("", ",cpu"):
    shown = beside(configs.load(f"{ALIBI}:alibi,sliding{size}"), tmp_path / f"sliding{size}")
    assert shown["sliding:1"] == {"alibi_wikitext103_sliding"} and "alibi_wikitext103_sliding" not in shown["nonoverlapping"]
  assert beside(configs.load(f"{KERPLE}:kerple"), tmp_path / "kerple") == {
    "nonoverlapping": {"alibi_wikitext103_nonoverlapping", "kerple_arxiv", "kerple_github", "kerple_openwebtext2"},
    "last_k:256": set(),
  }


def test_they_do_not_where_it_differs(tmp_path):
  config = configs.load(f"{ALIBI}:alibi,sliding", ["eval.stride=2"])
  assert beside(config, tmp_path / "two")["sliding:2"] == set()


def test_the_lengths_are_those_of_the_tables():
  from posx.study import published

  whole, sliding = (configs.load(f"{ALIBI}:alibi{words}").eval.lengths for words in ("", ",sliding"))
  assert whole == published.choose(["alibi_wikitext103_nonoverlapping"], "nonoverlapping")[0].lengths
  assert sliding == published.choose(["alibi_wikitext103_sliding"], "sliding:1")[0].lengths
  assert configs.load(f"{KERPLE}:kerple").eval.lengths == published.choose(["kerple_arxiv"], "nonoverlapping")[0].lengths


def test_other_words_are_refused():
  with pytest.raises(UserError, match=r"takes ENCODING, then a trained length, 'sliding', 'cpu'; got slidding"):
    configs.load(f"{ALIBI}:alibi,slidding")
