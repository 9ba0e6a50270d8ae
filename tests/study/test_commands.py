"""The commands `sweep`, `compare` and the worker: what they write and how they refuse."""

import json
import subprocess
import sys
import time
import types

import pytest
from study_rows import buckets, row, table

from experiments import compare, sweep
from posx import cli
from posx import config as configs
from posx.errors import UserError
from posx.study import cost, launch, results, speed, worker
from posx.study.sweep import Run


def exit_code(main, argv, capsys):
  with pytest.raises(SystemExit) as raised:
    cli.run(main, argv)
  captured = capsys.readouterr()
  return raised.value.code, captured.out, captured.err


@pytest.fixture
def study(tmp_path):
  results.append(tmp_path / results.FILE, [*table(), *buckets(), row("rope", 512, 6.0, protocol="sliding", stride=64)])
  return tmp_path


def test_compare_writes_and_prints(study, capsys):
  code, out, _ = exit_code(compare.main, [str(study), f"--csv={study}/rows.csv"], capsys)
  assert code == 0 and "non-overlapping windows; 8,192 targets" in out and "other protocols: sliding:64" in out
  names = ["table.txt", "figures/perplexity.png", "figures/perplexity.svg", "figures/position.png", "figures/position.svg", "rows.csv"]
  assert out.splitlines()[-6:] == [str(study / name) for name in names]
  assert all((study / name).stat().st_size > 300 for name in names)
  assert "t5" in (study / "table.txt").read_text() and (study / "rows.csv").read_text().count("\n") == 1 + len(
    results.read_file(study / results.FILE)
  )


def test_each_text_has_its_own_table(study, capsys):
  results.append(study / results.FILE, [row("rope", 512, 3.0, data="text")])
  code, out, _ = exit_code(compare.main, [str(study), f"--output={study}/out"], capsys)
  assert code == 0 and "documents of sotu (test)" in out and "documents of text (test)" in out
  assert sorted(path.name for path in (study / "out" / "figures").glob("perp*.png")) == [
    "perplexity-sotu-test.png",
    "perplexity-text-test.png",
  ]


def test_compare_refuses(study, tmp_path_factory, capsys):
  empty = tmp_path_factory.mktemp("empty")
  for argv, message in [
    ([str(empty / "nonesuch")], "no such folder"),
    ([str(empty)], "no results in"),
    ([str(study), "--protocol=last_k"], "no rows of protocol 'last_k'; present: nonoverlapping, sliding:64"),
    ([], "the following arguments are required: DIR"),
  ]:
    code, _, err = exit_code(compare.main, argv, capsys)
    assert code == 2 and message in err and len(err.splitlines()) == 1
  assert not list(empty.iterdir())


SWEEP = "def sweep():\n  for seed in (0, 1):\n    yield {'config': 'configs/quickstart.py:alibi', 'seed': seed}\n"


@pytest.fixture
def sweep_file(tmp_path):
  (tmp_path / "mine.py").write_text(SWEEP)
  return f"--config={tmp_path}/mine.py"


def fake_load(config, overrides):
  return {
    "seed": int(overrides.get("seed", 0)),
    "encoding": {"name": config.partition(":")[2]},
    "data": {"name": "sotu"},
    "eval": {"lengths": [512]},
  }


def test_dry_run_shows_the_runs_and_writes_nothing(tmp_path, sweep_file, capsys, monkeypatch):
  monkeypatch.setenv("POSX_CACHE", str(tmp_path / "cache"))
  folder = tmp_path / "study"
  code, out, _ = exit_code(sweep.main, [sweep_file, f"--workdir={folder}", "--workers=1", "--dry_run"], capsys)
  lines = out.splitlines()
  assert code == 0 and lines[0].split() == "run seed parameters train FLOPs eval FLOPs hours memory state".split()
  assert [line.split()[:3] for line in lines[1:3]] == [["alibi-seed=0", "0", "270,816"], ["alibi-seed=1", "1", "270,816"]]
  assert all(line.split()[5] == "unknown" and line.endswith("queued") for line in lines[1:3])
  assert (
    lines[4].startswith("2 runs, 2 to do: 8.46T + 3.99T FLOPs, unknown hours with 1 at a time on ") and "run one of them once" in lines[-1]
  )
  assert not folder.exists() and not (tmp_path / "cache").exists()
  run = folder / "runs" / "alibi-seed=0"
  run.mkdir(parents=True)
  (run / "status.json").write_text('{"state": "stopped", "step": 30}')
  code, out, _ = exit_code(sweep.main, [sweep_file, f"--workdir={folder}", "--dry_run", "--only=*0"], capsys)
  assert out.splitlines()[1].endswith("stopped at 30") and "1 runs, 1 to do" in out


