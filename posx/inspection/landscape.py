"""What positions add to the scores of equal tokens, for every distance: the numbers behind the pictures."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posx.attention.dense import NEGATIVE, joined
from posx.attention.features import token_features
from posx.encodings.base import Dims, Encoding, merge, over_heads

DIMS = Dims(num_heads=8, head_dim=32, model_dim=256, train_length=512)
LENGTH = 2048
ROWS = 128


@dataclasses.dataclass(frozen=True)
class Landscape:
  """Of the last rows of attention over `LENGTH` equal tokens.

  Attributes:
    rows: int32 [r], positions of the queries; the last one is the last token.
    added: float32 [h r u], score minus the score without positions; nan where a key is hidden.
    input: float32 [u d], what is added to the input, or None.
    wavelengths: float64 [n], tokens per turn of each pair of channels, slowest last, or None.
    moved: parameters were drawn at random, because as they start they add nothing.
  """

  rows: np.ndarray
  added: np.ndarray
  input: np.ndarray | None
  wavelengths: np.ndarray | None
  moved: bool

  @property
  def kernel(self) -> np.ndarray:
    """[h u]: what is added by distance, seen from the last token."""
    return self.added[:, -1, ::-1]


def of(encoding: Encoding, dims: Dims = DIMS, length: int = LENGTH, params: Any = None, moved: bool = False) -> Landscape:
  """The landscape of an encoding as it starts, or with parameters drawn at random where it starts flat."""
  params = encoding.init(jax.random.key(0), dims) if params is None else params
  length = _served(encoding, dims, length)
  rows = np.unique(np.linspace(0, length - 1, ROWS).astype(np.int32))
  constants = jax.tree.map(jnp.asarray, encoding.constants(dims, length))
  # As arguments: XLA's CPU compiler (jax 0.10.2) gets the product of constant arrays of ones wrong where it fuses it.
  q, k = (jnp.ones((dims.num_heads, n, dims.head_dim)) for n in (len(rows), length))
  added = np.array(_added(encoding.program(), dims, length, params, constants, q, k, jnp.asarray(rows)))
  added[:, ~seen(encoding, dims, rows, length)] = np.nan
  entered = np.array(_entered(encoding.program(), dims, length, params, constants)) if encoding.uses("on_input") else None
  flat = np.nanmax(np.abs(added)) < 1e-6 and entered is None
  if flat and jax.tree.leaves(params) and not moved:
    draw = np.random.default_rng(1)
    return of(encoding, dims, length, jax.tree.map(lambda x: x + 0.3 * draw.normal(size=x.shape).astype(np.float32), params), True)
  return Landscape(rows, added, entered, wavelengths(encoding, dims, length), moved)


def _served(encoding: Encoding, dims: Dims, length: int) -> int:
  try:
    encoding.check(dims, length)
  except ValueError:
    return dims.train_length
  return length


def seen(encoding: Encoding, dims: Dims, rows: np.ndarray, length: int) -> np.ndarray:
  """bool [r u]: the keys that a query may look at."""
  from posx.attention.visibility import visible

  window, sinks = encoding.visibility(dims)
  at = np.arange(length, dtype=np.int32)
  near = np.asarray(visible(rows[None], at[None], causal=True, window=window, q_segments=None, k_segments=None))[0]
  return near | ((at < sinks) & (at <= rows[:, None]))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _added(encoding: Encoding, dims: Dims, length: int, params, constants, q, k, rows):
  at = jnp.arange(length, dtype=jnp.int32)
  p = encoding.prepare(params, constants)
  mine, shared = encoding.heads(p)
  turned = jax.vmap(lambda mine, q, k: encoding.on_query_key(merge(mine, shared), q, k, rows, at))(mine, q, k)
  s = jnp.einsum("htc,huc->htu", *turned, precision="highest") * dims.head_dim**-0.5
  past = rows[:, None] >= at[None, :]
  if not encoding.elementwise:
    s = jnp.where(past, s, NEGATIVE)
  if encoding.uses("features"):
    # Features are made from the input, so tokens differ here: random ones of the size that a norm leaves.
    x = jax.random.normal(jax.random.key(4), (1, length, dims.model_dim))
    made, _ = token_features(x, positions=at, encoding=encoding, params=params, constants=constants)
    p = joined(encoding, p, {"query": jax.tree.map(lambda x: x[0, rows], made), "key": jax.tree.map(lambda x: x[0], made)})
  s = (encoding.on_scores if encoding.mixes_heads else over_heads(encoding))(p, s, *turned, rows, at)
  return jnp.where(past, s - dims.head_dim**0.5, jnp.nan)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _entered(encoding: Encoding, dims: Dims, length: int, params, constants):
  p = encoding.prepare(params, constants)
  return encoding.on_input(p, jnp.zeros((length, dims.model_dim)), jnp.arange(length, dtype=jnp.int32))


def wavelengths(encoding: Encoding, dims: Dims, length: int) -> np.ndarray | None:
  """Tokens per turn of each pair of channels, for an encoding whose constants hold inverse frequencies; inf for one that stands still."""
  constants = encoding.constants(dims, length)
  if np.ndim(constants.get("inv_freq", 0.0)) != 1:
    return None
  with np.errstate(divide="ignore"):
    return 2 * np.pi / np.asarray(constants["inv_freq"], np.float64) * float(constants.get("interpolation", 1.0))


def decay(kernel: np.ndarray, tolerance: float = 1e-4) -> int:
  """The distance up to which no head's curve [h u] ever rises; 0 if one rises at once."""
  rises = (np.diff(kernel, axis=1) > tolerance).any(0)
  return int(np.argmax(rises)) if rises.any() else kernel.shape[1] - 1
