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


@pytest.mark.parametrize("block", [None, (8, 8)])
def test_inside_a_checked_shard_map(block):
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  q, k, v, d = arrays()
  how = {"encoding": encodings.make("kerple"), "q_positions": np.arange(T), "k_positions": np.arange(T)}
  params = how["encoding"].init(jax.random.key(1), posx.Dims(HEADS, 16, HEADS * 16, T))
  plain = lambda q, k, v: posx.attend(q, k, v, params=params, plan="tiled", block=block, **how)
  spec = jax.sharding.PartitionSpec("data")
  mapped = jax.shard_map(plain, mesh=mesh, in_specs=spec, out_specs=spec)
  f = lambda f: jax.jit(jax.value_and_grad(lambda *x: (f(*x) * d).sum(), (0, 1, 2)))(q, k, v)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), f(mapped), f(plain))


@pytest.mark.parametrize("block", [None, (8, 8)])
def test_products_with_second_derivatives(block):
  """Forward over reverse; the weights are made from bits, which have no derivative of their own."""
  q = jax.random.normal(jax.random.key(0), (1, 20, 1, 8))
  how = {"encoding": encodings.make("nope"), "params": {}, "q_positions": np.arange(20), "k_positions": np.arange(20)}

  def product(plan, block=None):
    f = lambda q: (posx.attend(q, q + 1, jnp.sin(q), plan=plan, block=block, **how) ** 2).sum()
    return jax.jit(lambda q: jax.jvp(jax.grad(f), (q,), (jnp.ones_like(q),))[1])(q)

  expected = product("dense")
  assert jnp.abs(expected).max() > 0.1
  np.testing.assert_allclose(product("tiled", block), expected, atol=2e-5)


@pytest.mark.parametrize("block", [None, (8, 8)])
@pytest.mark.parametrize("name", ["kerple", "shaw"])
def test_where_numbers_are_64_bits_wide(name, block):
  with jax.enable_x64(True):
    encoding, dims = encodings.make(name), posx.Dims(2, 8, 16, 20)
    wide = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)
    params = wide(encoding.init(jax.random.key(0), dims))
    q = wide(jax.random.normal(jax.random.key(1), (1, 20, 2, 8)))
    where = {"q_positions": np.arange(20), "k_positions": np.arange(20), "encoding": encoding}

    def gradients(plan, block=None):
      f = lambda q, params: (posx.attend(q, q, q, params=params, plan=plan, block=block, **where) ** 2).sum()
      return jax.jit(jax.grad(f, (0, 1)))(q, params)

    found = gradients("tiled", block)
    assert all(x.dtype == jnp.float64 for x in jax.tree.leaves(found))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, gradients("dense"))