def test_dry_run_says_hours_once_a_run_was_timed(tmp_path, sweep_file, capsys, monkeypatch):
  monkeypatch.setenv("POSX_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(speed, "hardware", lambda cores=None: "a chip, 1 cores")
  config = configs.load("configs/quickstart.py:alibi")
  for kind, flops in (("train", cost.cost(config).train_flops), ("evaluate", cost.cost(config).eval_flops)):
    speed.note(kind, config, flops, 1800.0)
  argv = [sweep_file, f"--workdir={tmp_path}/study", "--workers=1", "--dry_run"]
  _, out, _ = exit_code(sweep.main, argv, capsys)
  assert out.splitlines()[1].split()[5] == "1" and "about 2 h with 1 at a time on a chip, 1 cores" in out
  assert out.splitlines()[-1] == "hours: from earlier runs of these models on this hardware."
  monkeypatch.setattr(speed, "memory", lambda: 1e6)
  _, out, _ = exit_code(sweep.main, [*argv, "--config.encoding.name=rope"], capsys)
  assert "~1 " in out and "this machine has 1MB: lower --workers" in out


@pytest.mark.parametrize(
  "argv, message",
  [
    (["--launcher=cloud"], "unknown launcher 'cloud'; known: local, slurm"),
    (["--slurm.partition=gpu"], "--slurm.partition=gpu is for --launcher=slurm"),
    (["--only=t5*"], "--only='t5*' fits none of the runs: alibi-seed=0, alibi-seed=1"),
    (["--workers=0"], "--workers and --threads must be at least 1"),
    (["--wrokers=2"], "unrecognized arguments: --wrokers=2"),
    (["--config.seed=1"], "runs 1 and 2"),
  ],
)
def test_sweep_refuses(tmp_path, sweep_file, capsys, monkeypatch, argv, message):
  monkeypatch.setattr("posx.study.sweep._load", fake_load)
  code, _, err = exit_code(sweep.main, [sweep_file, f"--workdir={tmp_path}/study", *argv], capsys)
  assert code == 2 and message in err and len(err.splitlines()) == 1
  assert not (tmp_path / "study").exists()


def test_a_sweep_trains_collects_and_compares(tmp_path, sweep_file, capsys, monkeypatch):
  monkeypatch.setattr("posx.study.sweep._load", fake_load)
  monkeypatch.setattr(sweep, "prepare", lambda runs: None)
  body = """
import json, sys
from pathlib import Path
from posx.study import results
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
if seed and not (folder / "again").exists():
  (folder / "again").touch()
  sys.exit(print("error: no luck") or 2)
(folder / "config.json").write_text(json.dumps({"seed": seed, "encoding": {"name": "alibi"}}))
(folder / "status.json").write_text(json.dumps({"state": "done"}))
results.append(folder / "results.jsonl", [{**json.loads(sys.argv[3]), "seed": seed}])
(folder / "evaluated.json").write_text(sys.argv[4])
"""

  def command(job):
    settings = job.run.settings
    return [
      sys.executable,
      "-c",
      body,
      job.folder,
      str(settings["seed"]),
      json.dumps(row("alibi", 512, 6.0)),
      json.dumps(worker.requests(settings)),
    ]

  monkeypatch.setattr(launch.launch, "__defaults__", (command,))
  folder = tmp_path / "study"
  argv = [sweep_file, f"--workdir={folder}", "--workers=1"]
  code, out, _ = exit_code(sweep.main, argv, capsys)
  assert code == 1 and "alibi-seed=1 failed: no luck (all of it in" in out and str(folder / "table.txt") in out
  code, out, _ = exit_code(sweep.main, argv, capsys)
  assert code == 0 and "done before" in out and "± standard error over seeds" in (folder / "table.txt").read_text()
  assert {path.name for path in folder.iterdir()} == {"figures", "lock", "logs", "results.jsonl", "runs", "sweep.json", "table.txt"}


def test_help_is_quick_and_needs_no_jax():
  code = "import sys\nsys.argv[1:] = ['--help']\ntry:\n  import experiments.{0} as m; m.main(['--help'])\nexcept SystemExit: pass\n"
  code += "assert not {{'jax', 'flax', 'matplotlib', 'tensorflow_datasets'}} & set(sys.modules), 'slow'\n"
  for name in ("sweep", "compare"):
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code.format(name)], check=True, capture_output=True)
    assert time.monotonic() - began < 5


