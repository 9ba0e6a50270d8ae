"""Names to objects: what is known, what is refused, what it costs to ask."""

import dataclasses
import subprocess
import sys

import pytest

from posx import encodings, extensions
from posx.encodings.base import Encoding
from posx.errors import UserError


@dataclasses.dataclass(frozen=True)
class Mine(Encoding):
  """An encoding that lives outside posx."""

  strength: float = 1.0
  sizes: tuple[int, ...] = ()


def test_catalogue_is_a_dictionary_of_classes():
  assert encodings.CATALOGUE["rope"].__name__ == "RoPE"
  assert all(issubclass(cls, Encoding) and dataclasses.is_dataclass(cls) for cls in encodings.CATALOGUE.values())
  assert len(encodings.CATALOGUE) == len(dict(encodings.CATALOGUE)) and "rope" in encodings.CATALOGUE
  assert "alibi" in repr(encodings.CATALOGUE)


def test_make_sets_fields_and_keeps_defaults():
  made = encodings.make("rope", base=500000, layout="interleaved")
  assert made.base == 500000.0 and isinstance(made.base, float) and made.layout == "interleaved" and made.rotary_dim == 0


def test_encoding_from_elsewhere(monkeypatch):
  monkeypatch.setitem(sys.modules, "somewhere", sys.modules[__name__])
  assert encodings.make("somewhere:Mine", strength=2, sizes=[1, 2]) == Mine(2.0, (1, 2))


@pytest.mark.parametrize(
  ("name", "fields", "match"),
  [
    ("rop", {}, r"unknown encoding 'rop'; did you mean 'rope'\? known: nope, .*package.module:Class"),
    ("nowhere:Thing", {}, "cannot be imported"),
    ("posx.encodings.base:Nothing", {}, "cannot be imported"),
    ("posx.encodings.alibi:slopes", {}, "must be a frozen dataclass"),
    ("rope", {"bas": 1e5}, r"unknown field of rope 'bas'; did you mean 'base'\? known: base, rotary_dim, layout"),
    ("rope", {"scaling": None}, "unknown field of rope 'scaling'"),
    ("alibi", {"slope": 1.0}, "alibi has no fields, got 'slope'"),
    ("rope", {"base": float("nan")}, "rope.base expects a finite number"),
    ("rope", {"base": float("inf")}, "rope.base expects a finite number"),
    ("rope", {"base": "1e4"}, "rope.base expects float, got the text '1e4'"),
    ("rope", {"base": True}, "rope.base expects a finite number, got True"),
    ("rope", {"base": None}, "rope.base needs a value"),
    ("rope", {"rotary_dim": 4.0}, "rope.rotary_dim expects a whole number"),
    ("rope", {"layout": "neox"}, "known: half, interleaved"),
    ("rope", {"layout": 3}, "rope.layout expects a text"),
    ("t5", {"causal": 1}, "t5.causal expects true or false"),
  ],
)
def test_refusals(name, fields, match):
  with pytest.raises(UserError, match=match):
    encodings.make(name, **fields)


def test_tuples_of_texts_are_not_numbers(monkeypatch):
  monkeypatch.setitem(sys.modules, "somewhere", sys.modules[__name__])
  for sizes in (["1"], "1,2", [1.5]):
    with pytest.raises(UserError, match="sizes"):
      encodings.make("somewhere:Mine", sizes=sizes)


def test_names_are_known_without_importing_jax():
  code = (
    "import sys; from posx import encodings, extensions; list(encodings.CATALOGUE), list(extensions.CATALOGUE); print('jax' in sys.modules)"
  )
  assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


BLOCKED = """
import sys

class Blocker:
  def find_spec(self, name, path=None, target=None):
    if name.split('.')[0] in {'flax', 'ml_collections', 'optax', 'orbax', 'tensorflow_datasets', 'absl'}:
      raise ImportError('blocked: ' + name)

sys.meta_path.insert(0, Blocker())
import jax, jax.numpy as jnp, numpy as np
from posx import encodings, extensions
from posx.encodings.base import Dims

dims = Dims(2, 8, 16, 8)
for name in encodings.CATALOGUE:
  made = encodings.make(name)
  made.init(jax.random.key(0), dims), made.constants(dims, 8)
for name, cls in extensions.CATALOGUE.items():
  if name != 'longrope':
    extensions.make(name)
extended = extensions.apply(extensions.make('yarn', factor=4.0), encodings.make('rope'))
p = extended.prepare({}, extended.constants(dims, 32))
print(extended.on_query_key(p, jnp.ones((2, 8)), jnp.ones((2, 8)), jnp.arange(2), jnp.arange(2))[0].shape)
"""


def test_runs_without_flax_or_a_config_library():
  done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert done.stdout.strip() == "(2, 8)"


def test_extensions_are_listed():
  assert {"pi", "ntk", "dynamic_ntk", "ntk_by_parts", "yarn", "dynamic_yarn", "longrope", "llama3", "abf", "proportional"} <= set(
    extensions.CATALOGUE
  )
