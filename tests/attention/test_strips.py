"""Strips beside the textbook: grouped heads, more than one strip, one head at a time and all at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posx
from posx import encodings
from posx.attention import strips

T, HEADS, GROUPS = 300, 4, 2


def arrays(dtypes=(jnp.float32,) * 3):
  keys = jax.random.split(jax.random.key(0), 4)
  sizes = ((HEADS, 16), (GROUPS, 16), (GROUPS, 24), (HEADS, 24))
  q, k, v, d = (jax.random.normal(key, (2, T, h, c)) for key, (h, c) in zip(keys, sizes, strict=True))
  return (*(x.astype(dtype) for x, dtype in zip((q, k, v), dtypes, strict=True)), d)


def gradients(f, d, *args):
  """(output, gradients of its product with d)."""
  return jax.jit(jax.value_and_grad(lambda *args: (lambda out: ((out * d).sum(), out))(f(*args)), (0, 1, 2, 3), has_aux=True))(*args)


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("name", ["nope", "kerple", "t5"])
def test_grouped_heads_over_several_strips(name, window, cpu):
  encoding = encodings.make(name)
  dims = posx.Dims(HEADS, 16, HEADS * 16, T)
  params = encoding.init(jax.random.key(1), dims)
  constants = jax.tree.map(jnp.asarray, encoding.constants(dims, T))
  where = {"q_positions": np.arange(T), "k_positions": np.arange(T), "encoding": encoding, "window": window}
  how = {"scale": 16**-0.5, "causal": True, "window": window, "offset": 0, "cpu": cpu}
  q, k, v, d = arrays()
  (_, out), found = gradients(
    lambda q, k, v, p: strips.attention(encoding, encoding.prepare(p, constants), q, k, v, **how), d, q, k, v, params
  )
  (_, exact), wanted = gradients(lambda q, k, v, p: posx.attend(q, k, v, params=p, plan="dense", **where), d, q, k, v, params)
  np.testing.assert_allclose(out, exact, atol=3e-6)
  for mine, textbook in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
    np.testing.assert_allclose(mine, textbook, atol=1e-5 * np.abs(textbook).max())


@pytest.mark.parametrize("dtypes", [("float32", "float32", "bfloat16"), ("bfloat16", "bfloat16", "float32")])
def test_gradients_have_the_types_of_their_arrays(dtypes):
  q, k, v, d = arrays(dtypes)
  how = {"scale": 0.25, "causal": True, "window": None, "offset": 0, "cpu": False}
  _, found = gradients(lambda q, k, v, p: strips.attention(encodings.make("nope"), p, q, k, v, **how), d, q, k, v, {})
  assert tuple(x.dtype for x in found[:3]) == dtypes
