"""A small trained run to evaluate, and the command in this process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from posx import cli, data
from posx import config as configs

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


@pytest.fixture
def evaluate():
  """evaluate(*arguments): the command in this process, its exit code, without the start of another interpreter."""
  from experiments import evaluate as command

  def code(*arguments):
    with pytest.raises(SystemExit) as ended:
      cli.run(command.main, [str(a) for a in arguments])
    return ended.value.code

  return code


@pytest.fixture(scope="package")
def home(tmp_path_factory, texts):
  """A folder with prepared texts and two trained runs, 'rope' and 'learned'; and a cache folder of its own."""
  from experiments import train

  folder = tmp_path_factory.mktemp("home")
  texts(folder, CONFIG, 60)
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


@pytest.fixture
def content():
  """content(folder): what lies in a folder, and when it was last written."""
  return lambda folder: {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in sorted(folder.rglob("*")) if p.is_file()}
