"""Where arrays of a training run lie: batches shared out over all devices, parameters and the optimiser's state over some of them.

A mesh has the axes 'data' and 'model'. Each of its devices has its own rows of the batch. Parameters, gradients and moments are
cut into as many pieces as 'model' is long and gathered for the forward pass only; along 'data' they are the same everywhere.
With several hosts every process makes the whole batch, which is a function of the step, and keeps its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from posx.errors import UserError

AXES = ("data", "model")

_LEAST = 1024
"""Smaller arrays are not worth gathering."""


def make(shape: Sequence[int] = (), axis_type: AxisType = AxisType.Auto) -> Mesh:
  """All devices of all processes.

  Args:
    shape: (data, model); () for all in 'data'.
    axis_type: how sharding is seen by the program; both work.

  Raises:
    UserError: if the shape is not that of the devices.
  """
  devices = jax.devices()
  shape = tuple(shape) or (len(devices), 1)
  if len(shape) != 2 or math.prod(shape) != len(devices):
    raise UserError(
      f"config.train.mesh={shape} is (data, model), and its product must be the {len(devices)} devices of this run; () is all in data"
    )
  return jax.make_mesh(shape, AXES, axis_types=(axis_type,) * 2, devices=devices)


def spec(shape: Sequence[int], mesh: Mesh) -> P:
  """How an array is cut over 'model': its longest axis that this divides, or not at all."""
  n = mesh.shape["model"]
  fitting = [axis for axis, size in enumerate(shape) if size % n == 0]
  if n == 1 or math.prod(shape) < _LEAST or not fitting:
    return P()
  axis = max(fitting, key=lambda axis: shape[axis])
  return P(*(None,) * axis, "model")


def specs(tree: Any, mesh: Mesh) -> Any:
  """`spec` of each array (or shape) of a tree."""
  return jax.tree.map(lambda leaf: spec(leaf.shape, mesh), tree)


def shardings(tree: Any, mesh: Mesh) -> Any:
  """The shardings of a tree of parameters or of optimiser state."""
  return jax.tree.map(lambda leaf: NamedSharding(mesh, spec(leaf.shape, mesh)), tree)


def put(tree: Any, mesh: Mesh) -> Any:
  """Host arrays, the same in every process -> cut as `spec` says."""
  return jax.tree.map(lambda leaf: _placed(np.asarray(leaf), NamedSharding(mesh, spec(np.shape(leaf), mesh))), tree)


def place(batch: Mapping[str, Any], mesh: Mesh, accumulate: int) -> dict[str, Any]:
  """Arrays [b, ...] on the host -> [accumulate, b / accumulate, ...] on the devices, rows shared out."""
  sliced = {name: np.reshape(x, (accumulate, -1, *np.shape(x)[1:])) for name, x in batch.items()}
  return {name: _placed(x, NamedSharding(mesh, P(None, AXES))) for name, x in sliced.items()}


def _placed(x: np.ndarray, sharding: NamedSharding) -> jax.Array:
  if jax.process_count() == 1:
    return jax.device_put(x, sharding)
  return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def gather(shards: Any, cuts: Any) -> Any:
  """Inside `shard_map`: pieces -> whole arrays. Its gradient adds up and cuts again."""
  return jax.tree.map(lambda x, cut: jax.lax.all_gather(x, "model", axis=len(cut) - 1, tiled=True) if len(cut) else x, shards, cuts)


def add_up(slopes: Any, cuts: Any) -> Any:
  """Inside `shard_map`: what each device has found -> the sum over all devices, cut like the parameters."""
  return jax.tree.map(lambda x, cut: jax.lax.psum(x, "data" if len(cut) else AXES), slopes, cuts)


def on_host(tree: Any) -> Any:
  """Whole arrays for the host, wherever their pieces are; every process of the run calls this."""
  from jax.experimental import multihost_utils

  def whole(x):
    return x if x.is_fully_addressable or x.is_fully_replicated else multihost_utils.process_allgather(x, tiled=True)

  return jax.tree.map(whole, tree)
