"""What `python -m experiments.evaluate` refuses: one line, an exit code, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
def test_bad_usage_is_one_line_exit_code_2_and_nothing_is_written(run, arguments, message, capsys, evaluate, content):
  workdir = run()
  before = content(workdir)
  assert evaluate(f"--workdir={workdir}", *arguments) == 2
  error = capsys.readouterr().err
  assert message in error and error.startswith("error: ") and error.count("\n") == 1
  assert content(workdir) == before and not (workdir / "losses").exists()


def test_another_text_would_get_other_pieces(run, home, capsys, evaluate):
  """A trained tokenizer belongs to its text: the same token numbers would stand for other pieces."""
  workdir = run()
  config = json.loads((workdir / "config.json").read_text())
  config["data"].update(tokenizer="sentencepiece", vocab_size=300)
  (workdir / "config.json").write_text(json.dumps(config))
  assert evaluate(f"--workdir={workdir}", f"--data={home}/other/*.txt") == 2
  assert "another text would get pieces of its own" in capsys.readouterr().err


def test_folders_that_are_no_finished_run(home, tmp_path, capsys, evaluate):
  assert evaluate(f"--workdir={tmp_path}/nowhere") == 2
  assert "nowhere" in (error := capsys.readouterr().err) and error.count("\n") == 1
  assert not (tmp_path / "nowhere").exists()
  shutil.copytree(home / "rope", tmp_path / "started", ignore=shutil.ignore_patterns("checkpoints"))
  assert evaluate(f"--workdir={tmp_path}/started") == 2
  assert "has no checkpoint yet" in (error := capsys.readouterr().err) and error.count("\n") == 1
  assert evaluate("--lengths=32") == 2
  assert "the following arguments are required: --workdir" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_exit_code_3(run, capsys, evaluate):
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
