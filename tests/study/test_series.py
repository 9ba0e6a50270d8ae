"""Curves: which rows belong together, how seeds are averaged, what runs are called."""

import json
import math

import pytest
from study_rows import row, table

from posx.errors import UserError
from posx.study import results, series


def curves(tmp_path, rows, settings=None, protocol=""):
  results.append(tmp_path / results.FILE, rows)
  for run, values in (settings or {}).items():
    (tmp_path / "runs" / run).mkdir(parents=True)
    (tmp_path / "runs" / run / "config.json").write_text(json.dumps(values))
  return series.curves(series.choose(series.read([tmp_path]), protocol)[1])


def config(seed=0, **encoding):
  return {"seed": seed, "encoding": {"name": "rope", **encoding}, "eval": {"lengths": [512 + seed]}}


def test_encodings_extensions_controls_in_order(tmp_path):
  labels = [c.label for c in curves(tmp_path, table())]
  assert labels == ["alibi", "alibi, window", "alibi, truncate", "t5", "rope", "rope + yarn"]


def test_seeds_are_averaged_in_loss(tmp_path):
  rows = [row("rope", 512, p, run=f"r{i}", seed=i) for i, p in enumerate((2.0, 8.0, 32.0))]
  (curve,) = curves(tmp_path, rows, {f"r{i}": config(i) for i in range(3)})
  point = curve.points[512]
  # The mean of the losses is log 8; the mean of the perplexities would be 14.
  assert point.perplexity == pytest.approx(8.0) and point.seeds == 3 and curve.label == "rope"
  # log 2, log 8, log 32 have standard deviation 2 log 2.
  assert point.stderr == pytest.approx(2 * math.log(2) / math.sqrt(3))
  assert point.ratio == pytest.approx(8.0 / 6.0)


def test_errors_over_seeds_and_over_documents_are_both_kept(tmp_path):
  losses = {0: [1.0, 2.0] * 8, 1: [2.0, 3.0] * 8}
  rows = [row("rope", 512, math.exp(sum(each) / 16), run=f"r{seed}", seed=seed, document_losses=each) for seed, each in losses.items()]
  (curve,) = curves(tmp_path, rows, {f"r{i}": config(i) for i in range(2)})
  point = curve.points[512]
  assert point.stderr == pytest.approx(0.5)
  # Sixteen documents, 1.5 or 2.5 over both seeds: a standard deviation of 0.5164.
  assert point.over_documents == pytest.approx(0.5164 / 4, rel=0.05) and point.losses == losses


def test_losses_of_other_targets_are_not_taken_together(tmp_path):
  rows = [row("rope", 512, 6.0, run=f"r{i}", seed=i, document_losses=[1.0] * 16, target_hash=str(i)) for i in range(2)]
  (curve,) = curves(tmp_path, rows, {f"r{i}": config(i) for i in range(2)})
  assert curve.points[512].losses == {} and curve.points[512].targets == ""


def test_a_seed_without_a_number_is_not_averaged_away(tmp_path):
  rows = [row("rope", 512, p, run=f"r{i}", seed=i) for i, p in enumerate((2.0, None))]
  (curve,) = curves(tmp_path, rows, {f"r{i}": config(i) for i in range(2)})
  assert curve.points[512].loss is None and curve.points[512].note == "nan in the logits"


def test_runs_that_differ_in_more_than_the_seed_are_kept_apart(tmp_path):
  rows = [row("rope", 512, 2.0 + i, run=f"r{i}", seed=i % 2) for i in range(4)]
  made = curves(tmp_path, rows, {f"r{i}": config(i % 2, base=1e4 if i < 2 else 5e5) for i in range(4)})
  assert [(c.label, c.points[512].seeds) for c in made] == [("rope-base=10000", 2), ("rope-base=500000", 2)]


def test_runs_of_one_seed_are_no_replicas(tmp_path):
  made = curves(tmp_path, [row("rope", 512, 2.0, run="a"), row("rope", 512, 3.0, run="b")], {"a": config(), "b": config()})
  assert [c.points[512].perplexity for c in made] == pytest.approx([2.0, 3.0])


def test_runs_of_unknown_settings_are_kept_apart(tmp_path):
  made = curves(tmp_path, [row("rope", 512, 2.0, run="a", seed=0), row("rope", 512, 3.0, run="b", seed=1)])
  assert [c.label for c in made] == ["a", "b"]


def test_a_factor_that_follows_the_length_is_one_curve_and_a_fixed_one_another(tmp_path):
  rows = [row("rope", n, 6.0 + n / 1e4, extension="yarn", factor=f) for n, f in ((512, 1.0), (1024, 2.0), (2048, 4.0))]
  rows += [row("rope", n, 7.0 + n / 1e4, extension="yarn", factor=4.0) for n in (512, 1024)]
  made = {c.label: list(c.points) for c in curves(tmp_path, rows)}
  assert made == {"rope + yarn": [512, 1024, 2048], "rope + yarn:4": [512, 1024, 2048]}


