"""Heads or batch rows over two devices give what one device gives: heads are global."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.attention.sharded import attend_sharded
from posx.encodings.base import Dims

PROGRAM = """
import jax, numpy as np, posx
from posx.attention.sharded import attend_sharded

assert jax.device_count() == 2
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.{axes},))
q, k, v = (jax.random.normal(key, (2, 40, 4, 8)) for key in jax.random.split(jax.random.key(0), 3))
where = dict(q_positions=np.arange(40, dtype=np.int32), k_positions=np.arange(40, dtype=np.int32))
for name in ("alibi", "kerple", "rope", "shaw"):
  encoding = posx.encodings.make(name)
  params = encoding.init(jax.random.key(1), posx.Dims(4, 8, 32, 40))
  one = jax.jit(lambda q, k, v, p: posx.attend(q, k, v, encoding=encoding, params=p, plan="tiled", **where))(q, k, v, params)
  for over in ("heads", "batch"):
    shared = lambda q, k, v, p: attend_sharded(q, k, v, mesh=mesh, axis="x", over=over, encoding=encoding, params=p, plan="tiled", **where)
    np.testing.assert_allclose(jax.jit(shared)(q, k, v, params), one, atol=1e-5)
long = [jax.random.normal(key, (1, 1500, 2, 8)) for key in jax.random.split(jax.random.key(0), 3)]  # tiles, and no jit
given = dict(encoding=posx.encodings.make("alibi"), params={{}}, q_positions=np.arange(1500), k_positions=np.arange(1500))
np.testing.assert_allclose(attend_sharded(*long, mesh=mesh, axis="x", **given), posx.attend(*long, **given), atol=1e-5)
fox = posx.encodings.make("forgetting")
params = fox.init(jax.random.key(1), posx.Dims(4, 8, 32, 40))
x = jax.random.normal(jax.random.key(2), (2, 40, 32))
made, _ = posx.attention.token_features(x, positions=where["q_positions"], encoding=fox, params=params, constants={{}})
given = dict(q_features=made, k_features=made, encoding=fox, params=params, plan="tiled", **where)
one = jax.jit(lambda q, k, v: posx.attend(q, k, v, **given))(q, k, v)
for over in ("heads", "batch"):
  two = jax.jit(lambda q, k, v: attend_sharded(q, k, v, mesh=mesh, axis="x", over=over, **given))(q, k, v)
  np.testing.assert_allclose(two, one, atol=1e-5)
try:
  attend_sharded(q[:, :, :3], k[:, :, :3], v[:, :, :3], mesh=mesh, axis="x", encoding=posx.encodings.make("nope"), params={{}}, **where)
except ValueError as error:
  assert "2 devices do not divide 3 key heads" in str(error)
else:
  raise AssertionError("three heads went over two devices")
print("equal")
"""


def test_heads_that_are_mixed_cannot_be_shared_out():
  mesh, at = jax.make_mesh((1,), ("x",)), np.arange(4)
  q, encoding = jnp.zeros((1, 4, 2, 8)), encodings.make("dape")
  params = encoding.init(jax.random.key(0), Dims(2, 8, 16, 4))
  with pytest.raises(ValueError, match="DAPE mixes heads, so all of them must be on one device; share out over='batch'"):
    attend_sharded(q, q, q, mesh=mesh, axis="x", encoding=encoding, params=params, q_positions=at, k_positions=at)


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
def test_two_devices_equal_one(axes):
  environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
  program = textwrap.dedent(PROGRAM.format(axes=axes))
  done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]
  assert done.stdout.strip() == "equal"
