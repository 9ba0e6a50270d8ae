"""Configurations: what an override does, what is refused and with which words."""

from __future__ import annotations

import ast
import dataclasses
import json
import typing
from pathlib import Path

import pytest
from ml_collections import config_dict

from posx import config as configs
from posx import encodings, extensions, sections
from posx.cli import split_overrides
from posx.errors import UserError
from posx.fields import Kind, coerce, fields, plain

ROOT = Path(__file__).parents[1]
QUICKSTART = str(ROOT / "configs/quickstart.py")


def load(*overrides: str, arg: str = "rope") -> configs.ConfigDict:
  return configs.load(f"{QUICKSTART}:{arg}", overrides)


@pytest.mark.parametrize(
  ("text", "path", "value"),
  [
    ("train.steps=1_000", "train.steps", 1000),
    ("train.learning_rate=1e-3", "train.learning_rate", 1e-3),
    ("train.weight_decay=0", "train.weight_decay", 0.0),
    ("train.weight_decay=1", "train.weight_decay", 1.0),
    ("encoding.base=5e5", "encoding.base", 5e5),
    ("encoding.layout=interleaved", "encoding.layout", "interleaved"),
    ("model.tied=false", "model.tied", False),
    ("model.tied=True", "model.tied", True),
    ("data.dir=/tmp/a=b", "data.dir", "/tmp/a=b"),
    ("eval.lengths=512,1024", "eval.lengths", (512, 1024)),
    ("eval.lengths=(512, 1024)", "eval.lengths", (512, 1024)),
    ("eval.lengths=2048", "eval.lengths", (2048,)),
    ("eval.controls=", "eval.controls", ()),
    ("eval.extensions=yarn:8,'ntk:4'", "eval.extensions", ("yarn:8", "ntk:4")),
    ("seed=7", "seed", 7),
  ],
)
def test_override_sets_a_value_of_the_type_of_the_field(text, path, value):
  was = load()
  now = load(text)
  found = now
  for part in path.split("."):
    found = found[part]
  assert found == value
  assert type(found) is type(value)
  assert set(configs.diff(was, now)) <= {path}


