import pytest

from experiments import prepare
from posx import cli


def command(capsys, *argv):
  with pytest.raises(SystemExit) as stop:
    cli.run(prepare.main, argv)
  return stop.value.code, capsys.readouterr()


def test_prints_what_there_is(capsys, books):
  code, (out, err) = command(capsys, "--name=text", f"--path={books}")
  assert (code, err) == (0, "")
  rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}
  assert rows["split"] == ["documents", "tokens", "bytes", "longest"]
  assert [rows[split][0] for split in ("train", "validation", "test")] == ["3", "1", "1"]
  assert command(capsys, "--name=text", f"--path={books}")[0] == 0


def test_of_a_configuration(capsys, books, tmp_path):
  config = tmp_path / "config.py"
  config.write_text("from posx import config\ndef get_config(encoding):\n  return config.default(encoding)\n")
  code, (out, err) = command(capsys, f"--config={config}:rope", "--config.data.name=text", f"--config.data.path={books}")
  assert (code, err) == (0, "") and out.startswith("text in ")


@pytest.mark.parametrize(
  ("argv", "code", "message"),
  [
    ([], 2, "give either --config"),
    (["--name=sotu", "--config=x.py"], 2, "give either --config"),
    (["--config=x.py", "--dir=y"], 2, "give either --config"),
    (["--name=sotu", "--config.data.dir=y"], 2, "give either --config"),
    (["--name=sotu", "--vocab_size=many"], 2, "invalid int value: 'many'"),
    (["--name=sotu", "--nmae=x"], 2, "unrecognized arguments: --nmae=x"),
    (["--name=sotuu"], 2, "did you mean 'sotu'"),
    (["--name=lm1b"], 2, "--name=lm1b --download"),
    (["--name=text"], 2, "needs data.path"),
  ],
)
def test_one_line_and_an_exit_code(capsys, argv, code, message):
  got, (out, err) = command(capsys, *argv)
  assert got == code and out == ""
  assert err.startswith("error: ") and message in err and err.count("\n") == 1
