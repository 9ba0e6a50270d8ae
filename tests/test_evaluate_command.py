"""`python -m experiments.evaluate` on a small trained run: its rows, its answers, its exit codes, what it leaves behind."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from posx import cli, data, decoder
from posx import config as configs
from posx.checkpoint import restore_params
from posx.evaluation import losses as losses_module
from posx.files import read_rows
from posx.study import results

ROOT = Path(__file__).parents[1]

CONFIG = """
from posx import config as configs

def get_config(encoding="rope"):
  config = configs.default(encoding)
  config.model.update(num_layers=2, model_dim=16, num_heads=2, mlp_dim=32)
  config.data.update(name="text", path=__file__.replace("c.py", "*.txt"))
  config.train.update(length=32, batch_size=4, steps=6, warmup_steps=2, checkpoint_every=0, log_every=1)
  config.eval.update(lengths=(32, 64, 128), last_k=16, documents=2, split="train", targets=32)
  return config
"""


def evaluate(*arguments):
  """The command in this process: its exit code, without the start of another interpreter."""
  from experiments import evaluate as command

  with pytest.raises(SystemExit) as ended:
    cli.run(command.main, [str(a) for a in arguments])
  return ended.value.code


@pytest.fixture(scope="module")
def home(tmp_path_factory):
  """A folder with prepared texts and two trained runs, 'rope' and 'learned'; and a cache folder of its own."""
  from experiments import train

  folder = tmp_path_factory.mktemp("home")
  (folder / "c.py").write_text(CONFIG)
  for name in ("one", "two", "three", "four"):
    (folder / f"{name}.txt").write_text(" ".join(f"{name} {n * n}" for n in range(60)))
  (folder / "other").mkdir()
  for name in ("five", "six", "seven"):
    (folder / "other" / f"{name}.txt").write_text(" ".join(f"{n} {name}" for n in range(90)))
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("POSX_CACHE", str(folder / "cache"))
    config = configs.load(folder / "c.py")
    data.prepare(config.data)
    config.data.path = str(folder / "other" / "*.txt")
    data.prepare(config.data)
    for encoding in ("rope", "learned"):
      with pytest.raises(SystemExit) as ended:
        cli.run(train.main, [f"--config={folder}/c.py:{encoding}", f"--workdir={folder}/{encoding}"])
      assert not ended.value.code
    yield folder


@pytest.fixture
def run(home, tmp_path):
  """run(encoding) -> a copy of the trained run without any evaluation."""

  def copy(encoding="rope"):
    return Path(shutil.copytree(home / encoding, tmp_path / encoding))

  return copy


def content(folder):
  return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in sorted(folder.rglob("*")) if p.is_file()}


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


def test_rows(run, capsys):
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


def test_numbers_are_those_of_the_model_applied_by_hand(run):
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


def test_settings_of_the_run_are_cut_to_what_shorter_windows_hold(run, capsys):
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


def test_what_is_there_is_not_computed_again(run, capsys, monkeypatch):
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


def test_losses_of_other_weights_are_not_taken(run, monkeypatch):
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


def test_killed_in_between_it_leaves_whole_files_only(run, monkeypatch):
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


def test_positions_drawn_at_test_time(run, capsys):
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


def test_extensions(run):
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


def test_a_learned_table_beyond_its_rows(run, capsys):
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


def test_another_text(run, home, capsys):
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


# Refusals.


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("--extension=yran",), "unknown extension 'yran'; did you mean 'yarn'?"),
    (
      ("--extension=yarn", "--extension.fcator=4"),
      "unknown config field of extension 'yarn' 'extension.fcator'; did you mean 'extension.factor'?",
    ),
    (("--extension=yarn", "--extension.factor=0.5"), "yarn needs a factor above 1"),
    (("--extension.factor=4",), "extension"),
    (("--extension=truncate",), "truncate extends a learned table of positions, got RoPE"),
    (("--lengths=32,99999",), "has 0 documents of at least 100000 tokens"),
    (("--documents=40",), "and 40 are asked for"),
    (("--lengths=64,x",), "config.eval.lengths"),
    (("--lengths=0,32",), "must be different positive numbers of tokens"),
    (("--last_k=64",), "config.eval.last_k=64 exceeds the shortest window of 32 tokens"),
    (("--stride=64",), "config.eval.stride=64 exceeds the window of 32 tokens"),
    (("--targets=1000",), "eval.targets=1000 exceeds the longest window of 128 tokens"),
    (("--controls=windw",), "unknown config.eval.controls 'windw'; did you mean 'window'?"),
    (("--split=dev",), "has no split 'dev'; it has"),
    (("--data=nowhere/*.txt",), "nowhere/*.txt"),
    (("--step=5",), "has no checkpoint of step 5; it has 6"),
    (("--output=/tmp",), "/tmp is a folder; --output names the file that rows are added to"),
    (("--beyond=ignore",), "invalid choice: 'ignore'"),
    (("--length=64",), "unrecognized arguments: --length=64"),
  ],
)
def test_bad_usage_is_one_line_exit_code_2_and_nothing_is_written(run, arguments, message, capsys):
  workdir = run()
  before = content(workdir)
  assert evaluate(f"--workdir={workdir}", *arguments) == 2
  error = capsys.readouterr().err
  assert message in error and error.startswith("error: ") and error.count("\n") == 1
  assert content(workdir) == before and not (workdir / "losses").exists()


def test_another_text_would_get_other_pieces(run, home, capsys):
  """A trained tokenizer belongs to its text: the same token numbers would stand for other pieces."""
  workdir = run()
  config = json.loads((workdir / "config.json").read_text())
  config["data"].update(tokenizer="sentencepiece", vocab_size=300)
  (workdir / "config.json").write_text(json.dumps(config))
  assert evaluate(f"--workdir={workdir}", f"--data={home}/other/*.txt") == 2
  assert "another text would get pieces of its own" in capsys.readouterr().err


def test_folders_that_are_no_finished_run(home, tmp_path, capsys):
  assert evaluate(f"--workdir={tmp_path}/nowhere") == 2
  assert "nowhere" in (error := capsys.readouterr().err) and error.count("\n") == 1
  assert not (tmp_path / "nowhere").exists()
  shutil.copytree(home / "rope", tmp_path / "started", ignore=shutil.ignore_patterns("checkpoints"))
  assert evaluate(f"--workdir={tmp_path}/started") == 2
  assert "has no checkpoint yet" in (error := capsys.readouterr().err) and error.count("\n") == 1
  assert evaluate("--lengths=32") == 2
  assert "the following arguments are required: --workdir" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_exit_code_3(run, capsys):
  workdir = run()
  for path in (workdir / "checkpoints").rglob("*"):
    if path.is_file() and path.stat().st_size > 1000:
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  assert evaluate(f"--workdir={workdir}") == 3
  assert "cannot be read" in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_the_command_as_a_process(home):
  """Help answers without JAX; a failure is one line on standard error."""
  code = "import sys\nfrom experiments import evaluate\ntry: evaluate.main(['--help'])\n"
  code += "except SystemExit: print(sorted({'jax', 'flax'} & set(sys.modules)))"
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
  assert done.stdout.endswith("[]\n"), done.stderr
  env = {**os.environ, "POSX_CACHE": str(home / "cache"), "JAX_PLATFORMS": "cpu"}
  command = [sys.executable, "-m", "experiments.evaluate", f"--workdir={home}/learned", "--lengths=64"]
  done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
  assert done.returncode == 2 and done.stdout == ""
  assert done.stderr.startswith("error: a learned table of 32 rows") and done.stderr.count("\n") == 1
