"""The entry point: what it refuses and how it says so, unusual integers, length-dependent encodings, heads on several devices."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.attention import attend
from posx.encodings.base import Dims, Encoding


def call(q=(1, 4, 2, 8), k=(1, 4, 2, 8), v=(1, 4, 2, 8), encoding=None, params=None, **how):
  arrays = (jnp.linspace(-1, 1, np.prod(s)).reshape(s) for s in (q, k, v))
  how = {"q_positions": np.arange(q[1]), "k_positions": np.arange(k[1]), **how}
  return attend(*arrays, encoding=encoding or Encoding(), params=params or {}, **how)


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    ({"q": (4, 2, 8)}, r"q, k, v must be \[b t h c\], \[b u g c\], \[b u g e\]; got \(4, 2, 8\)"),
    ({"k": (1, 4, 2, 6)}, r"do not fit: they share b and c"),
    ({"k": (2, 4, 2, 8)}, r"q \(1, 4, 2, 8\), k \(2, 4, 2, 8\) and v \(1, 4, 2, 8\) do not fit"),
    ({"v": (1, 5, 2, 8)}, r"k and v share u and g"),
    ({"q": (1, 4, 3, 8)}, r"2 key heads do not divide 3 query heads"),
    ({"plan": "tilde"}, r"unknown plan 'tilde'; known: auto, dense, tiled, fused"),
    ({"q_positions": np.arange(5)}, r"q_positions must be \[4\] or \[1, 4\], got \(5,\)"),
    ({"k_positions": np.zeros((2, 4), int)}, r"k_positions must be \[4\] or \[1, 4\], got \(2, 4\)"),
    ({"q_positions": np.arange(4.0)}, r"q_positions must be integers, got float64"),
    ({"k_positions": jnp.arange(4, dtype=jnp.bfloat16)}, r"k_positions must be integers, got bfloat16"),
    ({"window": 0}, r"window counts the query itself, so it must be at least 1; got 0"),
    ({"window": -3}, r"at least 1; got -3"),
    ({"q_segments": np.zeros(4, int)}, r"give both q_segments and k_segments, or neither"),
    ({"k_segments": np.zeros(4, int)}, r"give both q_segments and k_segments, or neither"),
    ({"q_segments": np.zeros(3, int), "k_segments": np.zeros(4, int)}, r"q_segments must be \[4\]"),
    ({"q_segments": np.zeros(4), "k_segments": np.zeros(4, int)}, r"q_segments must be integers"),
  ],
)
@pytest.mark.parametrize("plan", ["auto", "tiled"])
def test_refusals_say_what_is_allowed(wrong, message, plan):
  with pytest.raises(ValueError, match=message):
    call(**{"plan": plan, **wrong})


def test_an_encoding_that_does_not_fit_the_head_is_refused():
  with pytest.raises(ValueError, match="rotary_dim=10 exceeds head_dim=8"):
    call(encoding=encodings.make("rope", rotary_dim=10))
  with pytest.raises(ValueError, match="even"):
    call(q=(1, 4, 2, 7), k=(1, 4, 2, 7), v=(1, 4, 2, 7), encoding=encodings.make("rope"))


@pytest.mark.parametrize("plan", ["auto", "dense", "tiled"])
def test_no_queries_or_no_keys_is_an_empty_sum(plan):
  assert call(q=(1, 0, 2, 8), encoding=encodings.make("alibi"), plan=plan).shape == (1, 0, 2, 8)
  out = call(k=(1, 0, 2, 8), v=(1, 0, 2, 5), encoding=encodings.make("alibi"), plan=plan)
  assert out.shape == (1, 4, 2, 5) and not out.any()


@pytest.mark.parametrize("plan", ["auto", "dense", "tiled"])
def test_no_rows_or_values_of_no_channels(plan):
  assert call(q=(0, 4, 2, 8), k=(0, 4, 2, 8), v=(0, 4, 2, 5), encoding=encodings.make("kerple"), plan=plan).shape == (0, 4, 2, 5)
  assert call(v=(1, 4, 2, 0), encoding=encodings.make("kerple"), plan=plan).shape == (1, 4, 2, 0)


def test_length_dependent_encodings_want_to_know_the_length():
  dynamic = extensions.apply(extensions.make("dynamic_ntk", original_length=16), encodings.make("rope"))
  with pytest.raises(ValueError, match=r"pass constants=encoding\.constants"):
    jax.jit(lambda positions: call(encoding=dynamic, q_positions=positions, k_positions=positions))(jnp.arange(4))
  short = call(encoding=dynamic, q_positions=np.arange(4), k_positions=np.arange(4))
  far = call(encoding=dynamic, q_positions=np.arange(4) + 60, k_positions=np.arange(4) + 60)
  assert float(jnp.abs(short - far).max()) > 1e-4  # 64 positions are in play, other frequencies are in force
  plain = call(encoding=encodings.make("rope"), q_positions=np.arange(4), k_positions=np.arange(4))
  np.testing.assert_array_equal(short, plain)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.int8, np.int16, np.int64])
@pytest.mark.parametrize("plan", ["dense", "tiled"])
def test_integers_of_any_kind_count_alike(dtype, plan):
  """Differences of unsigned or narrow integers would wrap around: 0 - 1 is not the future then."""
  pos = np.array([0, 100, 3, 127])
  for traced in (False, True):
    run = lambda positions: call(q_positions=positions, k_positions=positions, plan=plan)
    found = (jax.jit(run) if traced else run)(jnp.asarray(pos.astype(dtype)) if traced else pos.astype(dtype))
    np.testing.assert_allclose(found, call(q_positions=pos, k_positions=pos, plan="dense"), atol=1e-6)


def test_equal_rows_of_positions_are_one_row():
  many = np.stack([np.arange(4)] * 3)
  a = call((3, 4, 2, 8), (3, 4, 2, 8), (3, 4, 2, 8), encoding=encodings.make("alibi"), q_positions=many, k_positions=many)
  b = call((3, 4, 2, 8), (3, 4, 2, 8), (3, 4, 2, 8), encoding=encodings.make("alibi"))
  np.testing.assert_array_equal(a, b)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from posx import encodings
from posx.attention import attend
from posx.encodings.base import Dims

assert len(jax.devices()) == 2
rng = np.random.default_rng(0)
q, k, v = (jnp.asarray(rng.normal(size=(2, 80, 4, 8)), jnp.float32) for _ in range(3))
pos = np.arange(80)
for kind in (AxisType.Auto, AxisType.Explicit):
  mesh = jax.make_mesh((2,), ("heads",), axis_types=(kind,))
  for name in ("alibi", "t5"):
    encoding = encodings.make(name)
    params = encoding.init(jax.random.key(0), Dims(4, 8, 32, 80))
    for plan in ("dense", "tiled"):
      def loss(q, k, v, params):
        out = attend(q, k, v, q_positions=pos, k_positions=pos, encoding=encoding, params=params, plan=plan)
        return (out**2).sum(), out
      run = jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))
      one = run(q, k, v, params)
      try:
        with jax.set_mesh(mesh):
          two = run(*(jax.device_put(x, NamedSharding(mesh, P(None, None, "heads", None))) for x in (q, k, v)), params)
      except ValueError as error:
        assert kind == AxisType.Explicit and "q is shared out over the explicit mesh axis 'heads'; use" in str(error), error
        print(name, plan, "Explicit refused")
        continue
      for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two)):
        np.testing.assert_allclose(a, b, atol=2e-5)
      print(name, plan, kind.name, "same")
"""


