"""`python -m experiments.search` on a small trained run: what it finds, what it keeps, what it refuses."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from posx import cli
from posx.evaluation import losses as losses_module
from posx.evaluation import search as module
from posx.files import read_rows

SHORT = ("--factor=4", "--split=train", "--population=4", "--rounds=2", "--documents=2")


def command(name, *arguments):
  """The command in this process: its exit code."""
  main = __import__(f"experiments.{name}", fromlist=["main"]).main
  with pytest.raises(SystemExit) as ended:
    cli.run(main, [str(a) for a in arguments])
  return ended.value.code


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_run):
  """A folder with a run of two steps, of RoPE, and a cache folder of its own."""
  folder = tmp_path_factory.mktemp("home")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("POSX_CACHE", str(folder / "cache"))
    tiny_run(folder, "rope", "rope")
    yield folder


@pytest.fixture
def run(home, tmp_path):
  return Path(shutil.copytree(home / "rope", tmp_path / "rope"))


def changed(run, section, **fields):
  config = json.loads((run / "config.json").read_text())
  config[section].update(fields)
  (run / "config.json").write_text(json.dumps(config))


@pytest.mark.slow
def test_a_search_compiles_once_and_its_command_gives_the_loss_it_found(run, capsys):
  before = losses_module._run._cache_size()
  assert command("search", f"--run={run}", *SHORT) == 0
  assert losses_module._run._cache_size() == before + 1  # the divisors, PI, NTK, YaRN and the model as trained
  said = capsys.readouterr().out
  (path,) = (run / "search").glob("*.json")
  made = json.loads(path.read_text())
  asked = read_rows(next((run / "search").glob("*.jsonl")))
  assert len(asked) == made["candidates"] > 3 and made["loss"] == min(row["loss"] for row in asked)
  assert len({tuple(row["factors"]) for row in asked}) == len(asked) and all(len(row["factors"]) == 4 for row in asked)
  assert (made["length"], made["documents"], made["targets"]) == (128, 2, 32) and len(made["history"]) == 3
  assert set(made["others"]) == {"as trained", "pi", "ntk", "yarn"} and str(path) in said and "round 2 of 2" in said

  evaluate = shlex.split(made["command"])
  assert evaluate[:3] == ["python", "-m", "experiments.evaluate"] and made["command"] in said
  assert command("evaluate", *evaluate[3:], "--documents=2", "--controls=none") == 0
  for extension in made["others"]:
    if extension != "as trained":
      how = (f"--extension={extension}", "--extension.factor=4")
      assert command("evaluate", f"--workdir={run}", "--lengths=32,128", "--documents=2", "--controls=none", *how) == 0
  rows = [r for r in read_rows(run / "results.jsonl") if r["protocol"] == "nonoverlapping" and r["length"] == 128]
  np.testing.assert_allclose(rows[0]["loss"], made["loss"], rtol=1e-6)
  assert rows[0]["extension"] == "longrope"
  for row in rows[1:]:
    np.testing.assert_allclose(row["loss"], made["others"][row["extension"]], rtol=1e-6)
  assert len(rows) == 4


@pytest.mark.slow
def test_what_was_asked_is_never_asked_again(run, monkeypatch, capsys):
  """An interruption in the middle, then the same command; then more rounds; then another seed."""
  count, real = [], module.window_losses

  def counted(*arguments, **how):
    if len(count) == 5:
      count.append(None)
      raise KeyboardInterrupt
    count.append(None)
    return real(*arguments, **how)

  monkeypatch.setattr(module, "window_losses", counted)
  assert command("search", f"--run={run}", *SHORT) == 75
  assert "run the same command again to continue" in capsys.readouterr().err
  (path,) = (run / "search").glob("*.jsonl")
  kept = read_rows(path)
  assert len(kept) == 5 and not list((run / "search").glob("*.json"))

  assert command("search", f"--run={run}", *SHORT) == 0
  assert "5 losses known" in capsys.readouterr().out
  whole = read_rows(path)
  made = json.loads(next((run / "search").glob("*.json")).read_text())
  assert whole[:5] == kept and len(count) == 6 + len(whole) - 5 + len(made["others"])
  for more in ((), ("--rounds=3",), ("--seed=1",)):
    assert command("search", f"--run={run}", *SHORT, *more) == 0
  after = read_rows(path)
  assert after[: len(whole)] == whole and len({tuple(row["factors"]) for row in after}) == len(after)
  assert len(list((run / "search").glob("*.json"))) == 3


@pytest.mark.slow
def test_an_interrupted_search_finds_what_a_whole_one_does(home, run, tmp_path):
  other = Path(shutil.copytree(home / "rope", tmp_path / "other" / "rope"))
  assert command("search", f"--run={other}", *SHORT) == 0
  assert command("search", f"--run={run}", *SHORT, "--rounds=0") == 0 and command("search", f"--run={run}", *SHORT) == 0
  found = [json.loads(p.read_text()) for folder in (run, other) for p in (folder / "search").glob("*.json")]
  whole = [made for made in found if made["rounds"] == 2]
  assert len(whole) == 2 and whole[0]["factors"] == whole[1]["factors"] and whole[0]["history"] == whole[1]["history"]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("--factor=1",), "needs a finite factor above 1 (target length / trained length), got 1.0"),
    (("--factor=nan",), "needs a finite factor above 1"),
    (("--factor=4", "--population=3"), "--population must be at least 4, got 3"),
    (("--factor=4", "--length=32"), "divisors act beyond the trained length of 32 tokens, got --length=32"),
    (("--factor=4", "--length=0"), "--length must be positive, got 0"),
    (("--factor=4", "--targets=500"), "500 targets are asked for, but the document has 128"),
    (("--factor=100",), "has 0 documents of at least 3201 tokens"),
    (("--factor=4", "--documents=40"), "and 40 are asked for"),
    (("--factor=4", "--split=dev"), "has no split 'dev'"),
    (("--factor=4", "--step=5"), "has no checkpoint of step 5"),
    ((), "the following arguments are required: --factor"),
  ],
)
def test_bad_usage_is_one_line_and_nothing_is_written(run, arguments, message, capsys):
  assert command("search", f"--run={run}", "--split=train", *arguments) == 2
  error = capsys.readouterr().err
  assert message in error and error.startswith("error: ") and error.count("\n") == 1
  assert not (run / "search").exists()


def test_a_folder_that_is_no_run(tmp_path, capsys):
  assert command("search", f"--run={tmp_path}/nowhere", "--factor=4") == 2
  assert "nowhere is not a run folder" in (error := capsys.readouterr().err) and error.count("\n") == 1


@pytest.mark.parametrize(
  ("section", "fields", "message"),
  [
    ("model", {"layers": ["nope"]}, "has no RoPE without a window"),
    ("model", {"layers": ["rope:window=8"]}, "has no RoPE without a window"),
    ("extension", {"name": "log_n", "original_length": 0}, "was trained under log_n"),
    ("positions", {"train": "randomized", "range": 64}, "evaluations of this run draw randomized ones"),
  ],
)
def test_runs_that_it_does_not_serve(run, section, fields, message, capsys):
  changed(run, section, **fields)
  assert command("search", f"--run={run}", *SHORT) == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1
