"""`python -m experiments.evaluate` on a small trained run: its rows, its answers, what it leaves behind."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from posx import config as configs
from posx import data, decoder
from posx.checkpoint import restore_params
from posx.evaluation import losses as losses_module
from posx.files import read_rows
from posx.study import results


def forward(workdir, changes=(), window=None):
  """(apply(tokens) -> float64 losses, tokens [documents, 129]) computed here, from the checkpoint and the text."""
  import jax

  params, config, _ = restore_params(workdir)
  configs.override(config, dict(changes))
  corpus = data.load(config.data, "train")
  tokens, _ = data.segments(corpus, length=128, documents=2)
  model = decoder.from_config(config, corpus.vocab_size).clone(window=window)

  def apply(rows):
    logits = np.asarray(jax.jit(model.apply)(params if "params" in params else {"params": params}, rows[:, :-1]), np.float64)
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, rows[:, 1:, None], -1)[..., 0]

  return apply, tokens


# What it writes.


def test_rows(run, capsys, evaluate):
  workdir = run()
  assert evaluate(f"--workdir={workdir}", "--stride=16") == 0
  said = capsys.readouterr().out
  assert "2 documents, the last 32 tokens of each scored at every length" in said
  rows = read_rows(workdir / results.FILE)
  for row in rows:
    results.validate(row)
  assert len(results.merge(rows)) == len(rows)
  first = rows[0]
  assert (first["run"], first["seed"], first["encoding"], first["extension"], first["factor"]) == ("rope", 0, "rope", "", None)
  assert (first["train_length"], first["data"], first["split"], first["step"]) == (32, "text", "train", 6)
  assert first["params"] == sum(x.size for x in _leaves(restore_params(workdir)[0]))
  measured = {(r["length"], r["control"], r["protocol"], r.get("bucket")) for r in rows}
  whole = {(n, c, p, None) for n in (32, 64, 128) for c in ("", "window", "truncate") for p in ("nonoverlapping", "sliding", "last_k")}
  buckets = {
    (n, c, "bucket", b) for n, each in ((32, ("0-32",)), (64, ("0-64",)), (128, ("0-64", "64-128"))) for b in each for c in ("", "window")
  }
  assert measured == whole | buckets
  for row in rows:
    assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))
    assert row["bits_per_byte"] == pytest.approx(row["loss"] / math.log(2))  # a token is a byte
    assert row["documents"] == 2 and row["stderr"] >= 0
    if row["protocol"] != "bucket":
      assert row["tokens"] == 2 * (16 if row["protocol"] == "last_k" else 32)
      one, other = row["document_losses"]
      assert row["loss"] == pytest.approx((one + other) / 2) and row["stderr"] == pytest.approx(abs(one - other) / 2, abs=1e-9)
  assert evaluate(f"--workdir={workdir}", "--stride=16", "--buckets=32", f"--output={workdir / 'few.jsonl'}") == 0
  few = [r for r in read_rows(workdir / "few.jsonl") if r["protocol"] != "bucket" or r["length"] > 32]
  few = {(r["length"], r["control"], r["protocol"]): r["loss"] for r in few}
  assert few == pytest.approx({(r["length"], r["control"], r["protocol"]): r["loss"] for r in rows if r["protocol"] != "bucket"}, abs=1e-5)
  # the same targets at every length and under every control
  for protocols, count in ((("nonoverlapping", "sliding"), 1), (("last_k",), 1)):
    assert len({r["target_hash"] for r in rows if r["protocol"] in protocols}) == count


def _leaves(tree):
  return [leaf for x in tree.values() for leaf in _leaves(x)] if isinstance(tree, dict) else [tree]


def test_numbers_are_those_of_the_model_applied_by_hand(run, evaluate):
  """Each protocol and control recomputed from the checkpoint, one window at a time."""
  workdir = run()
  assert evaluate(f"--workdir={workdir}", "--stride=16") == 0
  rows = read_rows(workdir / results.FILE)
  apply, tokens = forward(workdir)
  limited, _ = forward(workdir, window=32)

  def find(**fields):
    (row,) = results.select(rows, **fields)
    return row

  def by_target(apply, length, stride):
    """The last 32 targets, each from a window of that length which leaves at least length - stride tokens before it."""
    losses, end = np.zeros((2, 32)), 129
    for last in range(end, end - 32, -stride):
      n = min(stride, last - (end - 32))
      losses[:, last - (end - 32) - n : last - (end - 32)] = apply(tokens[:, last - length - 1 : last])[:, -n:]
    return losses

  # 128 tokens: one window holds all targets. The truncation control never sees more than 32 tokens, nor fewer than 28.
  full, narrow, short = apply(tokens)[:, -32:], limited(tokens)[:, -32:], by_target(apply, 32, 4)
  for protocol, n in (("nonoverlapping", 32), ("sliding", 32), ("last_k", 16)):
    for control, expected in (("", full), ("window", narrow), ("truncate", short)):
      row = find(length=128, control=control, protocol=protocol)
      assert row["loss"] == pytest.approx(expected[:, -n:].mean(), abs=1e-5), (protocol, control)
      assert row["ratio_to_truncation"] == pytest.approx(math.exp(expected[:, -n:].mean() - short[:, -n:].mean()), abs=2e-5)
  # at the trained length there is nothing to forget: every control is the model itself
  for protocol, expected in (("nonoverlapping", by_target(apply, 32, 32)), ("sliding", by_target(apply, 32, 16))):
    for control in ("", "window", "truncate"):
      row = find(length=32, control=control, protocol=protocol)
      assert row["loss"] == pytest.approx(expected.mean(), abs=1e-5) and row["ratio_to_truncation"] == 1
  assert find(length=64, control="", protocol="sliding")["loss"] == pytest.approx(by_target(apply, 64, 16).mean(), abs=1e-5)
  bucket = find(length=128, control="", bucket="64-128")
  assert bucket["loss"] == pytest.approx(apply(tokens)[:, 64:].mean(), abs=1e-5) and bucket["tokens"] == 2 * 64
  assert bucket["stderr"] == pytest.approx(np.std(apply(tokens)[:, 64:].mean(1), ddof=1) / math.sqrt(2), abs=1e-5)


def test_settings_of_the_run_are_cut_to_what_shorter_windows_hold(run, capsys, evaluate):
  """The run's own 32 targets and 16 last tokens, where windows have 8 and 16; what is asked for by name is not cut."""
  workdir = run()
  assert evaluate(f"--workdir={workdir}", "--lengths=8,16", "--controls=none") == 0
  said = capsys.readouterr().out
  assert "eval.targets=32 of the run exceeds these windows: 8 are used\n" in said
  assert "eval.last_k=16 of the run exceeds these windows: 8 are used\n" in said
  rows = results.select(read_rows(workdir / results.FILE), protocol=("nonoverlapping", "last_k"))
  assert [(r["length"], r.get("k"), r["tokens"]) for r in rows] == [(n, k, 2 * 8) for n in (8, 16) for k in (None, 8)]
  assert evaluate(f"--workdir={workdir}", "--lengths=8,16", "--last_k=8", "--targets=32") == 2
  assert "eval.targets=32 exceeds the longest window of 16 tokens" in capsys.readouterr().err


