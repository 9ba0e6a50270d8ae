"""What importing costs, and what it needs: measured in fresh interpreters."""

import subprocess
import sys

import pytest

BLOCK = """
import sys

class Blocker:
  def find_spec(self, name, path=None, target=None):
    if name.split('.')[0] in {'flax', 'ml_collections', 'optax', 'orbax', 'tensorflow_datasets', 'matplotlib', 'rich'}:
      raise ImportError('blocked: ' + name)

sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> str:
  """What a fresh interpreter prints."""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return done.stdout.strip()


def test_import_posx_imports_nothing_else():
  loaded = run(
    "import sys; before = set(sys.modules); import posx; posx.__version__, dir(posx); print(*sorted(set(sys.modules) - before))"
  ).split()
  assert "posx" in loaded
  assert not {"jax", "numpy", "flax", "ml_collections", "optax", "orbax", "matplotlib"} & set(loaded), loaded


@pytest.mark.parametrize("name", ["config", "study", "errors", "cli", "encodings", "extensions", "data"])
def test_what_commands_read_first_does_not_import_jax(name):
  assert run(f"import sys, posx.{name}; print('jax' in sys.modules)") == "False"


def test_public_names_are_what_they_say():
  code = """
import posx, posx.attention, posx.encodings.base, posx.encodings, posx.extensions
assert posx.attend is posx.attention.attend and posx.bias_matrix is posx.attention.bias_matrix
assert posx.Dims is posx.encodings.base.Dims and posx.Encoding is posx.encodings.base.Encoding
missing = [name for name in posx.__all__ if name not in dir(posx) or getattr(posx, name) is None]
print(missing)
"""
  assert run(code) == "[]"


@pytest.mark.parametrize("name", ["attendd", "_private", "numpy"])
def test_unknown_names_are_refused(name):
  import posx

  with pytest.raises(AttributeError, match=f"module 'posx' has no attribute '{name}'"):
    getattr(posx, name)


def test_the_blocker_blocks():
  done = subprocess.run([sys.executable, "-c", BLOCK + "import posx.decoder"], capture_output=True, text=True)
  assert done.returncode != 0 and "blocked: flax" in done.stderr


def test_encodings_extensions_and_attention_run_without_flax_or_a_config_library():
  code = """
import jax, jax.numpy as jnp, numpy as np
import posx

dims = posx.Dims(num_heads=2, head_dim=4, model_dim=8, train_length=8)
q = k = v = jax.random.normal(jax.random.key(0), (1, 8, 2, 4))
positions = np.arange(8, dtype=np.int32)

def attended(encoding):
  params, made = encoding.init(jax.random.key(1), dims), {}
  if encoding.uses("features"):
    x = jax.random.normal(jax.random.key(2), (1, 8, 8))
    constants = encoding.constants(dims, 8)
    features, _ = posx.attention.token_features(x, positions=positions, encoding=encoding, params=params, constants=constants)
    made = {"q_features": features, "k_features": features}
  out = posx.attend(q, k, v, q_positions=positions, k_positions=positions, encoding=encoding, params=params, dims=dims, **made)
  assert out.shape == (1, 8, 2, 4) and bool(jnp.isfinite(out).all()), encoding
  return out

count = 0
for name in posx.encodings.CATALOGUE:
  attended(posx.encodings.make(name))
  count += 1
yarn = posx.extensions.apply(posx.extensions.make('yarn', factor=4.0), posx.encodings.make('rope'))
assert not np.allclose(attended(yarn), attended(posx.encodings.make('rope')), atol=1e-4)
assert posx.bias_matrix(posx.encodings.make('alibi'), {}, positions, positions, 2).shape == (2, 8, 8)
print(count)
"""
  from posx import encodings

  assert run(BLOCK + code) == str(len(encodings.CATALOGUE))
