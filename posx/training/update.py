"""One update of the parameters, on all devices of a mesh: each has its share of the batch and its piece of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from posx.config import ConfigDict
from posx.errors import UserError
from posx.training import mesh as meshes
from posx.training import optimiser
from posx.training.follow import STOP

Batch = Mapping[str, Any]


class State(NamedTuple):
  """What an update changes; float32."""

  params: Any
  optimizer: Any


def check_batch(config: ConfigDict, mesh: Mesh) -> None:
  """Raises UserError unless every device gets as many rows of every slice of the batch."""
  train = config.train
  if train.batch_size % (train.accumulate * mesh.size):
    slices = f" x accumulate={train.accumulate}" if train.accumulate > 1 else ""
    raise UserError(f"config.train.batch_size={train.batch_size} must be divisible by {mesh.size} devices{slices}")


def _loss_sum(model: Any, params: Any, batch: Batch) -> jax.Array:
  extra = {name: batch[name] for name in ("positions", "segments") if name in batch}
  losses = model.apply(params, batch["tokens"], batch["targets"], **extra, method="token_losses")
  return jnp.sum(losses * batch["weights"])


def _shared(function: Callable, mesh: Mesh, cuts: Any, out: Any) -> Callable:
  # Attention kernels are opaque to XLA's partitioner, which would gather the batch; mapped by hand they never see it.
  # The result is a sum over devices, made inside.
  return jax.shard_map(function, mesh=mesh, in_specs=(cuts, P(None, meshes.AXES)), out_specs=out, check_vma=False)


def gradients(model: Any, mesh: Mesh) -> Callable[[Any, Batch], tuple[jax.Array, Any]]:
  """(params, placed batch) -> (mean loss over the weighted tokens of the whole batch, its gradient, cut like the parameters).

  Slices are summed before the division by the weight of the whole batch, so slicing changes nothing but rounding.
  """

  def function(params, batch):
    cuts = meshes.specs(params, mesh)

    def local(params, batch):
      def add(total, piece):
        loss = lambda p: _loss_sum(model, meshes.gather(p, cuts), piece)
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params)), None

      zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
      (loss, slope), _ = jax.lax.scan(add, zero, batch)
      loss, weight = jax.lax.psum((loss, jnp.sum(batch["weights"])), meshes.AXES)
      return jax.tree.map(lambda x: x / weight, (loss, meshes.add_up(slope, cuts)))

    return _shared(local, mesh, cuts, (P(), cuts))(params, {name: x for name, x in batch.items() if name != STOP})

  return function


def mean_loss(model: Any, mesh: Mesh) -> Callable[[Any, Batch], tuple[jax.Array, jax.Array]]:
  """Compiled (params, placed batch) -> (sum of the weighted losses, sum of the weights)."""

  def function(params, batch):
    cuts = meshes.specs(params, mesh)

    def local(params, batch):
      params = meshes.gather(params, cuts)
      sums = jax.lax.map(lambda piece: _loss_sum(model, params, piece), batch)
      return jax.lax.psum((jnp.sum(sums), jnp.sum(batch["weights"])), meshes.AXES)

    return _shared(local, mesh, cuts, P())(params, batch)

  return jax.jit(function)


def make_update(model: Any, config: ConfigDict, mesh: Mesh) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
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
    if STOP in batch:
      metrics[STOP] = jnp.sum(batch[STOP])
    return State(params, optimizer), metrics

  out = (meshes.shardings(shapes(model, config), mesh), NamedSharding(mesh, P()))
  return jax.jit(update, donate_argnums=0, out_shardings=out)


def _start(model: Any, config: ConfigDict) -> Callable[[jax.Array], State]:
  def start(key):
    params = model.init(key, jnp.zeros((1, config.train.length), jnp.int32))
    return State(params, optimiser.make(config.train).init(params))

  return start


def initial(model: Any, config: ConfigDict, mesh: Mesh) -> State:
  """Fresh parameters from config.seed and the optimiser's first state, the same for any mesh."""
  out = meshes.shardings(shapes(model, config), mesh)
  return jax.jit(_start(model, config), out_shardings=out)(jax.random.key(config.seed))


def shapes(model: Any, config: ConfigDict) -> State:
  """Shapes and dtypes of the state, without computing it."""
  return jax.eval_shape(_start(model, config), jax.random.key(0))
