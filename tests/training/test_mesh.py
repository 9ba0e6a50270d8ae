"""Training over many devices and processes gives what one device gives; its checkpoints are anybody's."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

PRELUDE = """
import sys, jax, numpy as np
from posx import config as configs, data, decoder
from posx.checkpoint import flatten
from posx.training import mesh as meshes, update

config = configs.default("fire")
config.model.update(num_layers=1, model_dim=32, num_heads=2, mlp_dim=64)
config.train.update(length=16, batch_size=8, steps=4, warmup_steps=1, accumulate=1)
model = decoder.from_config(config, 256)
rng = np.random.default_rng(0)
tokens = rng.integers(0, 256, (8, 17)).astype(np.int32)
batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": rng.random((8, 16)).astype(np.float32)}

def slopes(mesh):
  state = update.initial(model, config, mesh)
  return state, *jax.jit(update.gradients(model, mesh))(state.params, meshes.place(batch, mesh, 1))
"""

DEVICES = """
assert jax.device_count() == 8
axis = getattr(jax.sharding.AxisType, sys.argv[1])
_, loss, expected = slopes(jax.make_mesh((1, 1), meshes.AXES, axis_types=(axis,) * 2, devices=jax.devices()[:1]))
mesh = meshes.make((2, 4), axis)
state, found, slope = slopes(mesh)
found, loss = float(found), float(loss)
assert abs(found - loss) < 1e-5 * loss, (found, loss)
for (path, a), b in zip(flatten(slope).items(), flatten(expected).values(), strict=True):
  np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=path)
cut = {x.shape: x.sharding.shard_shape(x.shape) for x in jax.tree.leaves((state, slope)) if x.size >= 1024}
assert all(np.prod(piece) * 4 == np.prod(whole) for whole, piece in cut.items()) and (1, 32, 128) in cut, cut
norm = sum(float((x**2).sum()) for x in flatten(expected).values()) ** 0.5
state, metrics = update.make_update(model, config, mesh)(state, meshes.place(batch, mesh, 1))
assert abs(metrics["loss"] - loss) < 1e-5 * loss and abs(metrics["gradient_norm"] - norm) < 1e-4 * norm, (metrics, loss, norm)
assert all(x.sharding.shard_shape(x.shape) == cut[x.shape] for x in jax.tree.leaves(state) if x.size >= 1024)
try:
  meshes.make((2, 3))
except ValueError as error:
  assert "config.train.mesh=(2, 3) is (data, model), and its product must be the 8 devices" in str(error)
else:
  raise AssertionError("six devices were eight")
print("equal")
"""


def python(code, *arguments, **environment):
  return subprocess.Popen(
    [sys.executable, "-c", code, *arguments],
    env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", **environment},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
def test_eight_devices_find_the_gradient_of_one(axes):
  process = python(PRELUDE + DEVICES, axes, XLA_FLAGS="--xla_force_host_platform_device_count=8")
  out, err = process.communicate()
  assert process.returncode == 0 and out.strip() == "equal", err[-3000:]


CONFIG = """
from posx import config as configs

def get_config():
  config = configs.default("kerple")
  config.model.update(num_layers=1, model_dim=32, num_heads=2, mlp_dim=64)
  config.data.update(name="text", path=__file__.replace("c.py", "*.txt"))
  config.train.update(length=16, batch_size=4, steps=6, warmup_steps=1, log_every=1, checkpoint_every=4, mesh=(2, 2))
  config.eval.update(lengths=(16,), last_k=8, split="train")
  return config
"""


@pytest.mark.slow
def test_two_processes_train_one_run_and_one_process_reads_it(tmp_path):
  from posx import config as configs
  from posx import data, training
  from posx.checkpoint import flatten, restore_params
  from posx.files import read_rows

  (tmp_path / "c.py").write_text(CONFIG)
  for name in ("one", "two", "three", "four", "five"):
    (tmp_path / f"{name}.txt").write_text(" ".join(f"{name} {n * n}" for n in range(60)))
  config = configs.load(tmp_path / "c.py", {"data.dir": str(tmp_path / "cache")})
  data.prepare(config.data)
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  code = "import sys\nfrom posx import cli\nfrom experiments import train\ncli.run(train.main, sys.argv[1:])"
  shared = [f"--config={tmp_path}/c.py", f"--config.data.dir={tmp_path}/cache", f"--workdir={tmp_path}/run"]
  shared += [f"--coordinator=127.0.0.1:{port}", "--processes=2"]
  flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "POSX_CACHE": str(tmp_path / "cache")}
  pair = [python(code, *shared, f"--process={n}", **flags) for n in range(2)]
  outs = [process.communicate() for process in pair]
  assert [process.returncode for process in pair] == [0, 0], outs[0][1][-2000:] + outs[1][1][-2000:]
  # gloo says itself who is connected, in lines that mix
  assert "4 x cpu" in outs[0][0] and "done: 6 steps" in outs[0][0] and "cpu" not in outs[1][0] and "done" not in outs[1][0]
  assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "done"

  alone = configs.load(tmp_path / "c.py", {"data.dir": str(tmp_path / "cache"), "train.mesh": ()})
  training.train(alone, tmp_path / "alone")
  both = [[row["loss"] for row in read_rows(tmp_path / name / "metrics.jsonl")] for name in ("run", "alone")]
  assert len(both[0]) == 6
  np.testing.assert_allclose(*both, rtol=1e-5)
  for (path, a), b in zip(*(flatten(restore_params(tmp_path / name)[0]).items() for name in ("run", "alone")), strict=True):
    np.testing.assert_allclose(a, b[1], atol=1e-5, err_msg=path)