def test_what_is_there_is_not_computed_again(run, capsys, monkeypatch, evaluate, content):
  workdir = run()
  assert evaluate(f"--workdir={workdir}") == 0
  kept = content(workdir / "losses")
  with np.load(next((workdir / "losses").glob("128-*.npz"))) as file:
    assert file["losses"].shape[0] == 2 and file["losses"].shape[2] == 128 and json.loads(str(file["about"]))["step"] == 6

  def never(*args):
    raise AssertionError("computed again")

  monkeypatch.setattr(losses_module, "_run", never)
  capsys.readouterr()
  assert evaluate(f"--workdir={workdir}", f"--output={workdir}/again.jsonl") == 0
  assert "all losses were there already" in capsys.readouterr().out
  assert content(workdir / "losses") == kept
  strip = lambda path: [{n: x for n, x in row.items() if n != "written"} for row in read_rows(path)]
  assert strip(workdir / "again.jsonl") == strip(workdir / results.FILE)


def test_losses_of_other_weights_are_not_taken(run, monkeypatch, evaluate):
  """A run folder that was trained again, to the same step: the losses kept there are of other weights."""
  from posx.evaluation import run as module

  workdir = run()
  assert evaluate(f"--workdir={workdir}", "--lengths=32", "--controls=none") == 0
  restore = module.restore_params

  def retrained(*args):
    params, config, step = restore(*args)
    return {**params, "params": {**params["params"], "embedding": params["params"]["embedding"] + 0.5}} if "params" in params else {
      **params, "embedding": params["embedding"] + 0.5}, config, step  # fmt: skip

  monkeypatch.setattr(module, "restore_params", retrained)
  assert evaluate(f"--workdir={workdir}", "--lengths=32", "--controls=none") == 0
  rows = results.select(read_rows(workdir / results.FILE), protocol="nonoverlapping")
  assert len(rows) == 2 and abs(rows[0]["loss"] - rows[1]["loss"]) > 1e-3


