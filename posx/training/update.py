"""One update of the parameters, on all local devices: every device has the parameters and its share of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from posx.config import ConfigDict
from posx.errors import UserError
from posx.training import optimiser

Batch = Mapping[str, Any]


class State(NamedTuple):
  """What an update changes; float32."""

  params: Any
  optimizer: Any


def make_mesh() -> jax.sharding.Mesh:
  """All local devices in one row called 'data'."""
  devices = jax.local_devices()
  return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def check_batch(config: ConfigDict, mesh: jax.sharding.Mesh) -> None:
  """Raises UserError unless every device gets as many rows of every slice of the batch."""
  train = config.train
  if train.batch_size % (train.accumulate * mesh.size):
    slices = f" x accumulate={train.accumulate}" if train.accumulate > 1 else ""
    raise UserError(f"config.train.batch_size={train.batch_size} must be divisible by {mesh.size} devices{slices}")


def place(batch: Batch, mesh: jax.sharding.Mesh, accumulate: int) -> Batch:
  """Arrays [b, ...] on the host -> [accumulate, b / accumulate, ...] on the devices, rows shared out."""
  sliced = {name: np.reshape(x, (accumulate, -1, *np.shape(x)[1:])) for name, x in batch.items()}
  return jax.device_put(sliced, NamedSharding(mesh, P(None, "data")))


def _loss_sum(model: Any, params: Any, batch: Batch) -> jax.Array:
  extra = {name: batch[name] for name in ("positions", "segments") if name in batch}
  losses = model.apply(params, batch["tokens"], batch["targets"], **extra, method="token_losses")
  return jnp.sum(losses * batch["weights"])


def _shared(function: Callable, mesh: jax.sharding.Mesh) -> Callable:
  # Attention kernels are opaque to XLA's partitioner, which would gather the batch; mapped by hand they never see it.
  # The result is a sum over devices, made with psum inside.
  return jax.shard_map(function, mesh=mesh, in_specs=(P(), P(None, "data")), out_specs=P(), check_vma=False)


def gradients(model: Any, mesh: jax.sharding.Mesh) -> Callable[[Any, Batch], tuple[jax.Array, Any]]:
  """(params, placed batch) -> (mean loss over the weighted tokens of the whole batch, its gradient).

  Slices are summed before the division by the weight of the whole batch, so slicing changes nothing but rounding.
  """

  def function(params, batch):
    def add(total, piece):
      return jax.tree.map(jnp.add, total, jax.value_and_grad(lambda p: _loss_sum(model, p, piece))(params)), None

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(add, zero, batch)
    weight = jax.lax.psum(jnp.sum(batch["weights"]), "data")
    return jax.tree.map(lambda x: jax.lax.psum(x, "data") / weight, total)

  return _shared(function, mesh)


def mean_loss(model: Any, mesh: jax.sharding.Mesh) -> Callable[[Any, Batch], tuple[jax.Array, jax.Array]]:
  """Compiled (params, placed batch) -> (sum of the weighted losses, sum of the weights)."""

  def function(params, batch):
    sums = jax.lax.map(lambda piece: _loss_sum(model, params, piece), batch)
    return jax.lax.psum((jnp.sum(sums), jnp.sum(batch["weights"])), "data")

  return jax.jit(_shared(function, mesh))


def make_update(model: Any, config: ConfigDict, mesh: jax.sharding.Mesh) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
  """Compiled (state, placed batch) -> (state, metrics); the old state is given up (donated)."""
  gradient, rule = gradients(model, mesh), optimiser.make(config.train)

  def update(state, batch):
    loss, slope = gradient(state.params, batch)
    change, optimizer = rule.update(slope, state.optimizer, state.params)
    params = optax.apply_updates(state.params, change)
    metrics = {
      "loss": loss,
      "gradient_norm": optax.tree.norm(slope),
      "parameter_norm": optax.tree.norm(params),
    }
    return State(params, optimizer), metrics

  return jax.jit(update, donate_argnums=0, out_shardings=NamedSharding(mesh, P()))


def _start(model: Any, config: ConfigDict) -> Callable[[jax.Array], State]:
  def start(key):
    params = model.init(key, jnp.zeros((1, config.train.length), jnp.int32))
    return State(params, optimiser.make(config.train).init(params))

  return start


def initial(model: Any, config: ConfigDict, mesh: jax.sharding.Mesh) -> State:
  """Fresh parameters from config.seed and the optimiser's first state, on every device."""
  return jax.jit(_start(model, config), out_shardings=NamedSharding(mesh, P()))(jax.random.key(config.seed))


def shapes(model: Any, config: ConfigDict) -> State:
  """Shapes and dtypes of the state, without computing it."""
  return jax.eval_shape(_start(model, config), jax.random.key(0))


def replicate(tree: Any, mesh: jax.sharding.Mesh) -> Any:
  """Host arrays -> the same on every device."""
  return jax.device_put(tree, NamedSharding(mesh, P()))
