"""The error of cosines and sines at every position up to 1,048,575, of posx and of peers, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance import bridge, definitions

UP_TO = (4095, 32767, 131071, 1048575)
CHANNELS = 128
CLAIM = 1e-6
STEP = 1 << 14


def posx(base: float) -> Callable[[np.ndarray], np.ndarray]:
  """RoPE of a vector whose pairs are all (1, 0) is (cosines, sines)."""
  import jax
  import jax.numpy as jnp

  from posx import Dims
  from posx.attention import query_key

  made = bridge.encoding("rope", base=base)
  constants = jax.tree.map(jnp.asarray, made.constants(Dims(1, CHANNELS, CHANNELS, 0), UP_TO[-1] + 1))
  x = jnp.repeat(jnp.array([1.0, 0.0]), CHANNELS // 2) * jnp.ones((1, STEP, 1, 1))
  return jax.jit(lambda positions: query_key(x, x, positions=positions, encoding=made, params={}, constants=constants)[0][0, :, 0])


def transformers(base: float) -> Callable[[np.ndarray], np.ndarray]:
  import torch
  from transformers import LlamaConfig
  from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

  rope = {"rope_type": "default", "rope_theta": base}
  model = LlamaRotaryEmbedding(LlamaConfig(hidden_size=CHANNELS, num_attention_heads=1, rope_parameters=rope))

  def run(positions: np.ndarray) -> np.ndarray:
    cos, sin = model(torch.zeros(1), torch.tensor(positions)[None])
    return bridge.array(torch.cat([cos[0, :, : CHANNELS // 2], sin[0, :, : CHANNELS // 2]], dim=-1))

  return run


def _lucidrains(model: Any) -> Callable[[np.ndarray], np.ndarray]:
  import torch

  def run(positions: np.ndarray) -> np.ndarray:
    made = model(torch.tensor(positions))
    angles = (made[0][0] if isinstance(made, tuple) else made)[:, ::2]
    return bridge.array(torch.cat([angles.cos(), angles.sin()], dim=-1))

  return run


def x_transformers(base: float) -> Callable[[np.ndarray], np.ndarray]:
  from x_transformers.x_transformers import RotaryEmbedding

  return _lucidrains(RotaryEmbedding(CHANNELS, base=base))  # type: ignore[arg-type]


def rotary_embedding_torch(base: float) -> Callable[[np.ndarray], np.ndarray]:
  from rotary_embedding_torch import RotaryEmbedding

  return _lucidrains(RotaryEmbedding(CHANNELS, theta=base))  # type: ignore[arg-type]


LIBRARIES = {
  "posx": posx,
  "transformers": transformers,
  "x-transformers": x_transformers,
  "rotary-embedding-torch": rotary_embedding_torch,
}
BASES = (1e4, 5e5)


def errors(base: float) -> dict[str, list[float]]:
  """Library -> the largest error up to each position of UP_TO: posx at all of them, peers at the last 16,384, where theirs is largest."""
  inv_freq = definitions.frequencies(CHANNELS, base)
  runs = {name: make(base) for name, make in LIBRARIES.items()}
  worst = {name: [0.0] * len(UP_TO) for name in runs}
  for start in range(0, UP_TO[-1] + 1, STEP):
    positions = np.arange(start, start + STEP)
    angles = positions[:, None] * inv_freq
    exact = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    last = any(start <= n < start + STEP for n in UP_TO)
    for name, run in runs.items():
      if name == "posx" or last:
        away = np.abs(np.asarray(run(positions)) - exact).max(axis=1)
        for column, n in enumerate(UP_TO):
          worst[name][column] = max(worst[name][column], float(away[: max(n - start + 1, 0)].max(initial=0.0)))
  return worst