@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    (["trian.steps=1"], r"unknown config field 'trian.steps'; did you mean 'train.steps'\? known: seed, encoding\.\*"),
    (["train.stepz=1"], r"'train.stepz'; did you mean 'train.steps'\? known: train.length, train.init_from"),
    (["encoding.bsae=1"], r"of encoding 'rope' 'encoding.bsae'; did you mean 'encoding.base'\? known: encoding.name, encoding.base"),
    (["encoding.scaling=yarn"], r"unknown config field of encoding 'rope' 'encoding.scaling'"),
    (["encoding.base=1e6", "encoding.name=alibi"], r"of encoding 'alibi' 'encoding.base'.* known: encoding.name$"),
    (["encoding=alibi"], r"config.encoding is a section; set one of its fields: encoding.name"),
    (["train.steps"], r"an override is field=value, e.g. train.steps=100; got 'train.steps'"),
    (["train.steps=1e3"], r"config.train.steps expects a whole number, got '1e3'"),
    (["train.steps=None"], r"config.train.steps expects a whole number, got 'None'"),
    (["train.steps="], r"config.train.steps expects a whole number, got ''"),
    (["train.learning_rate=fast"], r"config.train.learning_rate expects a finite number, got 'fast'"),
    (["train.learning_rate=nan"], r"config.train.learning_rate expects a finite number"),
    (["train.learning_rate=inf"], r"config.train.learning_rate expects a finite number"),
    (["encoding.base=-inf"], r"config.encoding.base expects a finite number"),
    (["data.name=None"], r"config.data.name is a text, and 'None' would be that word.*or '' for none"),
    (["model.tied=yes"], r"config.model.tied expects true or false, got 'yes'"),
    (["model.tied=1"], r"config.model.tied expects true or false, got '1'"),
    (["model.mlp=swiglu"], r"unknown config.model.mlp 'swiglu'.* known: gated, gelu"),
    (["model.dtype=float16"], r"unknown config.model.dtype 'float16'.* known: float32, bfloat16"),
    (["encoding.layout=halv"], r"unknown config.encoding.layout 'halv'; did you mean 'half'\?"),
    (["eval.lengths=512,a"], r"config.eval.lengths expects a whole number, got 'a'"),
    (["encoding.name=alibii"], r"unknown encoding 'alibii'; did you mean 'alibi'\? known: nope, sinusoidal"),
    (["encoding.name=json:JSONDecoder"], r"encoding 'json:JSONDecoder' must be a frozen dataclass"),
    (["extension.name=yanr"], r"unknown extension 'yanr'; did you mean 'yarn'\?"),
    (["extension.factor=4"], r"unknown config field of extension '' 'extension.factor'"),
    (["extension.name=yarn", "encoding.name=alibi"], r"extension 'yarn' on encoding 'alibi'"),
    (["extension.name=pi", "extension.factor=0.5"], r"extension 'pi': pi needs a factor above 1"),
    (["seed=-1"], r"config.seed must not be negative"),
    (["model.num_heads=5"], r"config.model.num_heads=5 must divide model_dim=96, or give model.head_dim"),
    (["model.num_kv_heads=3"], r"config.model.num_kv_heads=3 must divide num_heads=4"),
    (["model.num_layers=0"], r"config.model.num_layers must be positive, got 0"),
    (["model.window=-1"], r"config.model.window must be positive, or 0"),
    (["encoding.rotary_dim=3"], r"encoding 'rope': RoPE rotates pairs of channels: rotary_dim must be even"),
    (["encoding.rotary_dim=64"], r"rotary_dim=64 exceeds head_dim=24"),
    (["model.head_dim=33"], r"rotary_dim must be even and at least 2, got 33"),
    (["train.batch_size=0"], r"config.train.batch_size must be positive, got 0"),
    (["train.warmup_steps=2000"], r"config.train.warmup_steps=2000 must be below steps=2000"),
    (["train.final_learning_rate=1"], r"config.train.final_learning_rate=1.0 must not exceed learning_rate"),
    (["train.accumulate=3"], r"config.train.accumulate=3 must divide batch_size=2"),
    (["train.b2=1"], r"config.train.b2 must be at least 0 and below 1, got 1.0"),
    (["train.clip_norm=-1"], r"config.train.clip_norm must be 0 or positive"),
    (["data.name=text"], r"config.data.path is the glob of your own files"),
    (["data.path=*.txt"], r"config.data.path is the glob of your own files"),
    (["data.vocab_size=1000"], r"config.data.vocab_size=1000 has no effect on bytes"),
    (["data.tokenizer=sentencepiece"], r"data.vocab_size must lie in 300 .. 1048576"),
    (["eval.lengths="], r"config.eval.lengths must be different positive numbers"),
    (["eval.lengths=512,512"], r"config.eval.lengths must be different positive numbers"),
    (["eval.stride=1024"], r"config.eval.stride=1024 exceeds the window of 512 tokens"),
    (["eval.last_k=600"], r"config.eval.last_k=600 exceeds the shortest window of 512 tokens; give at most that, or 0"),
    (["eval.documents=-1"], r"config.eval.documents must be 0 or positive, got -1"),
    (["eval.controls=widnow"], r"unknown config.eval.controls 'widnow'; did you mean 'window'\?"),
    (["eval.extensions=yarm:4"], r"unknown extension 'yarm'; did you mean 'yarn'\?"),
    (["eval.extensions=yarn:x"], r"the factor of extension 'yarn' expects a finite number, got 'x'"),
    (["eval.extensions=yarn:4", "encoding.name=alibi"], r"extension 'yarn' on encoding 'alibi'"),
  ],
)
def test_what_is_wrong_is_refused_in_one_line(overrides, message):
  with pytest.raises(UserError, match=message) as caught:
    load(*overrides)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "overrides", [["encoding.name=kerple", "encoding.kernel=power"], ["encoding.kernel=power", "encoding.name=kerple"]]
)
def test_a_new_name_replaces_the_section_whatever_the_order(overrides):
  config = load(*overrides)
  assert config.encoding.kernel == "power"
  assert "base" not in config.encoding


def test_the_same_name_keeps_what_the_file_has_set(tmp_path):
  path = tmp_path / "c.py"
  path.write_text("from posx import config\ndef get_config():\n  c = config.default('rope')\n  c.encoding.base = 5e5\n  return c\n")
  assert configs.load(path, ["encoding.name=rope"]).encoding.base == 5e5


