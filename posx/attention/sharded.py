"""Attention over several devices: each has its share of the heads or of the batch, and no communication is needed; or its share of
the queries of one long sequence, and keys are gathered.

On a CPU with n cores, n host devices (`jax_num_cpu_devices`) are the way to use them all: threads inside loops help
little.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.core
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from posx.attention.attend import attend, lengths
from posx.encodings.base import Dims, Encoding, merge


def gather_keys(axis: str, k, v, positions, segments, features):
  """Inside `shard_map`, of a sequence cut over `axis`: the keys and what belongs to them, of all devices, in their order.

  Each device then attends with its own queries [b t h c] to the keys of the whole sequence. The device with the last queries has
  the most to do in a causal model.

  Args:
    axis: name of the mesh axis over which tokens are cut.
    k, v: [b t g c] of this device.
    positions, segments: int32 [t] or [b t]; segments may be None.
    features: [b t ...], or an empty dictionary.
  """
  tokens = lambda x: jax.lax.all_gather(x, axis, axis=1, tiled=True)
  places = lambda x: jax.lax.all_gather(x, axis, axis=x.ndim - 1, tiled=True)
  k, v, features = jax.tree.map(tokens, (k, v, features))
  return k, v, *jax.tree.map(places, (jax.numpy.asarray(positions), segments)), features


def attend_sharded(
  q, k, v, *, mesh: Mesh, axis: str, over: Literal["heads", "batch"] = "heads", encoding: Encoding, params: Any,
  q_positions, k_positions, q_segments=None, k_segments=None, q_features: Any = None, k_features: Any = None,
  constants: Any = None, dims: Dims | None = None, **kwargs: Any,
):  # fmt: skip
  """`attend` with heads or batch rows shared out over one axis of a mesh; same arguments, same result.

  Args:
    mesh: the devices.
    axis: name of the mesh axis.
    over: 'heads' (of keys and queries alike) or 'batch'.

  Raises:
    ValueError: if the devices do not divide the key heads or the batch, or an encoding that mixes heads would lose some.
  """
  size, count = mesh.shape[axis], k.shape[2] if over == "heads" else q.shape[0]
  if over not in ("heads", "batch"):
    raise ValueError(f"attention is shared out over 'heads' or 'batch', got {over!r}")
  if count % size:
    raise ValueError(
      f"{size} devices do not divide {count} {'key heads' if over == 'heads' else 'rows'}; share out over the other, or use fewer devices"
    )
  if over == "heads" and encoding.mixes_heads:
    raise ValueError(f"{type(encoding).__name__} mixes heads, so all of them must be on one device; share out over='batch'")
  dims = dims or Dims(q.shape[2], q.shape[3], q.shape[2] * q.shape[3], 0)
  if constants is None:
    constants = encoding.constants(dims, lengths(encoding, q_positions, k_positions))

  def by_head(tree):
    mine, shared = encoding.heads(tree)
    share = P(axis) if over == "heads" else P()
    return merge(jax.tree.map(lambda _: share, mine), jax.tree.map(lambda _: P(), shared))

  heads = P(None, None, axis) if over == "heads" else P(axis)
  features = {n: x for n, x in (("q_features", q_features), ("k_features", k_features)) if x is not None}

  def by_feature(tree):
    mine, shared = encoding.heads(tree)
    own = heads if over == "heads" else P(axis)
    return merge(jax.tree.map(lambda _: own, mine), jax.tree.map(lambda _: P() if over == "heads" else P(axis), shared))

  segments = {n: x for n, x in (("q_segments", q_segments), ("k_segments", k_segments)) if x is not None}
  rows = {n: P(axis) if over == "batch" and x.ndim == 2 and x.shape[0] > 1 else P() for n, x in segments.items()}
  # positions known while tracing stay in the closure, where the attention sees their values and chooses a static plan
  given = {"q_positions": q_positions, "k_positions": k_positions}
  moving = {n: x for n, x in given.items() if isinstance(x, jax.core.Tracer) or (x.ndim == 2 and x.shape[0] > 1)}
  fixed = {n: x for n, x in given.items() if n not in moving}
  places = {n: P(axis) if over == "batch" and x.ndim == 2 and x.shape[0] > 1 else P() for n, x in moving.items()}

  def local(q, k, v, params, constants, arrays):
    return attend(q, k, v, encoding=encoding, params=params, constants=constants, dims=dims, **fixed, **arrays, **kwargs)

  of_features = {n: by_feature(tree) for n, tree in features.items()}
  places_of = (heads, heads, heads, by_head(params), by_head(constants), {**rows, **places, **of_features})
  arguments = (q, k, v, params, constants, {**segments, **moving, **features})
  if mesh.explicit_axes:  # there shard_map takes only what lies as it says
    arguments = jax.tree.map(lambda x, place: jax.device_put(x, NamedSharding(mesh, place)), arguments, places_of)
  return jax.shard_map(local, mesh=mesh, in_specs=places_of, out_specs=heads, check_vma=False)(*arguments)
