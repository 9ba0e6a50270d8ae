"""What other programs read: LaTeX, and pandas with Parquet."""

import builtins
import json

import pytest
from study_rows import buckets, row, table

from posx import study
from posx.errors import UserError
from posx.study import compare, latex, results, series


def curves(rows):
  return series.curves([{**r, series.VARIANT: r["run"], series.LABEL: r["run"]} for r in rows])


def test_latex_has_a_line_for_each_curve_and_the_best_in_bold():
  rows = [r for r in table() if r["length"] < 2048 or r["encoding"] != "rope"] + [row("my_rope", 2048, None)]
  lines = latex.render(curves(rows), ["perplexity & more"], "tab:a").splitlines()
  assert r"  \caption{perplexity \& more.}" in lines and r"  \begin{tabular}{lrrr}" in lines
  assert r"    t5 & \textbf{6.03 $\pm$0.12} & \textbf{5.58 $\pm$0.11} & \textbf{5.21 $\pm$0.10} \\" in lines
  assert r"    \quad {\small window control} & {\small 6.00 $\pm$0.12} & {\small 6.00 $\pm$0.12} & {\small 6.00 $\pm$0.12} \\" in lines
  assert any(line.startswith(r"    my\_rope & ") and line.endswith(r"& nan \\") for line in lines)


def test_latex_escapes_every_special_character():
  assert latex.escape("\\&%$#_{}~^") == (
    r"\textbackslash{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}"
  )  # fmt: skip


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="cannot be written"):
    compare.write_text(tmp_path / "file" / "t.tex", "")


@pytest.fixture
def folder(tmp_path):
  rows = [
    *table(),
    *buckets(),
    row("t5", 512, None, document_losses=[]),
    row("rope", 512, 6.0, seed=1, run="b", document_losses=[1.79] * 16),
  ]
  results.append(tmp_path / results.FILE, rows)
  return tmp_path


def test_a_frame_is_tidy_and_survives_parquet(folder):
  import pandas

  frame = study.load(folder)
  rows = series.read([folder])
  assert len(frame) == len(rows) and {"label", "variant", "loss", "control", "note"} <= set(frame.columns)
  assert not [name for name in frame.columns if name.startswith("_")]
  rope = frame[(frame.run == "rope") & (frame.length == 1024) & (frame.extension == "")]
  assert list(rope.perplexity) == [7.49]
  missing = frame[frame.loss.isna()]
  assert list(missing.note) == ["nan in the logits"]
  frame.to_parquet(folder / "rows.parquet")
  again = pandas.read_parquet(folder / "rows.parquet")
  assert dict(again.dtypes.astype(str)) == dict(frame.dtypes.astype(str))
  assert again.loss.equals(frame.loss) and list(again.bucket.dropna().unique()) == ["0-512", "512-1024", "1024-2048"]
  assert [list(each) for each in again.document_losses.dropna() if len(each)] == [[1.79] * 16]


def test_without_pandas_the_cure_is_named(folder, monkeypatch):
  real = builtins.__import__

  def blocked(name, *args, **kwargs):
    if name == "pandas":
      raise ImportError(name)
    return real(name, *args, **kwargs)

  monkeypatch.setattr(builtins, "__import__", blocked)
  with pytest.raises(UserError, match=r"needs pandas, which is not installed: pip install -e '.\[frames\]'"):
    study.load(folder)


def test_a_frame_needs_a_folder_with_rows(tmp_path):
  with pytest.raises(UserError, match="needs a folder"):
    study.load()
  with pytest.raises(UserError, match="no results in"):
    study.load(tmp_path)


def test_csv_keeps_lists_and_leaves_out_what_is_internal(tmp_path):
  results.write_csv(tmp_path / "rows.csv", [{**row("rope", 512, 6.0, document_losses=[1.5, 2.0]), "_label": "x"}])
  head, line = (tmp_path / "rows.csv").read_text().splitlines()
  assert "_label" not in head and json.loads('"[1.5, 2.0]"') in line
