"""`python -m experiments.probe`: what is wrong is said in one line; what is right leaves rows, arrays and a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posx import cli
from posx.files import read_rows

ROOT = Path(__file__).parents[1]


def probe(*arguments):
  """The command in this process: its exit code."""
  from experiments import probe as command

  with pytest.raises(SystemExit) as ended:
    cli.run(command.main, [str(a) for a in arguments])
  return ended.value.code


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((f"--config={ROOT}/configs/probes.py:passky", "--workdir=w"), "unknown probe 'passky'; did you mean 'passkey'?"),
    ((f"--config={ROOT}/configs/quickstart.py:rope", "--workdir=w"), "is no configuration of a probe; give configs/probes.py:NAME"),
    ((f"--config={ROOT}/configs/probes.py:kernels", "--workdir=w", "--config.depth=1"), "unknown field of probe 'kernels' 'depth'"),
    ((f"--config={ROOT}/configs/probes.py:kernels", "--workdir=w"), "w is not a run folder"),
  ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert probe(*arguments) == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_run_is_probed(tmp_path, monkeypatch, tiny_run):
  monkeypatch.setenv("POSX_CACHE", str(tmp_path / "cache"))
  tiny_run(tmp_path, "alibi", "run")

  run = f"--workdir={tmp_path / 'run'}"
  settings = ("--config.lengths=128", "--config.documents=1")
  assert probe(f"--config={ROOT}/configs/probes.py:passkey", run, "--config.depths=0.5", *settings) == 0
  rows = read_rows(tmp_path / "run" / "results.jsonl")
  assert [(row["protocol"], row["control"], row["depth"]) for row in rows] == [("passkey", "", 0.5), ("passkey", "wrong_key", 0.5)]
  assert probe(f"--config={ROOT}/configs/probes.py:kernels", run, "--config.lengths=64") == 0
  with np.load(tmp_path / "run" / "probes" / "kernels-run.npz") as kept:
    # ALiBi's slopes of two heads
    np.testing.assert_allclose(kept["bias_64"][0], -np.array([[2.0**-4], [2.0**-8]]) * np.arange(64), rtol=1e-5)
  assert {path.name for path in (tmp_path / "run" / "figures").glob("*.png")} == {"passkey-run.png", "kernels-run.png"}