def test_heads_are_global_on_two_devices():
  """Slopes and tables of 4 heads shared out over 2 devices are those of one device; explicit axes are refused with a cure."""
  env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run([sys.executable, "-c", SHARDED], env=env, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  for name in ("alibi", "t5"):
    for plan in ("dense", "tiled"):
      assert f"{name} {plan} Auto same" in done.stdout and f"{name} {plan} Explicit refused" in done.stdout


@pytest.mark.parametrize("plan", ["dense", "tiled"])
@pytest.mark.parametrize("name", ["cope", "fire"])
def test_a_second_document_is_attended_as_if_it_were_alone(name, plan):
  """CoPE counts gates along a whole row: those of another document must stay closed."""
  encoding, rng = encodings.make(name), np.random.default_rng(0)
  params = jax.tree.map(lambda x: x + 0.3, encoding.init(jax.random.key(0), Dims(2, 8, 16, 64)))
  if name == "cope":
    params = {"table": jnp.asarray(rng.normal(size=(64, 8)), jnp.float32)}
  q, k, v = (jnp.asarray(rng.normal(size=(1, 12, 2, 8)), jnp.float32) for _ in range(3))
  segments, pos = np.repeat([1, 2], [5, 7]), np.concatenate([np.arange(5), np.arange(7)])
  how = {"encoding": encoding, "params": params, "plan": plan}
  packed = attend(q, k, v, q_positions=pos, k_positions=pos, q_segments=segments, k_segments=segments, **how)
  alone = attend(q[:, 5:], k[:, 5:], v[:, 5:], q_positions=pos[5:], k_positions=pos[5:], **how)
  np.testing.assert_allclose(packed[:, 5:], alone, atol=3e-6)
