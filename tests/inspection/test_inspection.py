"""What inspect says is true: facts against what was counted by hand, figures against definitions, pictures the same twice."""

import hashlib
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from posx import encodings, extensions
from posx.errors import UserError
from posx.inspection import entry, facts, gallery, landscape, pictures, text
from posx.inspection.landscape import DIMS


def alibi():
  return entry.of("alibi", encodings.make("alibi"))


def test_facts_of_a_class():
  cls = encodings.CATALOGUE["t5"]
  assert facts.idea(encodings.CATALOGUE["alibi"]) == "Subtracts slope x distance from the scores: b(i, j) = -m_h |i - j|."
  assert set(facts.described(cls)) == {"num_buckets", "max_distance", "causal"} and all(facts.described(cls).values())
  assert "Reference" not in facts.formula(cls) and "Attributes" not in facts.formula(cls)


def test_lines_of_code_count_neither_comments_nor_docstrings(tmp_path, monkeypatch):
  (tmp_path / "counted.py").write_text(
    '"""Module.\n\nTwo."""\n\n# why\nimport os\n\n\nclass A:\n  """Doc."""\n\n  x = 1  # here\n  y = """\n  text"""\n'
  )
  monkeypatch.syspath_prepend(tmp_path)
  import counted  # type: ignore[import-not-found]

  assert facts.lines_of_code(counted.A) == 5  # import, class, x, y in two lines
  assert facts.lines_of_code(counted.A, module=False) == 4


def test_the_landscape_of_alibi_is_its_formula():
  """-2^(-h) d for 8 heads."""
  kernel = alibi().landscape.kernel
  expected = -(2.0 ** -np.arange(1, 9))[:, None] * np.arange(2048)
  np.testing.assert_allclose(kernel, expected, atol=2e-4)
  assert landscape.decay(kernel) == 2047 and landscape.decay(np.array([[0.0, -1, -2, -1.5, -3]])) == 2


def test_the_landscape_of_sandwich_is_its_formula():
  """8 / (8 h) sum over 64 pairs of cos(d / 10000^(2i/128)): 64 / h for a token itself."""
  kernel = entry.of("sandwich", encodings.make("sandwich")).landscape.kernel
  total = np.cos(np.arange(2048)[:, None] / 10000.0 ** (np.arange(1, 65) / 64)).sum(1)
  np.testing.assert_allclose(kernel, total / np.arange(1, 9)[:, None], atol=5e-4)


def test_the_wavelengths_of_rope():
  base = 10000.0 ** (np.arange(16) / 16) * 2 * np.pi
  np.testing.assert_allclose(landscape.wavelengths(encodings.make("rope"), DIMS, 2048), base, rtol=1e-6)
  extended = extensions.apply(extensions.make("pi", factor=4.0), encodings.make("rope"))
  np.testing.assert_allclose(landscape.wavelengths(extended, DIMS, 2048), 4 * base, rtol=1e-6)
  assert landscape.wavelengths(encodings.make("alibi"), DIMS, 2048) is None


def test_a_mirror_image_is_the_same_to_a_bias_of_the_distance_between():
  shown = text.show(alibi())
  assert "a sentence and its mirror image are the same" in shown
  assert "b(i, j) = -m_h |i - j|" in shown and "never rises up to distance  2,047" in shown and "Press et al. 2022" in shown
  assert text.verdict(entry.of("nope", encodings.make("nope"))) == "without a mask every sentence is a bag of words"


def test_a_picture_is_the_same_twice(tmp_path):
  sums = [hashlib.sha256(pictures.save(alibi().figure(), tmp_path / name).read_bytes()).hexdigest() for name in "ab"]
  assert sums[0] == sums[1]
  assert 5_000 < (tmp_path / "a.png").stat().st_size < 70_000


def test_gallery_can_show_every_entry():
  """Every extension has settings to be shown with; a heading for each, and a row."""
  shown = [*gallery.entries(), *gallery.extended()]
  assert {e.name for e in shown} == set(encodings.CATALOGUE) | set(extensions.CATALOGUE)
  assert len({gallery.anchor(e) for e in shown}) == len(shown)
  row = gallery.table([alibi()]).splitlines()[-1]
  assert row.startswith("| [`alibi`](#alibi) | Subtracts slope x distance") and "| 0 | scores |" in row


@pytest.mark.parametrize(
  ("arguments", "match"),
  [
    ([], "give --encoding=NAME, or --all"),
    (["--all", "--encoding=rope"], "give --encoding=NAME, or --all"),
    (["--all", "--output=x"], "--all takes --docs=DIR only"),
    (["--encoding=rop"], "did you mean 'rope'"),
    (["--encoding=alibi", "--extension=yarn"], "yarn extends"),
  ],
)
def test_wrong_arguments(arguments, match):
  from experiments.inspect import main

  with pytest.raises(UserError, match=match):
    main(arguments)


@pytest.mark.parametrize("module", ["experiments.inspect", "posx.testing"])
def test_help_needs_no_jax(module):
  code = (
    f"import sys, runpy; sys.argv = ['x', '--help']\ntry:\n  runpy.run_module({module!r}, run_name='__main__')\n"
    "except SystemExit:\n  print('jax' in sys.modules)"
  )
  environment = {**os.environ, "POSX_TUNED": "1"}
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
  assert done.stdout.strip().endswith("False") and "--extension" in done.stdout, done.stderr


def test_the_gallery_is_complete():
  """Every entry has a heading and a picture; no picture is left over, and all of them are small."""
  docs = pathlib.Path(__file__).resolve().parents[2] / "docs"
  page = (docs / "gallery.md").read_text(encoding="utf-8")
  wanted = {f"encoding_{name}.png": f"\n## {name}\n" for name in encodings.CATALOGUE}
  wanted |= {f"extension_{name}.png": f"\n## Extension {name}\n" for name in extensions.CATALOGUE}
  lacking = [picture for picture, heading in wanted.items() if heading not in page or f"(gallery/{picture})" not in page]
  assert not lacking, f"run python -m experiments.inspect --all: {lacking}"
  assert {path.name for path in (docs / "gallery").iterdir()} == set(wanted)
  assert sum(path.stat().st_size for path in (docs / "gallery").iterdir()) < 3e6
