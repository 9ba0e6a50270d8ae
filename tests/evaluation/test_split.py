"""Windows shared out over devices, and long ones cut over them, have the losses that one device finds."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, jax, numpy as np
from posx import encodings
from posx.decoder import Decoder
from posx.evaluation import losses
from posx.evaluation.windows import place

assert jax.device_count() == 8
documents = np.random.default_rng(0).integers(0, 64, (11, 129)).astype(np.int32)
tokens = documents[:1]
windows = place(128, 128, 128)
for name in sys.argv[1:]:
  model = Decoder(64, 2, 16, 2, train_length=128, encoding=encodings.make(name))
  params = model.init(jax.random.key(0), tokens[:, :8])
  assert losses.mesh_of(model, 1, 128) is None
  one = losses.window_losses(model, params, tokens, windows)
  losses._SPLIT_FROM = 128
  assert losses.mesh_of(model, 1, 128).shape == {"context": 8} and losses.mesh_of(model, 1, 132) is None
  split = losses.window_losses(model, params, tokens, windows)
  assert one.shape == split.shape == (1, 1, 128) and len(set(one.ravel())) > 100
  np.testing.assert_allclose(split, one, atol=1e-5, err_msg=name)
  last = losses.window_losses(model, params, tokens, windows, scored=20)
  np.testing.assert_allclose(last[..., -20:], one[..., -20:], atol=1e-5)
  assert np.isnan(last[..., :-20]).all()
  losses._SPLIT_FROM = 16384
  assert losses.mesh_of(model, 3, 128).shape == {"rows": 3} and losses.mesh_of(model, 11, 128).shape == {"rows": 8}
  assert losses.mesh_of(model, 4, 16384).shape == {"context": 8} and losses.mesh_of(model, 5, 16384).shape == {"rows": 5}
  assert losses.chips_of(model, 3, 128) == 1  # these are the cores of one
  for n in (3, 11):  # 11 is 8 and 3 more
    shared = losses.window_losses(model, params, documents[:n], windows, scored=20)
    whole = np.concatenate([losses.window_losses(model, params, documents[m : m + 1], windows, scored=20) for m in range(n)])
    np.testing.assert_allclose(shared, whole, atol=1e-5, err_msg=name)
model = Decoder(64, 2, 16, 2, train_length=128, encoding=encodings.make("forgetting"), context="context")
try:
  model.init(jax.random.key(0), tokens[:, :8])
except ValueError as error:
  assert "sums over the tokens of a sequence, which cannot be cut over devices" in str(error)
else:
  raise AssertionError("a sum was cut")
print("equal")
"""


@pytest.mark.slow
def test_eight_devices_equal_one():
  environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
  # the encodings act on queries and keys, on scores by distance, and on whole rows of scores
  command = [sys.executable, "-c", PROGRAM, "rope", "kerple", "cope"]
  done = subprocess.run(command, env={**environment, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}, capture_output=True, text=True)
  assert done.returncode == 0 and done.stdout.strip() == "equal", done.stderr[-3000:]
