"""Between the libraries: the same inputs for all, posx by its public functions, PyTorch's tensors as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

H, C, D = 4, 64, 256
"""Heads, channels of a head, channels of the model."""


def normal(*shape: int, seed: int = 0) -> np.ndarray:
  """Standard normal float32 numbers, the same on every machine."""
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def queries_keys(t: int, h: int = H, c: int = C) -> tuple[np.ndarray, np.ndarray]:
  """q, k [h t c]."""
  q, k = normal(2, h, t, c, seed=t)
  return q, k


def tensor(x: Any) -> Any:
  """As a tensor of its own."""
  import torch

  return torch.from_numpy(np.array(x))


def array(x: Any) -> np.ndarray:
  """A tensor as an array; bfloat16 widened."""
  return x.detach().float().numpy()


def encoding(name: str, extension: str = "", **fields: Any) -> Any:
  """One of the catalogue; with `extension`, the fields are those of the extension."""
  from posx import encodings, extensions

  if not extension:
    return encodings.make(name, **fields)
  return extensions.apply(extensions.make(extension, **fields), encodings.make(name))


def turned(made: Any, x: np.ndarray, positions: np.ndarray, train_length: int = 0) -> np.ndarray:
  """What posx makes of queries x [h t c]; the same dtype."""
  import jax
  import jax.numpy as jnp

  from posx import Dims
  from posx.attention import query_key

  h, _, c = x.shape
  constants = made.constants(Dims(h, c, h * c, train_length), int(positions.max()) + 1)
  rows = jnp.moveaxis(jnp.asarray(x), 0, 1)[None]
  q, _ = query_key(rows, rows, positions=jnp.asarray(positions), encoding=made, params={}, constants=jax.tree.map(jnp.asarray, constants))
  return np.asarray(jnp.moveaxis(q[0], 1, 0).astype(jnp.float32))


def weights(made: Any, params: Any, q: np.ndarray, k: np.ndarray, causal: bool = True, start: int = 0, x: Any = None) -> np.ndarray:
  """What posx attends to: the softmax [h t u], read off by giving key j the value e_j. The queries are the last of the keys.

  `x` [t d] is the layer's input, for encodings that look at it.
  """
  import jax
  import jax.numpy as jnp

  import posx
  from posx.attention import token_features

  (h, t, c), u = q.shape, k.shape[1]
  rows = [jnp.moveaxis(jnp.asarray(x), 0, 1)[None] for x in (q, k)]
  values = jnp.broadcast_to(jnp.eye(u)[None, :, None], (1, u, h, u))
  positions = np.arange(start, start + u, dtype=np.int32)
  how = {"encoding": made, "params": jax.tree.map(jnp.asarray, params)}
  features = {}
  if x is not None:
    made_of_x, _ = token_features(x[None], positions=positions, segments=None, constants={}, **how)
    features = {"q_features": made_of_x, "k_features": made_of_x}
  out = posx.attend(
    *rows, values, q_positions=positions[u - t :], k_positions=positions, causal=causal, dims=posx.Dims(h, c, D, u), **how, **features
  )
  return np.asarray(jnp.moveaxis(out[0], 1, 0))


def torch_weights(scores: Any) -> np.ndarray:
  """PyTorch's causal softmax of scores [h t u]."""
  import torch

  t, u = scores.shape[-2:]
  future = torch.ones(t, u, dtype=torch.bool).triu(u - t + 1)
  return array(torch.softmax(scores.float().masked_fill(future, float("-inf")), dim=-1))
