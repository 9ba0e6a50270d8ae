"""Checkpoints: what goes in comes out bit for bit, and what cannot is refused by name."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from posx import config as configs
from posx.checkpoint import Checkpoints, flatten, restore_params, unflatten
from posx.errors import CorruptError, UserError
from posx.rundir import RunDir

DATA = {"fingerprint": "f", "seed": 0, "step": 0}


def tree(seed=0, rows=4):
  rng = np.random.default_rng(seed)
  return {"encoding": {"table": rng.standard_normal((rows, 96)).astype(np.float32)}, "norm": {"scale": np.float32([1, np.pi])}}


def optimizer():
  return (np.int32(7), {"encoding": {"table": jnp.full((4, 96), 1e-30)}}, ())


def save(folder, *steps):
  checkpoints = Checkpoints(folder)
  for step in steps:
    checkpoints.save(step, tree(step), optimizer(), configs.default(), DATA)
  return checkpoints


def test_restored_bit_for_bit_with_meta_data(tmp_path):
  save(tmp_path, 3).close()
  flat, meta = Checkpoints(tmp_path).restore(3, "params", "optimizer")
  for name, was in (("params", tree(3)), ("optimizer", optimizer())):
    back = flatten(unflatten(was, flat[name], "x"))
    assert {k: (v.dtype, v.tobytes()) for k, v in back.items()} == {k: (v.dtype, v.tobytes()) for k, v in flatten(was).items()}
  assert meta["step"] == 3
  assert meta["data"] == DATA
  assert meta["config"]["encoding"]["name"] == "rope"


def test_keeps_the_last_two(tmp_path):
  checkpoints = save(tmp_path, 1, 2, 3)
  assert checkpoints.steps() == [2, 3]
  assert checkpoints.latest() == 3


def test_flatten_copies():
  array = np.zeros(3)
  flat = flatten({"a": array})
  array += 1
  assert flat["a"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
  ("like", "message"),
  [
    (tree(rows=6), r"checkpoint: 'encoding/table' has shape \(4, 96\), the model needs \(6, 96\)"),
    ({**tree(), "mlp": {"bias": np.zeros(2)}}, r"checkpoint has no 'mlp/bias' of shape \(2,\), which the model needs"),
    ({"norm": tree()["norm"]}, r"checkpoint has 'encoding/table' of shape \(4, 96\), which the model does not have"),
  ],
)
def test_another_model_is_refused_by_the_name_of_the_parameter(like, message):
  with pytest.raises(UserError, match=message):
    unflatten(like, flatten(tree()), "checkpoint")


def biggest(folder):
  return max((p for p in (folder / "params").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


@pytest.mark.parametrize(
  "damage", [flip, lambda p: p.write_bytes(p.read_bytes()[:100]), lambda p: p.unlink(), lambda p: p.write_bytes(b"")]
)
def test_damage_is_noticed_and_the_step_before_is_named(tmp_path, damage):
  save(tmp_path, 5, 10).close()
  damage(biggest(tmp_path / "10"))
  with pytest.raises(CorruptError, match=rf"checkpoint {tmp_path}/10 (cannot be read|is damaged).*delete that folder to go on from step 5"):
    Checkpoints(tmp_path).restore(10, "params")
  assert flatten(tree(5))["encoding/table"].tobytes() == Checkpoints(tmp_path).restore(5, "params")[0]["params"]["encoding/table"].tobytes()


def test_damage_without_a_step_before(tmp_path):
  save(tmp_path, 5).close()
  flip(biggest(tmp_path / "5"))
  with pytest.raises(CorruptError, match="no earlier step is kept"):
    Checkpoints(tmp_path).restore(5, "params")


def test_a_save_that_was_cut_off_does_not_exist(tmp_path):
  save(tmp_path, 5).close()
  (tmp_path / "10.orbax-checkpoint-tmp-1").mkdir()
  assert Checkpoints(tmp_path).latest() == 5


def test_disk_that_refuses(tmp_path, monkeypatch):
  checkpoints = save(tmp_path, 5)

  def full(*args, **kwargs):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(checkpoints._manager, "save", full)
  with pytest.raises(CorruptError, match=r"checkpoint of step 10 cannot be written to .*No space left on device; free the disk"):
    checkpoints.save(10, tree(), optimizer(), configs.default(), DATA)


def test_params_for_evaluation(tmp_path):
  config = configs.default()
  with RunDir(tmp_path) as run:
    run.acquire(config, {"init_from": ""})
    with pytest.raises(UserError, match=r"has no checkpoint yet; its state is 'not started'"):
      restore_params(tmp_path)
    save(run.checkpoints, 5, 10).close()
  params, back, step = restore_params(tmp_path)
  assert (step, back) == (10, config)
  np.testing.assert_array_equal(params["encoding"]["table"], tree(10)["encoding"]["table"])
  params, _, step = restore_params(tmp_path, 5)
  np.testing.assert_array_equal(params["encoding"]["table"], tree(5)["encoding"]["table"])
  with pytest.raises(UserError, match="has no checkpoint of step 7; it has 5, 10"):
    restore_params(tmp_path, 7)
  with pytest.raises(UserError, match="is not a run folder"):
    restore_params(tmp_path / "none")
