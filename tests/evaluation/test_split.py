"""Windows shared out over devices, and long ones cut over them, have the losses that one device finds."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, jax, numpy as np
from posx import encodings
from posx.decoder import Decoder
from posx.encodings.combine import Chain
from posx.evaluation import losses
from posx.evaluation.windows import place

assert jax.device_count() == 8
documents = np.random.default_rng(0).integers(0, 64, (11, 129)).astype(np.int32)
tokens = documents[:1]
windows = place(128, 128, 128)
for name in sys.argv[1:]:
  model = Decoder(64, 2, 32, 8, num_kv_heads=4, train_length=128, encoding=encodings.make(name))
  params = model.init(jax.random.key(0), tokens[:, :8])
  assert losses.mesh_of(model, 1, 128) is None
  one = losses.window_losses(model, params, tokens, windows)
  losses._SPLIT_FROM = 128
  assert losses.mesh_of(model, 1, 128).shape == {"context": 8} and losses.mesh_of(model, 1, 129) is None
  split = losses.window_losses(model, params, tokens, windows)
  assert one.shape == split.shape == (1, 1, 128) and len(set(one.ravel())) > 100
  np.testing.assert_allclose(split, one, atol=1e-5, err_msg=name)
  last = losses.window_losses(model, params, tokens, windows, scored=21)  # 8 devices find 24
  np.testing.assert_allclose(last[..., -21:], one[..., -21:], atol=1e-5)
  assert np.isnan(last[..., :-21]).all()
  losses._SPLIT_FROM = 16384
  assert losses.mesh_of(model, 3, 128).shape == {"rows": 3} and losses.mesh_of(model, 11, 128).shape == {"rows": 8}
  assert losses.mesh_of(model, 1, 16388).shape == {"context": 4}
  assert losses.mesh_of(model, 9, 16384).shape == {"context": 8} and losses.mesh_of(model, 8, 16384).shape == {"rows": 8}
  assert losses.mesh_of(model, 9, 2048).shape == {"rows": 8}  # 8 at once and 8 more; cut they would be as many
  assert losses.mesh_of(model.clone(num_heads=6, num_kv_heads=2), 1, 32760).shape == {"context": 6}
  assert losses.mesh_of(model.clone(num_heads=6, num_kv_heads=6), 1, 16384).shape == {"context": 2}
  assert losses.mesh_of(model.clone(encoding=encodings.make("dape")), 1, 16384) is None
  assert losses.chips_of(model, 3, 128) == 1  # these are the cores of one
  for n in (3, 11):  # 11 is 8 and 3 more
    shared = losses.window_losses(model, params, documents[:n], windows, scored=20)
    whole = np.concatenate([losses.window_losses(model, params, documents[m : m + 1], windows, scored=20) for m in range(n)])
    np.testing.assert_allclose(shared, whole, atol=1e-5, err_msg=name)

mesh = jax.make_mesh((2,), ("context",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
cut = jax.P(None, "context")
gates = Chain((encodings.make("cable"), encodings.make("forgetting")))
alibi = Decoder(64, 2, 16, 2, train_length=128, encoding=encodings.make("alibi"))


def over_two(model, params, *arguments, **how):
  apply = lambda params, *arguments: model.apply(params, *arguments[:2], positions=arguments[2], segments=arguments[3], **how)
  mapped = jax.shard_map(apply, mesh=mesh, in_specs=(jax.P(), cut, cut, cut, cut), out_specs=cut, check_vma=False)
  return jax.jit(mapped)(params, *arguments)


positions = np.sort(np.random.default_rng(1).integers(0, 500, (1, 128)).astype(np.int32))
segments = np.repeat(np.int32([[0, 1, 2]]), [50, 40, 38], axis=1)
given = tokens[:, :-1], tokens[:, 1:], positions, segments
for whole in (alibi, alibi.clone(encoding=gates, num_heads=4)):
  params = whole.init(jax.random.key(0), tokens[:, :8])
  pieces = whole.clone(context="context")
  one = whole.apply(params, *given[:2], positions=positions, segments=segments)
  np.testing.assert_allclose(over_two(pieces, params, *given), one, atol=1e-5)
  for scored in (20, 100):  # less and more than a piece has
    np.testing.assert_allclose(over_two(pieces, params, *given, scored=scored), one[:, -scored:], atol=1e-5)
pieces = alibi.clone(context="context")
refused = {
  "shared evenly by 2 devices": (pieces, {"scored": 21}),
  "3 heads and 3 key heads cannot be dealt out evenly": (pieces.clone(num_heads=3, head_dim=8), {}),
  "has no cache and no last token": (pieces, {"last": True}),
  "a sequence cannot be cut over 2 devices: DAPE mixes the heads, which are dealt out for the attention; evaluate on one": (
    pieces.clone(encoding=encodings.make("dape")),
    {},
  ),
}
for message, (model, how) in refused.items():
  try:
    over_two(model, params, *given, **how)
  except ValueError as error:
    assert message in str(error), error
  else:
    raise AssertionError(message)
try:
  pieces.init(jax.random.key(0), tokens[:, :8])
except ValueError as error:
  assert "context='context' names no axis here: call the model inside jax.shard_map" in str(error), error
else:
  raise AssertionError("there is no mesh")
print("equal")
"""


@pytest.mark.slow
def test_eight_devices_equal_one():
  environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
  # the encodings act on queries and keys, on scores by distance, on whole rows of scores, on the input, and by sums over tokens
  command = [sys.executable, "-c", PROGRAM, "rope", "kerple", "cope", "sinusoidal", "forgetting"]
  done = subprocess.run(command, env={**environment, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}, capture_output=True, text=True)
  assert done.returncode == 0 and done.stdout.strip() == "equal", done.stderr[-3000:]