CHANGED = "from posx import config\ndef get_config():\n  c = config.default()\n  "


@pytest.mark.parametrize(
  ("file", "message"),
  [
    ("", r"config file 'nowhere.py' does not exist; give FILE.py or FILE.py:ARG"),
    ("x = 1", r"defines no function get_config\(arg\)"),
    ("x = ", r"failed: SyntaxError"),
    ("def get_config(): return 1 / 0", r"failed: ZeroDivisionError: division by zero"),
    ("def get_config(): return {'seed': 1}", r"get_config must return a configuration made by posx.config.default, not dict"),
    ("def get_config(arg): return 1", r"get_config needs an argument: give .*c.py:ARG"),
    (CHANGED + "c.train.stepz = 1", r"failed: AttributeError: .*stepz"),
    (
      "from posx import config\ndef get_config():\n  c = config.default()\n  c.train.b1 = float('nan')\n  return c",
      r"config.train.b1 expects a fin",
    ),
    (
      "from posx import config\ndef get_config():\n  c = config.default()\n  c.model.mlp = 'no'\n  return c",
      r"unknown config.model.mlp 'no'",
    ),
    ("from ml_collections import ConfigDict\ndef get_config(): return ConfigDict({'seed': 0})", r"lacking or unknown: data, encoding"),
    (
      "from posx import config\ndef get_config():\n  c = config.default()\n  c.encoding.name = 'alibi'\n  return c",
      r"unknown field of config.enc",
    ),
  ],
)
def test_what_is_wrong_with_a_file(tmp_path, file, message):
  path = "nowhere.py"
  if file:
    path = tmp_path / "c.py"
    path.write_text(file)
  with pytest.raises(UserError, match=message):
    configs.load(path)


def test_argument_of_a_file_that_takes_none(tmp_path):
  path = tmp_path / "c.py"
  path.write_text("def get_config(): return 1")
  with pytest.raises(UserError, match="get_config takes no argument"):
    configs.load(f"{path}:rope")


def test_unknown_argument_lists_the_known():
  with pytest.raises(UserError, match=r"unknown encoding 'rop'; did you mean 'rope'\? known: nope, sinusoidal"):
    load(arg="rop")


def test_no_field_can_be_added_afterwards():
  with pytest.raises(AttributeError):
    load().train.stepz = 1


@pytest.mark.parametrize("overrides", [(), ("extension.name=pi", "extension.factor=4"), ("encoding.name=kerple",), ("eval.controls=",)])
def test_json_gives_an_equal_configuration_back(overrides):
  config = load(*overrides)
  back = configs.from_json(configs.to_json(config))
  assert back == config
  assert configs.diff(config, back) == {}
  assert isinstance(back.eval.lengths, tuple)


def test_json_of_another_version_is_refused():
  values = json.loads(configs.to_json(load()))
  del values["train"]["clip_norm"]
  with pytest.raises(UserError, match=r"lacks train.clip_norm: another version of posx wrote it"):
    configs.from_json(json.dumps(values))
  values = json.loads(configs.to_json(load()))
  values["train"]["clip"] = 1.0
  with pytest.raises(UserError, match=r"'train.clip'"):
    configs.from_json(json.dumps(values))


def test_diff_names_field_was_and_is():
  found = configs.diff(load("train.steps=300"), load("train.steps=400", "encoding.name=alibi"))
  assert found["train.steps"] == (300, 400)
  assert found["encoding.name"] == ("rope", "alibi")
  assert found["encoding.base"] == (10000.0, None)


def test_mapping_of_values_as_a_sweep_gives_them():
  config = configs.load(
    QUICKSTART, {"encoding.base": 500000, "train.learning_rate": 1e-4, "train.final_learning_rate": 0, "eval.lengths": [512]}
  )
  assert config.encoding.base == 5e5
  assert isinstance(config.encoding.base, float)
  assert config.eval.lengths == (512,)
  for wrong in ({"train.steps": True}, {"train.steps": 1.5}, {"model.tied": 1}, {"data.name": 3}, {"seed": None}, {"eval.lengths": 512}):
    with pytest.raises(UserError, match=r"expects|needs a value"):
      configs.load(QUICKSTART, wrong)