def test_only_a_fixed_factor(tmp_path):
  rows = [row("rope", n, 6.0, extension="yarn", factor=4.0) for n in (512, 1024, 2048)]
  assert [(c.label, list(c.points)) for c in curves(tmp_path, rows)] == [("rope + yarn:4", [512, 1024, 2048])]


def test_a_factor_follows_from_the_length_of_the_very_first_training(tmp_path):
  """Trained at 512, fine-tuned at 2048: at 4096 the automatic factor is 8."""
  rows = [row("rope", n, 6.0, extension="yarn", factor=n / 512, train_length=2048, original_length=512) for n in (2048, 4096)]
  assert [(c.label, list(c.points)) for c in curves(tmp_path, rows)] == [("rope + yarn", [2048, 4096])]


def test_drawn_positions_are_a_curve_of_their_own(tmp_path):
  rows = [row("rope", 512, 6.0), row("rope", 512, 7.0, positions="randomized")]
  made = curves(tmp_path, rows)
  assert [(c.label, c.points[512].perplexity, c.points[512].seeds) for c in made] == [
    ("rope", pytest.approx(6.0), 1),
    ("rope (randomized positions)", pytest.approx(7.0), 1),
  ]


def test_folders_are_merged(tmp_path):
  for name, encoding in (("one", "rope"), ("two", "alibi")):
    results.append(tmp_path / name / "runs" / encoding / results.FILE, [row(encoding, 512, 6.0)])
  rows = series.read([tmp_path / "one", tmp_path / "two"])
  assert [r["encoding"] for r in rows] == ["rope", "alibi"]


def test_equal_names_of_other_runs_stay_apart(tmp_path):
  for name, base in (("one", 1e4), ("two", 5e5), ("three", 1e4)):
    folder = tmp_path / name / "runs" / "rope"
    results.append(folder / results.FILE, [row("rope", 512, 6.0, written=name)])
    (folder / "config.json").write_text(json.dumps(config(base=base)))
  rows = series.read([tmp_path / name for name in ("one", "two", "three")])
  # One and three are the same run, the newer row counts.
  assert [(r["run"], r["written"]) for r in rows] == [("rope", "three"), ("two/rope", "two")]


def test_the_study_table_and_its_run_folders_are_the_same_rows(tmp_path):
  results.append(tmp_path / results.FILE, [row("rope", 512, 6.0, run="rope-seed=1")])
  results.append(tmp_path / "runs" / "rope-seed=1" / results.FILE, [row("rope", 512, 6.0, run="train")])
  assert len(series.read([tmp_path])) == 1


def test_protocols_are_chosen_by_name_and_number():
  rows = [row("rope", 512, 6.0, protocol="last_k", k=k) for k in (64, 256)]
  rows += [row("rope", 512, 6.0, protocol="sliding", stride=128), row("rope", 512, 6.0, protocol="bucket", bucket="0-512")]
  assert series.protocols(rows) == ["sliding:128", "last_k:64", "last_k:256"]
  assert series.choose(rows)[0] == series.choose(rows, "sliding")[0] == "sliding:128"
  name, chosen = series.choose(rows, "last_k:256")
  assert name == "last_k:256" and [r["k"] for r in chosen] == [256]
  with pytest.raises(UserError, match="several numbers; choose one of last_k:64, last_k:256"):
    series.choose(rows, "last_k")
  for wrong in ("nonoverlapping", "sliding:64", "slidding", "bucket"):
    with pytest.raises(UserError, match=f"no rows of protocol '{wrong}'; present: sliding:128, last_k:64, last_k:256"):
      series.choose(rows, wrong)
  with pytest.raises(UserError, match="only position buckets"):
    series.choose(rows[-1:])


def test_windows_that_do_not_overlap_are_one_protocol_whatever_their_stride(tmp_path):
  rows = [row("rope", n, 6.0, stride=n) for n in (512, 1024)]
  assert [list(c.points) for c in curves(tmp_path, rows, protocol="nonoverlapping")] == [[512, 1024]]


def test_curves_come_in_the_order_of_the_sweep(tmp_path):
  runs = [{"digest": name, "name": name} for name in ("t5", "rope", "alibi")]
  (tmp_path / "sweep.json").write_text(json.dumps({"runs": runs}))
  assert list(dict.fromkeys(c.family for c in curves(tmp_path, table()))) == ["t5", "rope", "alibi"]


def test_at_one_length_a_fixed_factor_is_told_by_the_other_lengths():
  tagged = [{**r, "_variant": "a", "_label": "rope"} for r in (row("rope", n, 6.0, extension="yarn", factor=2.0) for n in (512, 1024))]
  assert [c.label for c in series.curves(tagged[1:])] == ["rope + yarn"]
  assert [c.label for c in series.curves(tagged[1:], tagged)] == ["rope + yarn:2"]


def test_a_study_in_a_folder_called_runs_is_no_run(tmp_path):
  study = tmp_path / "runs" / "quickstart"
  results.append(study / results.FILE, table())
  assert set(results.values(series.read([study]), "run")) == set(results.values(table(), "run"))
