"""From sweep files to runs: both spellings, distinct configs, names."""

import random
import textwrap

import pytest

from posx.errors import CorruptError, UserError
from posx.study import hyper, names, sweep


def load(config, overrides):
  """Resolves as posx.config does, for two encodings."""
  encoding = config.partition(":")[2] or "rope"
  flat = {"seed": 0, "encoding.name": encoding, "train.steps": 100, "eval.lengths": (512,)}
  flat |= {"encoding.base": 1e4} if encoding == "rope" else {}
  for field, value in overrides.items():
    if field not in flat:
      raise UserError(f"unknown config field {field!r}")
    flat[field] = type(flat[field])(value)
  nested = {}
  for field, value in flat.items():
    section, _, name = field.rpartition(".")
    (nested.setdefault(section, {}) if section else nested)[name] = value
  return nested


@pytest.fixture
def write(tmp_path):
  def write(text, name="mine.py"):
    (tmp_path / name).write_text(textwrap.dedent(text))
    return str(tmp_path / name)

  return write


def expand(path, **kwargs):
  return sweep.expand(path, load=load, **kwargs)


def test_sweep_yields_overrides(write):
  runs = expand(
    write("""
    def sweep():
      for seed in (0, 1):
        yield {'config': 'c.py:rope', 'encoding.base': 5e5, 'seed': seed}
      yield {'config': 'c.py:alibi'}
    """)
  )
  assert [r.name for r in runs] == ["rope-seed=0", "rope-seed=1", "alibi"]
  assert [r.config for r in runs] == ["c.py:rope", "c.py:rope", "c.py:alibi"]
  assert runs[1].overrides == {"encoding.base": 5e5, "seed": 1}
  assert runs[1].settings["encoding"] == {"name": "rope", "base": 5e5} and runs[1].settings["seed"] == 1
  assert runs[2].differs == {"encoding.name": "alibi", "seed": 0}


def test_get_hyper_gives_the_same_runs(write):
  plain = expand(
    write("""
    def sweep():
      for encoding in ('rope', 'alibi'):
        for seed in range(2):
          yield {'config': f'c.py:{encoding}', 'seed': seed}
    """)
  )
  combined = expand(
    write("""
    def get_hyper(hyper):
      return hyper.product([hyper.sweep('config', ['c.py:rope', 'c.py:alibi']), hyper.sweep('config.seed', range(2))])
    """)
  )
  assert combined == plain and len(plain) == 4


def test_a_file_with_get_config_is_its_own_base(write):
  path = write("""
    def get_config(arg='rope'): ...
    def get_hyper(hyper):
      return hyper.sweep('config.train.steps', [10, 20])
    """)
  assert [(r.name, r.config) for r in expand(path)] == [("rope-steps=10", path), ("rope-steps=20", path)]


def test_the_argument_reaches_sweep(write):
  path = write("""
    def sweep(name='rope'):
      yield {'config': f'c.py:{name}'}
    """)
  assert [r.name for r in expand(path) + expand(path + ":alibi")] == ["rope", "alibi"]


def test_combinators():
  a, b = hyper.sweep("a", [1, 2]), hyper.sweep("b", [3, 4])
  assert hyper.zipit([a, b]) == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
  assert hyper.zipit([a, hyper.fixed("c", 0)]) == [{"a": 1, "c": 0}, {"a": 2, "c": 0}]
  assert hyper.chainit([a, b]) == [{"a": 1}, {"a": 2}, {"b": 3}, {"b": 4}]
  assert len(hyper.product([a, b, hyper.sweep("c", range(5))])) == 20
  with pytest.raises(UserError, match="zipit got sweeps of 2, 3 values"):
    hyper.zipit([a, hyper.sweep("b", range(3))])
  with pytest.raises(UserError, match="two sweeps over a"):
    hyper.product([a, a])


@pytest.mark.parametrize("second", ["{'config': 'c.py:rope', 'encoding.base': 10000}", "{'config': 'c.py:rope', 'eval.lengths': (1024,)}"])
def test_duplicates_are_named(write, second):
  path = write(f"def sweep():\n  yield {{'config': 'c.py:alibi'}}\n  yield {{'config': 'c.py:rope'}}\n  yield {second}\n")
  with pytest.raises(UserError, match=r"runs 2 and 3 of .*mine\.py would train the same model: c\.py:rope and c\.py:rope (encoding|eval)"):
    expand(path)


def test_extra_overrides_reach_every_run_and_may_make_duplicates(write):
  path = write("def sweep():\n  for seed in (0, 1):\n    yield {'config': 'c.py:rope', 'seed': seed}\n")
  assert [r.settings["train"]["steps"] for r in expand(path, extra={"train.steps": "7"})] == [7, 7]
  with pytest.raises(UserError, match=r"runs 1 and 2 .* same model"):
    expand(path, extra={"seed": "3"})