@dataclasses.dataclass(frozen=True)
class Own:
  """An encoding of a user's own, with every kind of field."""

  scale: float
  factors: tuple[float, ...] | None = None
  gain: float | None = None
  inner: object = None
  kind: typing.Literal["a", "b"] = "a"


def test_fields_without_a_plain_default():
  section = configs._section(Own, name="own")
  assert section.to_dict() == {"name": "own", "scale": None, "factors": None, "gain": None, "kind": "a"}
  section.gain = 2.0
  section.factors = (1.0, 2.0)
  assert section.gain == 2.0
  assert coerce("x", "none", plain(float | None)) is None
  assert coerce("x", "1,2.5", plain(tuple[float, ...] | None)) == (1.0, 2.5)
  with pytest.raises(UserError, match="x needs a value, got None"):
    coerce("x", None, Kind(float))


CATALOGUES = {"encoding": encodings.CATALOGUE, "extension": extensions.CATALOGUE}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, catalogue in CATALOGUES.items() for name in catalogue])
def test_every_section_has_the_plain_fields_of_its_dataclass(kind, name):
  cls = CATALOGUES[kind][name]
  section = configs.section(kind, name)
  hints = typing.get_type_hints(cls)
  left_out = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init and f.name not in section}
  assert set(section) - {"name"} <= {f.name for f in dataclasses.fields(cls)}
  # Only fields that hold another object are left out; there is one such kind.
  assert all("Scaling" in str(hint) for hint in left_out.values()), left_out
  for field in dataclasses.fields(cls):
    if field.name in section and field.default is not dataclasses.MISSING:
      assert section[field.name] == field.default


def test_every_field_is_read_somewhere():
  files = [*(ROOT / "posx").rglob("*.py"), *(ROOT / "experiments").glob("*.py")]
  nodes = [node for p in files if p.name not in ("sections.py", "checks.py") for node in ast.walk(ast.parse(p.read_text()))]
  reads = {n.attr for n in nodes if isinstance(n, ast.Attribute) and not (isinstance(n.value, ast.Name) and n.value.id == "posx")}
  keys = [n.slice for n in nodes if isinstance(n, ast.Subscript)]
  keys += [n.args[0] for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "get" and n.args]
  reads |= {key.value for key in keys if isinstance(key, ast.Constant)}
  every = {f"{section}.{field.name}" for section, cls in sections.SECTIONS.items() for field in dataclasses.fields(cls)}
  assert {path for path in every if path.split(".")[1] not in reads} == set()


@pytest.mark.parametrize("arg", list(encodings.CATALOGUE))
@pytest.mark.parametrize("file", ["quickstart", "base512"])
def test_shipped_configurations_load_for_every_encoding(file, arg):
  config = configs.load(ROOT / f"configs/{file}.py:{arg}")
  assert type(configs.encoding(config)) is encodings.CATALOGUE[arg]
  assert isinstance(config, config_dict.ConfigDict)


def test_encoding_is_extended():
  plain_encoding = configs.encoding(load())
  extended = configs.encoding(load("extension.name=pi", "extension.factor=4"))
  assert configs.extension(load()) is None
  assert extended == extensions.apply(extensions.make("pi", factor=4.0), plain_encoding)
  assert configs.dims(load("train.length=64")) == encodings.base.Dims(4, 24, 96, 64)


def test_split_overrides():
  argv = ["--config=c.py:rope", "--config.train.steps=5", "--workdir", "d", "--config.data.path", "a=b", "--config.seed", "-1"]
  assert split_overrides(argv, "config") == (["train.steps=5", "data.path=a=b", "seed=-1"], ["--config=c.py:rope", "--workdir", "d"])
  for wrong in (["--config.seed"], ["--config.seed", "--workdir=d"]):
    with pytest.raises(UserError, match=r"--config.seed needs a value"):
      split_overrides(wrong, "config")


def test_fields_are_found_once_for_each_class():
  fields.cache_clear()
  for extension in ("pi:2", "pi:4", "yarn:2", "yarn:4", "ntk:2", "ntk:4"):
    load(f"eval.extensions={extension}")
  known = fields.cache_info()
  assert known.hits > 20 * known.misses, "a study that names hundreds of extensions shows its plan within a second"
  with pytest.raises(TypeError):
    fields(type(configs.make("encoding", {"name": "rope"})))["base"] = None  # type: ignore[index]
