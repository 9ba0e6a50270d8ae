"""The package as it is installed: what it declares, what a wheel of it holds."""

import importlib.metadata
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest

import posx

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = ("test", "dev")


def requirement(text: str) -> tuple[str, str, set[str]]:
  """(normalised name, extra, the operators of its bounds)."""
  name, extra, bounds = re.fullmatch(r"([A-Za-z0-9_.-]+)(\[[a-z]+\])?(.*)", text).groups()
  return re.sub(r"[-_.]+", "-", name).lower(), extra or "", set(re.findall(r"[<>=!~]=?", bounds))


def pins() -> dict[str, str]:
  """normalised name -> version, of constraints.txt."""
  lines = (ROOT / "constraints.txt").read_text().split()
  assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+", line) for line in lines), "only name==version: no address, no path"
  return {requirement(name)[0]: version for name, version in (line.split("==") for line in lines)}


def test_version_is_said_once():
  assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "posx.__version__"}
  assert importlib.metadata.version("posx") == posx.__version__
  assert f"[{posx.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_requirement_has_bounds_and_a_pin():
  project = PROJECT["project"]
  listed = [*project["dependencies"], *(r for extra in EXTRAS for r in project["optional-dependencies"][extra])]
  for text in listed:
    name, _, bounds = requirement(text)
    assert bounds in ({">=", "<"}, {"=="}), f"{text}: give a lower and an upper bound"
    assert name in pins(), f"{name} has no pin in constraints.txt"
  assert "posx" not in pins()


def imported(folder: str) -> set[str]:
  """Top-level modules that the files of a folder import."""
  pattern = re.compile(r"^\s*(?:import|from) ([A-Za-z_]\w*)", re.MULTILINE)
  return {name for path in (ROOT / folder).rglob("*.py") for name in pattern.findall(re.sub(r'"""(?:.|\n)*?"""', "", path.read_text()))}


@pytest.mark.parametrize("folder", ["posx", "experiments", "configs"])
def test_what_is_imported_is_declared(folder):
  # What needs an extra says so where it is used, by name.
  extras = (PROJECT["project"]["optional-dependencies"][extra] for extra in ("report", "frames", "slurm", "wandb", "mlflow"))
  declared = {requirement(text)[0] for text in (*PROJECT["project"]["dependencies"], *itertools.chain(*extras))}
  owners = importlib.metadata.packages_distributions()
  ours = {"posx", "experiments", "configs", "__future__"}
  for module in sorted(imported(folder) - set(sys.stdlib_module_names) - ours):
    assert {requirement(name)[0] for name in owners.get(module, [])} & declared, f"{folder} imports {module}, which no dependency provides"


def test_installed_versions_are_within_the_bounds():
  from importlib.metadata import version

  low, high = (0, 10), (0, 13)
  assert "jax>=0.10,<0.13" in PROJECT["project"]["dependencies"]
  assert low <= tuple(map(int, version("jax").split(".")[:2])) < high


@pytest.mark.slow
def test_wheel_holds_the_whole_package(tmp_path):
  source = tmp_path / "source"
  source.mkdir()
  for name in ("pyproject.toml", "README.md", "LICENSE"):
    (source / name).write_bytes((ROOT / name).read_bytes())
  files = [p for p in (ROOT / "posx").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
  for path in files:
    copy = source / path.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes())
  done = subprocess.run(
    [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path), str(source)],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  (wheel,) = tmp_path.glob("posx-*.whl")
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
    (metadata,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    archive.extractall(tmp_path / "site")
  assert {str(path.relative_to(ROOT)) for path in files} <= names
  assert not [name for name in names if name.startswith(("tests/", "experiments/", "configs/"))]
  assert "License-Expression: Apache-2.0" in metadata and any(name.endswith("licenses/LICENSE") for name in names)

  code = "import posx, pathlib; print(posx.__version__, pathlib.Path(posx.__file__).parent, posx.encodings.make('rope'))"
  environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
  seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True).stdout
  assert seen.startswith(f"{posx.__version__} {tmp_path / 'site' / 'posx'} RoPE(")