@pytest.mark.parametrize(
  "text, message",
  [
    ("x = 1", r"is not a sweep file: it has neither sweep\(\) nor get_hyper"),
    ("def sweep(): return []", "yields no runs"),
    ("def sweep(): yield 3", "run 1 of .* is 3; it must be a dictionary"),
    ("def sweep(): yield {'seed': 1}", "run 1 of .* names no base config"),
    ("import nonesuch", "does not run: ModuleNotFoundError: No module named 'nonesuch'"),
    ("def sweep(): yield {'config': 'c.py', 'sead': 1}", r"run 1 of .*\(c\.py sead=1\): unknown config field 'sead'"),
  ],
)
def test_what_is_wrong_with_a_file_is_said(write, text, message):
  with pytest.raises(UserError, match=message):
    expand(write(text))


def test_a_missing_file_is_said():
  with pytest.raises(UserError, match=r"no sweep file nonesuch\.py"):
    expand("nonesuch.py")


def _settings(number):
  rng = random.Random(number)
  flats, seen = [], set()
  while len(flats) < 12:
    flat = {
      "seed": rng.randrange(3),
      "encoding.name": rng.choice(["rope", "alibi", "my.module:Best"]),
      "train.learning_rate": rng.choice([1e-3, 0.001234567]),
    }
    flat |= {"encoding.base": rng.choice([1e4, 5e5])} if flat["encoding.name"] == "rope" else {}
    flat |= {"extension.name": rng.choice(["", "yarn"]), "data.path": rng.choice(["a/b c*", "A/b c*"])}
    if names.digest(flat) not in seen:
      seen.add(names.digest(flat))
      flats.append(flat)
  return flats


@pytest.mark.parametrize("number", range(20))
def test_names_are_unique_safe_and_independent_of_the_order(number):
  flats = _settings(number)
  made = names.names(flats)
  assert len({name.lower() for name in made}) == len(flats)
  assert all(
    len(name) <= 90 and not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+=-") for name in made
  )
  order = list(range(len(flats)))
  random.Random(number).shuffle(order)
  assert names.names([flats[i] for i in order]) == [made[i] for i in order]


def test_names_say_what_differs_and_no_more():
  rope = {"encoding.name": "rope", "encoding.base": 1e4, "model.dim": 8, "seed": 0}
  assert names.names([rope]) == ["rope"]
  assert names.names([rope, {**rope, "encoding.base": 5e5}]) == ["rope-base=10000", "rope-base=500000"]
  assert names.names([rope, {**rope, "model.dim": 16, "data.dim": 3}]) == ["rope-model.dim=8", "rope-data.dim=3-model.dim=16"]
  long = [{**rope, "data.path": "x" * 200 + end} for end in "ab"]
  assert all(len(name) == 80 for name in names.names(long)) and len(set(names.names(long))) == 2


def test_fields_of_an_extension_tell_apart_its_own_runs_alone():
  rope = {"encoding.name": "rope"}
  runs = [
    rope | {"extension.name": ""},
    rope | {"extension.name": "pi", "extension.factor": 0.0},
    rope | {"extension.name": "yarn", "extension.factor": 4.0, "extension.beta_fast": 32.0},
    rope | {"extension.name": "yarn", "extension.factor": 8.0, "extension.beta_fast": 32.0},
  ]
  assert names.names(runs) == ["rope", "rope-pi", "rope-yarn-factor=4", "rope-yarn-factor=8"]


def test_runs_keep_their_names_when_the_file_grows(write, tmp_path):
  path = write("def sweep():\n  yield {'config': 'c.py:rope'}\n")
  runs = expand(path, known=sweep.read_known(tmp_path))
  sweep.write(tmp_path, path, runs)
  write("def sweep():\n  for seed in (0, 1):\n    yield {'config': 'c.py:rope', 'seed': seed}\n")
  assert [r.name for r in expand(path, known=sweep.read_known(tmp_path))] == ["rope", "rope-seed=1"]


def test_a_name_with_other_settings_is_refused_while_its_folder_is_there(write, tmp_path):
  path = write("def sweep():\n  yield {'config': 'c.py:rope'}\n")
  sweep.write(tmp_path, path, expand(path))
  (tmp_path / "runs" / "rope").mkdir(parents=True)
  changed = expand(path, extra={"train.steps": "7"}, known=sweep.read_known(tmp_path))
  with pytest.raises(UserError, match=r"has a run rope with another train\.steps: use a new --workdir, or remove .*runs/rope"):
    sweep.write(tmp_path, path, changed)
  # Other evaluations of the same weights are no other run.
  sweep.write(tmp_path, path, expand(path, extra={"eval.lengths": (512, 1024)}))
  (tmp_path / "runs" / "rope").rmdir()
  sweep.write(tmp_path, path, changed)
  assert sweep.read_known(tmp_path) == {changed[0].digest: "rope"}


def test_a_broken_record_is_corrupt(tmp_path):
  (tmp_path / "sweep.json").write_text("{")
  with pytest.raises(CorruptError, match=r"sweep\.json cannot be read"):
    sweep.read_known(tmp_path)