def test_killed_in_between_it_leaves_whole_files_only(run, monkeypatch, evaluate):
  workdir = run()
  real, done = np.savez, []

  def killed(path, **arrays):
    if done:
      Path(path).write_bytes(b"half")
      raise KeyboardInterrupt
    done.append(path)
    real(path, **arrays)

  monkeypatch.setattr(np, "savez", killed)
  assert evaluate(f"--workdir={workdir}") == 75
  assert not (workdir / results.FILE).exists()
  monkeypatch.setattr(np, "savez", real)
  for path in (workdir / "losses").glob("*.npz"):
    if ".tmp" not in path.name:
      with np.load(path) as file:
        assert np.isfinite(file["losses"]).all()
  assert evaluate(f"--workdir={workdir}") == 0
  assert all(r["loss"] for r in read_rows(workdir / results.FILE))


def test_positions_drawn_at_test_time(run, capsys, evaluate):
  """As the run was trained, or consecutive if asked for; a length beyond the range is refused, or noted."""
  workdir = run()
  config = json.loads((workdir / "config.json").read_text())
  config["positions"].update(train="randomized", range=64)
  (workdir / "config.json").write_text(json.dumps(config))
  assert evaluate(f"--workdir={workdir}", "--lengths=32,128") == 2
  assert "128 tokens cannot have different positions of positions.range=64" in capsys.readouterr().err
  assert evaluate(f"--workdir={workdir}", "--lengths=32,128", "--beyond=note", "--controls=window") == 0
  assert "the window control is left out: positions that are randomized leave gaps" in capsys.readouterr().out
  assert evaluate(f"--workdir={workdir}", "--lengths=32", "--controls=none", "--positions=consecutive") == 0
  rows = results.select(read_rows(workdir / results.FILE), protocol="last_k")
  assert [(r["length"], r["control"], r.get("positions"), r["loss"] is None) for r in rows] == [
    (32, "", "randomized", False), (128, "", "randomized", True), (32, "", None, False),
  ]  # fmt: skip
  assert rows[0]["loss"] != rows[2]["loss"] and len(results.merge(rows)) == 3


# Extensions and other texts.


