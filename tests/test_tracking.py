"""Pages at trackers: the real W&B, offline, and the real MLflow, in a folder; what goes wrong with a sink that fails on purpose."""

from __future__ import annotations

import importlib.util
import json
import struct

import pytest

from posx import cli, data, tracking, training
from posx import config as configs
from posx.errors import UserError
from posx.files import read_json, read_rows
from posx.metrics import Writer

BOTH = ("wandb", "mlflow")
for package in BOTH:
  pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
  for name in ("WANDB_PROJECT", "WANDB_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
    monkeypatch.delenv(name, raising=False)
  home = str(tmp_path / "home")
  settings = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_CACHE_DIR": home, "WANDB_CONFIG_DIR": home}
  store = {"MLFLOW_TRACKING_URI": (tmp_path / "store").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
  for name, value in {**settings, **store}.items():
    monkeypatch.setenv(name, value)


def tiny(**train) -> configs.ConfigDict:
  config = configs.default("rope")
  config.model.update(num_layers=1, model_dim=16, num_heads=2, mlp_dim=32)
  config.train.update({"length": 16, "batch_size": 8, "steps": 10, "warmup_steps": 3, "checkpoint_every": 5, "log_every": 1, **train})
  configs.check(config)
  return config


def records(path):
  """The records of W&B's file: a log of LevelDB's after a header of 7 bytes, protocol buffers inside."""
  from wandb.proto.wandb_internal_pb2 import Record

  content, place, whole = path.read_bytes(), 7, b""
  while place + 7 <= len(content):
    left = 32768 - place % 32768
    if left < 7:
      place += left
      continue
    size, kind = struct.unpack("<HB", content[place + 4 : place + 7])
    whole += content[place + 7 : place + 7 + size]
    place += 7 + size
    if kind in (1, 4):  # the whole of a record, or its last part
      yield Record.FromString(whole)
      whole = b""


def wandb_pages(folder):
  """For each process that wrote: the record of its run, and [(step, loss)]."""
  for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
    found = list(records(path))
    rows = [{(i.nested_key or [i.key])[0]: json.loads(i.value_json) for i in r.history.item} for r in found if r.HasField("history")]
    yield next(r.run for r in found if r.HasField("run")), [(row["_step"], row["loss"]) for row in rows], found


def mlflow_page(folder):
  from mlflow.tracking import MlflowClient

  client = MlflowClient()
  run = client.get_run(read_json(folder / tracking.FILE)["mlflow"])
  return client, run, sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss"))


@pytest.mark.slow
def test_a_resumed_run_has_one_page_each_with_every_step_once(tmp_path, monkeypatch, capsys):
  text, folder, batch = data.from_texts([" ".join(f"Ann says {n}." for n in range(200))]), tmp_path / "run", data.batch

  def failing(*args, **kwargs):
    if kwargs["step"] == 8:
      raise MemoryError("the machine went away")
    return batch(*args, **kwargs)

  config = tiny(track=BOTH)
  with monkeypatch.context() as patch, pytest.raises(MemoryError):
    patch.setattr(data, "batch", failing)
    training.train(config, folder, corpus=text)
  _, run, first = mlflow_page(folder)
  assert run.info.status == "FAILED" and len(first) in (7, 8), "steps were logged beyond the checkpoint of step 5"
  ids = read_json(folder / tracking.FILE)
  training.train(config, folder, corpus=text)
  expected = [(row["step"], row["loss"]) for row in read_rows(folder / "metrics.jsonl")]
  assert [step for step, _ in expected] == list(range(1, 11))

  client, run, logged = mlflow_page(folder)
  assert logged == expected and run.info.status == "FINISHED" and len(client.search_runs([run.info.experiment_id])) == 1
  checkpoints = str(folder / "checkpoints")
  assert run.data.tags["posx.checkpoints"] == checkpoints and checkpoints in run.data.tags["mlflow.note.content"]
  assert run.data.params["train.steps"] == "10" and run.data.params["encoding.name"] == "rope" and run.data.params["seed"] == "0"
  assert (tmp_path / client.download_artifacts(run.info.run_id, "config.json")).read_text() == (folder / "config.json").read_text()

  pages = list(wandb_pages(folder))
  assert len(pages) == 2 and {page.run_id for page, _, _ in pages} == {ids["wandb"]} and {page.project for page, _, _ in pages} == {"posx"}
  assert sorted(row for _, rows, _ in pages for row in rows) == [(step, pytest.approx(loss)) for step, loss in expected]
  page, _, found = pages[0]
  assert {u.key: json.loads(u.value_json) for u in page.config.update}["train"]["steps"] == 10
  assert checkpoints in page.notes
  assert checkpoints in [json.loads(u.value_json) for r in found if r.HasField("summary") for u in r.summary.update]
  assert {name: read_json(folder / tracking.FILE)[name] for name in BOTH} == {name: ids[name] for name in BOTH}
  out = capsys.readouterr().out
  assert out.count("wandb: ") == 2 and out.count(f"run {ids['mlflow']}") == 2


class Recorded(tracking.Page):
  name = "recorded"

  def __init__(self, logged=0, broken=()):
    super().__init__(logged)
    self.sent, self.ended, self.broken = [], [], broken

  def send(self, step, values):
    if step in self.broken:
      raise ConnectionError("no answer\nfrom the server")
    self.sent.append((step, dict(values)))

  def end(self, ended):
    self.ended.append(ended)


def test_a_page_gets_finite_numbers_of_new_steps_and_the_end(tmp_path):
  page = Recorded(logged=4)
  with Writer(tmp_path, 0, [page]) as writer:
    for step in (2, 4, 6):
      writer.write(step, loss=float(step), rate=float("inf"))
  assert page.sent == [(6, {"loss": 6.0})] and page.ended == ["done"]
  for error, ended in ((KeyboardInterrupt, "stopped"), (ValueError, "failed")):
    page = Recorded()
    with pytest.raises(error), Writer(tmp_path, 6, [page]):
      raise error
    assert page.ended == [ended]


def test_training_goes_on_where_a_page_fails(tmp_path, capsys):
  page = Recorded(broken=[3])
  with Writer(tmp_path, 0, [page]) as writer:
    for step in (1, 2, 3, 4):
      writer.write(step, loss=1.0)
  assert [step for step, _ in page.sent] == [1, 2] and page.ended == []
  assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
  assert capsys.readouterr().err == "warning: the page at recorded lacks from step 3 on: no answer; metrics.jsonl has all steps\n"


def test_no_page_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://host")
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(UserError, match=r"config.train.track=mlflow opens no page: .*nonsense.*; MLFLOW_TRACKING_URI names the server"):
    tracking.pages(tmp_path, tiny(track=("mlflow",)))
  monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
  (tmp_path / tracking.FILE).write_text('{"logged": 3, "mlflow": "0123456789abcdef0123456789abcdef"}')
  with pytest.raises(UserError, match=r"opens no page: .*; without 'mlflow' in .*tracking.json a new one is opened"):
    tracking.pages(tmp_path, tiny(track=("mlflow",)))


def test_names_are_checked(monkeypatch):
  with pytest.raises(UserError, match=r"unknown tracker in config.train.track 'wandbb'; did you mean 'wandb'\? known: mlflow, wandb"):
    tiny(track=("wandbb",))
  with pytest.raises(UserError, match="names a tracker twice: wandb, wandb"):
    tiny(track=("wandb", "wandb"))


def test_a_missing_package_is_one_line_before_anything_starts(tmp_path, monkeypatch, capsys):
  from experiments import train

  found = importlib.util.find_spec
  monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name, *rest: None if name == "mlflow" else found(name, *rest))
  argv = ["--config=configs/quickstart.py:rope", f"--workdir={tmp_path / 'run'}", "--config.train.track=wandb,mlflow"]
  with pytest.raises(SystemExit) as ended:
    cli.run(train.main, argv)
  assert ended.value.code == 2
  line = "error: config.train.track=mlflow needs the package mlflow; install it: pip install -c constraints.txt -e '.[mlflow]'\n"
  assert capsys.readouterr().err == line and not (tmp_path / "run").exists()