def test_the_package_imports_without_jax():
  modules = "compare, figures, hyper, launch, names, results, series, slots, sweep, table, watch, worker"
  code = f"import sys\nfrom posx.study import {modules}\nassert 'jax' not in sys.modules"
  subprocess.run([sys.executable, "-c", code], check=True)


class Mains:
  """Stands for experiments.train and experiments.evaluate; writes down how it was called."""

  def __init__(self, folder, monkeypatch):
    self.folder, self.calls, self.fail_at = folder, [], ""
    for name in ("train", "evaluate"):
      module = types.ModuleType(f"experiments.{name}")
      module.main = getattr(self, name)
      monkeypatch.setitem(sys.modules, f"experiments.{name}", module)
      monkeypatch.setattr(f"experiments.{name}", module, raising=False)
    config = types.SimpleNamespace(load=lambda config, overrides: types.SimpleNamespace(to_dict=lambda: self.settings))
    monkeypatch.setitem(sys.modules, "posx.config", config)
    monkeypatch.setattr("posx.config", config, raising=False)
    self.settings = {"eval": {"lengths": (512, 1024), "extensions": ("pi", "yarn:8")}}

  def train(self, argv):
    self.calls.append(["train", *argv[2:]])
    (self.folder / "status.json").write_text('{"state": "done"}')
    (self.folder / "config.json").write_text(json.dumps(self.settings))

  def evaluate(self, argv):
    self.calls.append(argv[1:])
    if self.fail_at and self.fail_at in " ".join(argv):
      raise UserError("no such extension")
    results.append(self.folder / results.FILE, [row("rope", 512, 6.0)])


def test_the_worker_trains_once_and_evaluates_what_is_missing(tmp_path, monkeypatch):
  mains = Mains(tmp_path, monkeypatch)
  argv = ["--config=c.py:rope", f"--workdir={tmp_path}", "--config.seed=1"]
  mains.fail_at = "pi"
  with pytest.raises(UserError, match=r"evaluation under pi: no such extension$"):
    worker.main(argv)
  asked = ["--beyond=note", "--lengths=512,1024"]
  yarn = [*asked, "--extension=yarn", "--extension.factor=8"]
  assert mains.calls == [["train", "--config.seed=1"], asked, [*asked, "--extension=pi"], yarn]
  assert worker.trained(tmp_path) and not worker.finished(tmp_path, mains.settings)
  mains.fail_at, mains.calls = "", []
  assert worker.main(argv) == 0
  assert mains.calls == [[*asked, "--extension=pi"]] and worker.finished(tmp_path, mains.settings)
  # More lengths: the weights stay, the evaluations are asked again.
  mains.calls, mains.settings = [], {"eval": {"lengths": (4096,), "extensions": ()}}
  assert not worker.finished(tmp_path, mains.settings) and worker.main(argv) == 0
  assert mains.calls == [["--beyond=note", "--lengths=4096"]]


def test_the_worker_goes_on_under_the_evaluation_settings_the_run_began_with(tmp_path, monkeypatch):
  mains = Mains(tmp_path, monkeypatch)
  (tmp_path / "config.json").write_text('{"eval": {"lengths": [512], "split": "test"}}')
  worker.main(["--config=c.py:rope", f"--workdir={tmp_path}", "--config.eval.lengths=4096"])
  assert mains.calls[0] == ["train", "--config.eval.lengths=4096", "--config.eval.lengths=512", "--config.eval.split=test"]


def test_a_text_that_is_too_short_is_said_before_training(tmp_path):
  (tmp_path / "text.txt").write_text("a few words. " * 40)
  settings = {
    "data": {"name": "text", "path": str(tmp_path / "*.txt"), "field": "text", "tokenizer": "bytes", "vocab_size": 0, "dir": str(tmp_path)},
    "eval": {"lengths": (64, 100_000), "split": "train", "documents": 1},
  }
  with pytest.raises(UserError, match="documents of at least 100001 tokens"):
    sweep.prepare([Run("a", "c.py", {}, settings, {})])