def test_extensions(run, evaluate):
  workdir = run()
  assert evaluate(f"--workdir={workdir}", "--lengths=32,128") == 0
  assert evaluate(f"--workdir={workdir}", "--lengths=32,128", "--extension=yarn", "--extension.factor=4") == 0
  assert evaluate(f"--workdir={workdir}", "--lengths=32,128", "--extension=pi") == 0
  rows = results.select(read_rows(workdir / results.FILE), protocol="nonoverlapping", control="")
  assert [(r["extension"], r["factor"], r["length"]) for r in rows] == [
    ("", None, 32), ("", None, 128), ("yarn", 4.0, 32), ("yarn", 4.0, 128), ("pi", 1.0, 32), ("pi", 4.0, 128),
  ]  # fmt: skip
  apply, tokens = forward(workdir, {"extension.name": "yarn", "extension.factor": 4.0})
  assert rows[3]["loss"] == pytest.approx(apply(tokens)[:, -32:].mean(), abs=1e-5)
  assert rows[4]["loss"] == rows[0]["loss"] != rows[2]["loss"]  # an automatic factor changes nothing at the trained length
  # the ratio compares with the plain model that forgets, for extensions too
  short = results.select(read_rows(workdir / results.FILE), protocol="nonoverlapping", control="truncate", length=128)[0]
  assert rows[3]["ratio_to_truncation"] == pytest.approx(math.exp(rows[3]["loss"] - short["loss"]))
  assert rows[2]["ratio_to_truncation"] == pytest.approx(math.exp(rows[2]["loss"] - rows[0]["loss"]))
  assert {r["control"] for r in read_rows(workdir / results.FILE) if r["extension"]} == {""}


def test_a_learned_table_beyond_its_rows(run, capsys, evaluate, content):
  workdir = run("learned")
  before = content(workdir)
  assert evaluate(f"--workdir={workdir}", "--lengths=32,64") == 2
  error = capsys.readouterr().err
  assert (
    error.startswith("error: a learned table of 32 rows cannot serve 64 positions") and "'truncate'" in error and error.count("\n") == 1
  )
  assert content(workdir) == before and not (workdir / "losses").exists()

  assert evaluate(f"--workdir={workdir}", "--lengths=32,64", "--beyond=note", "--controls=truncate") == 0
  rows = results.select(read_rows(workdir / results.FILE), protocol="nonoverlapping", control="")
  assert rows[0]["loss"] and rows[1]["loss"] is None and "cannot serve 64 positions" in rows[1]["note"]

  for extension in ("truncate", "interpolate"):
    assert evaluate(f"--workdir={workdir}", "--lengths=16,32,64", f"--extension={extension}", "--targets=16") == 0
  rows = read_rows(workdir / results.FILE)
  cut = results.select(rows, extension="truncate", protocol="nonoverlapping")
  squeezed = results.select(rows, extension="interpolate", protocol="nonoverlapping")
  assert [r["length"] for r in cut] == [r["length"] for r in squeezed] == [16, 32, 64]
  # what fits the table is the model itself; beyond it, truncation is its own control
  for row, other in zip(cut[:2], squeezed[:2], strict=True):
    assert row["loss"] == other["loss"] and row["ratio_to_truncation"] == other["ratio_to_truncation"] == 1
  assert cut[2]["ratio_to_truncation"] == 1 and squeezed[2]["ratio_to_truncation"] != 1
  assert squeezed[2]["loss"] != cut[2]["loss"] and cut[2]["factor"] is None and squeezed[2]["factor"] == 2.0


def test_another_text(run, home, capsys, evaluate):
  workdir = run()
  assert evaluate(f"--workdir={workdir}", f"--data={home}/other/*.txt", "--lengths=64", "--documents=1", "--controls=none") == 0
  (row,) = results.select(read_rows(workdir / results.FILE), protocol="nonoverlapping")
  assert row["data"] == "text" and row["ratio_to_truncation"] is None
  assert evaluate(f"--workdir={workdir}", "--lengths=64", "--documents=1", "--controls=none") == 0
  rows = results.select(read_rows(workdir / results.FILE), protocol="nonoverlapping")
  assert rows[0]["target_hash"] != rows[1]["target_hash"] and len(results.merge(rows)) == 2
  capsys.readouterr()
  assert evaluate(f"--workdir={workdir}", "--data=sotu", "--lengths=64") == 2
  assert "data set 'sotu' is not prepared" in capsys.readouterr().err  # and not a complaint about the path of the run's own text
