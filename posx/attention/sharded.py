"""Attention over several devices: each has its share of the heads or of the batch.

No communication is needed then. Where the tokens of one long sequence are cut over devices, heads are dealt out for the attention and
tokens again after it, so that every device has the same to do.

On a CPU with n cores, n host devices (`jax_num_cpu_devices`) are the way to use them all: threads inside loops help
little.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from posx.attention.attend import attend, lengths
from posx.encodings.base import Dims, Encoding, merge


def uncut(encoding: Encoding, heads: int, key_heads: int, devices: int) -> str:
  """Why a sequence cannot be cut over so many devices, '' if it can.

  Heads are dealt out evenly for the attention; a key head goes to several devices where there are fewer than these.
  """
  name = type(encoding).__name__
  if encoding.mixes_heads:
    return f"{name} mixes the heads, which are dealt out for the attention"
  even = heads % devices == 0 and (key_heads % devices == 0 or devices % key_heads == 0)
  return "" if even else f"{heads} heads and {key_heads} key heads cannot be dealt out evenly"


def whole(axis: str, t: int, positions: Any, segments: Any) -> tuple[Any, Any, Any]:
  """Inside `shard_map`: (positions of the t tokens here, positions and segments of all tokens of a sequence cut over `axis`).

  Positions that are not given are 0, 1, 2, ..., and known while tracing, so that the attention of every device has a static plan.
  """
  gather = lambda x: lax.all_gather(x, axis, axis=x.ndim - 1, tiled=True)
  segments = None if segments is None else gather(segments)
  if positions is None:
    here = lax.axis_index(axis) * t + jnp.arange(t, dtype=jnp.int32)
    return here, np.arange(t * lax.axis_size(axis), dtype=np.int32), segments
  positions = jnp.asarray(positions)
  return positions, gather(positions), segments


def devices_of(axis: str) -> int:
  """The size of a mesh axis inside `shard_map`."""
  try:
    return lax.axis_size(axis)
  except NameError:
    raise ValueError(f"context={axis!r} names no axis here: call the model inside jax.shard_map over a mesh that has it") from None


@dataclasses.dataclass(frozen=True)
class Dealt:
  """Inside `shard_map`: what is cut over a mesh axis by tokens, cut by heads for the attention instead.

  Groups of heads that share keys are dealt out to and fro, the last device being first in the next turn: slopes let the heads of a
  model look further and further, and those that look far have more to do (`fading`).

  Attributes:
    axis: of the mesh.
    key_heads: of the model.
  """

  axis: str
  key_heads: int

  def by_heads(self, x: Float[Array, "b t h c"]) -> Float[Array, "b nt h/n c"]:
    """All tokens of this device's heads, from all heads of its tokens; where devices are more than key heads, several have the same."""
    size = lax.axis_size(self.axis)
    x = jnp.repeat(x, size // x.shape[2], axis=2) if x.shape[2] < size else x
    mine = lax.all_to_all(self._by_turns(x, 2), self.axis, split_axis=3, concat_axis=1, tiled=True)
    return mine.reshape(*mine.shape[:2], -1, x.shape[3])

  def by_tokens(self, x: Float[Array, "b nt h/n c"]) -> Float[Array, "b t h c"]:
    """The way back."""
    mine = x.reshape(*x.shape[:2], len(self._order), 1, -1, x.shape[3])
    back = lax.all_to_all(mine, self.axis, split_axis=1, concat_axis=3, tiled=True)
    groups = back.reshape(*back.shape[:2], self._order.size, -1, x.shape[3])
    return jnp.take(groups, np.argsort(self._order, axis=None), axis=2).reshape(*back.shape[:2], -1, x.shape[3])

  def own(self, encoding: Encoding, tree: Any) -> Any:
    """Parameters or constants of an encoding, for the heads of this device."""
    mine, shared = encoding.heads(tree)
    device = lax.axis_index(self.axis)
    cut = lambda x: lax.dynamic_index_in_dim(self._by_turns(x, 0), device, 1, keepdims=False).reshape(-1, *x.shape[1:])
    return merge(jax.tree.map(cut, mine), shared)

  def features(self, encoding: Encoding, tree: Any) -> Any:
    """Features of all tokens for this device's heads, from those of its tokens for all heads."""
    mine, shared = encoding.heads(tree)
    flat = lambda x: x.reshape(*x.shape[:3], -1)
    by_heads = lambda x: (dealt := self.by_heads(flat(x))).reshape(*dealt.shape[:3], *x.shape[3:])
    gather = lambda x: lax.all_gather(x, self.axis, axis=1, tiled=True)
    return merge(jax.tree.map(by_heads, mine), jax.tree.map(gather, shared))

  def here(self, positions: Any, t: int) -> Array:
    """Of positions of all tokens those of the t tokens of this device."""
    return lax.dynamic_slice_in_dim(jnp.asarray(positions), lax.axis_index(self.axis) * t, t, axis=-1)

  @property
  def _order(self) -> np.ndarray:
    """Which group goes to which device in which turn [turns devices]."""
    size = lax.axis_size(self.axis)
    return to_and_fro(max(self.key_heads, size), size)

  def _by_turns(self, x, axis: int):
    """The axis of heads, or of key heads, as [turns devices heads]."""
    groups = x.reshape(*x.shape[:axis], self._order.size, -1, *x.shape[axis + 1 :])
    return jnp.take(groups, self._order, axis=axis)


def to_and_fro(groups: int, devices: int) -> np.ndarray:
  """The numbers 0 .. groups - 1 as [turns devices]; every second turn begins with the last device."""
  order = np.arange(groups).reshape(-1, devices)
  order[1::2] = order[1::2, ::-1].copy()
  return order


def last_of(axis: str, x: Array, count: int) -> Array:
  """This device's share [b count/n ..] of the last tokens of a sequence cut over `axis`, from its piece [b t/n ..]."""
  share, piece = count // lax.axis_size(axis), x.shape[1]
  near = x[:, -count:] if count < piece else x
  last = lax.all_gather(near, axis, axis=1, tiled=True)[:, -count:]
  return lax.dynamic_slice_in_dim(last, lax.axis_index(axis) * share, share, axis=1)


def attend_sharded(
  q, k, v, *, mesh: Mesh, axis: str, over: Literal["heads", "batch"] = "heads", encoding: Encoding, params: Any,
  q_positions, k_positions, q_segments=None, k_segments=None, q_features: Any = None, k_features: Any = None,
  constants: Any = None, dims: Dims | None = None, **kwargs: Any,
):  # fmt: skip
  """`attend` with heads or batch rows shared out over one axis of a mesh; same arguments, same result.

  Outside of `jax.jit` every call compiles anew.

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
  # outside of jit JAX does not map rules that skip the gradients of constants
  return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=places_of, out_specs=heads, check_vma=False))(*arguments)
