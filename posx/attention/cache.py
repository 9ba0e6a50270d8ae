"""Keys and values of tokens already read, for decoding: where each token's slot is, and what may be seen in it.

A slot remembers the position and the document of its token, and masks come from those. So a ring of slots for windowed
attention, left padding, packed documents and empty slots are all the same code, and an unused slot is invisible
whatever it holds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

EMPTY = -1
"""Segment of a slot without a token, and of a padding token; no query belongs to it."""


@dataclasses.dataclass
class Cache:
  """Memory of all layers; a pytree.

  Attributes:
    keys: [layers, b, slots, g, c], as `on_query_key` left them, or raw where the tables depend on the length.
    values: [layers, b, slots, g, e].
    positions: int32 [b, slots].
    segments: int32 [b, slots]; EMPTY where there is no token.
    features: [layers, b, slots, ...] of an encoding that declares some; where layers differ a dictionary by the place in the period,
      '0', '1', ..., of [periods, b, slots, ...].
    sums: [layers, b, ...], or by place in the same way, summed features after the last token read.
  """

  keys: jax.Array
  values: jax.Array
  positions: jax.Array
  segments: jax.Array
  features: Any = dataclasses.field(default_factory=dict)
  sums: Any = dataclasses.field(default_factory=dict)

  def note(self, slots: jax.Array, positions: jax.Array, segments: jax.Array) -> Cache:
    """The same memory with the tokens [b, t] that are about to be written to `slots` [t]."""
    return dataclasses.replace(
      self, positions=self.positions.at[:, slots].set(positions), segments=self.segments.at[:, slots].set(segments)
    )


jax.tree_util.register_dataclass(Cache, ["keys", "values", "positions", "segments", "features", "sums"], [])


def create(
  layers: int, batch: int, slots: int, keys: tuple[int, int], values: tuple[int, int], dtype: Any, features: Any = None, sums: Any = None,
  *, stacked: int = 0,
) -> Cache:  # fmt: skip
  """An empty memory.

  Args:
    layers: of the model.
    batch: rows.
    slots: tokens that it holds.
    keys: (heads, channels).
    values: (heads, channels).
    dtype: of keys and values.
    features: a tree of shapes of one token.
    sums: the same.
    stacked: over how many layers features and sums are stacked, the number of periods where layers differ; 0 for all.
  """
  shape = (layers, batch, slots)
  zeros = lambda tree, shape: jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape), x.dtype), tree or {})
  return Cache(
    jnp.zeros((*shape, *keys), dtype),
    jnp.zeros((*shape, *values), dtype),
    jnp.zeros((batch, slots), jnp.int32),
    jnp.full((batch, slots), EMPTY, jnp.int32),
    zeros(features, (stacked or layers, batch, slots)),
    zeros(sums, (stacked or layers, batch)),
  )


@dataclasses.dataclass(frozen=True)
class Slots:
  """Which slot each token takes, counted on the host.

  Attributes:
    capacity: number of slots.
    ring: tokens overwrite the oldest; without it the capacity is a limit.
    window: tokens that attention looks back to, the query included (ring only).
    sinks: first tokens, which keep their slots (ring only).
  """

  capacity: int
  ring: bool = False
  window: int = 0
  sinks: int = 0

  def __post_init__(self):
    if self.ring and self.capacity < self.window + self.sinks:
      beside = f" and {self.sinks} first tokens" if self.sinks else ""
      raise ValueError(
        f"a ring of {self.capacity} slots cannot hold a window of {self.window}{beside}; give at least {self.window + self.sinks}"
      )

  def take(self, used: int, count: int) -> np.ndarray:
    """int32 [count]: slots of tokens number used .. used + count - 1.

    Raises:
      ValueError: if the cache is full, or one write would overwrite what its own first query still sees.
    """
    index = np.arange(used, used + count)
    if not self.ring:
      if used + count > self.capacity:
        raise ValueError(
          f"the cache holds {self.capacity} tokens, {used} are taken and {count} more do not fit; "
          f"create it with capacity={used + count} or more"
        )
      return index.astype(np.int32)
    most = self.capacity - self.sinks - self.window + 1
    if count > most and used + count > self.capacity:
      raise ValueError(
        f"writing {count} tokens at once into a ring of {self.capacity} slots would overwrite keys inside the window of {self.window}; "
        f"write at most {most} at a time, or give capacity={self.sinks + self.window + count - 1}"
      )
    turning = self.sinks + (index - self.sinks) % (self.capacity - self.sinks)
    return np.where(index < self.sinks, index, turning).astype(np.int32)


# The memory of layers that differ: a dictionary whose keys and values are arrays of one shape, while of the rest each place of a
# period has its own.

_ALIKE = ("keys", "values")


def by_period(memory, periods: int):
  """Keys and values [layers, ...] -> [periods, places, ...]; the rest has that form."""
  return memory | {name: memory[name].reshape(periods, -1, *memory[name].shape[1:]) for name in _ALIKE}


def by_layer(memory):
  """Undoes `by_period`."""
  return memory | {name: memory[name].reshape(-1, *memory[name].shape[2:]) for name in _ALIKE}


def at_place(memory, n: int):
  """Of the memory of one period that of place n."""
  return {name: each[n] if name in _ALIKE else each[str(n)] for name, each in memory.items()}


def by_place(kept):
  """Undoes `at_place`, for all places."""
  alike = {name: jnp.stack([each[name] for each in kept]) for name in _ALIKE}
  return alike | {name: {str(n): each[name] for n, each in enumerate(kept)} for name in kept[0] if name not in _ALIKE}
