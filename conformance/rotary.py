"""Comparisons of rotary encodings: rotated vectors, and the weights of attention where the peer's vectors are not posx's."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance import bridge, definitions
from conformance.rows import ROUNDED, Comparison

NEAR = np.array([0, 1, 2, 3, 7, 63, 255, 511])
FAR = np.array([4095, 32767, 131071])


def _rotated(x: np.ndarray, positions: np.ndarray, layout: str, rotary_dim: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """(posx, definition) for x [h t c]."""
  made = bridge.encoding("rope", layout=layout, rotary_dim=rotary_dim)
  inv_freq = definitions.frequencies(rotary_dim or x.shape[-1])
  return bridge.turned(made, x, positions), definitions.rotate(x, positions, inv_freq, layout)


def llama(positions: np.ndarray) -> tuple[Any, Any, Any]:
  import torch
  from transformers import LlamaConfig
  from transformers.models.llama import modeling_llama as theirs

  x = bridge.normal(bridge.H, len(positions), bridge.C)
  model = theirs.LlamaRotaryEmbedding(LlamaConfig(hidden_size=bridge.D, num_attention_heads=bridge.H))
  q = bridge.tensor(x)[None]
  cos, sin = model(q, torch.tensor(positions)[None])
  ours, exact = _rotated(x, positions, "half")
  return ours, bridge.array(theirs.apply_rotary_pos_emb(q, q, cos, sin)[0][0]), exact


def neox() -> tuple[Any, Any, Any]:
  import torch
  from transformers import GPTNeoXConfig
  from transformers.models.gpt_neox import modeling_gpt_neox as theirs

  x = bridge.normal(bridge.H, len(NEAR), bridge.C)
  rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
  model = theirs.GPTNeoXRotaryEmbedding(GPTNeoXConfig(hidden_size=bridge.D, num_attention_heads=bridge.H, rope_parameters=rope))
  q = bridge.tensor(x)[None]
  cos, sin = model(q, torch.tensor(NEAR)[None])
  ours, exact = _rotated(x, NEAR, "half", bridge.C // 4)
  return ours, bridge.array(theirs.apply_rotary_pos_emb(q, q, cos, sin)[0][0]), exact


def gptj() -> tuple[Any, Any, Any]:
  import torch
  from transformers import GPTJConfig
  from transformers.models.gptj import modeling_gptj as theirs

  x = bridge.normal(bridge.H, len(NEAR), bridge.C)
  model = theirs.GPTJRotaryEmbedding(
    GPTJConfig(n_positions=int(NEAR.max()) + 1, n_embd=bridge.D, n_head=bridge.H, rotary_dim=bridge.C // 2)
  )
  rows = bridge.tensor(x).transpose(0, 1)[None]
  sin, cos = model(rows, torch.tensor(NEAR)[None])
  half = bridge.C // 2
  turned = torch.cat([theirs.apply_rotary_pos_emb(rows[..., :half], sin, cos), rows[..., half:]], dim=-1)
  ours, exact = _rotated(x, NEAR, "interleaved", half)
  return ours, bridge.array(turned[0].transpose(0, 1)), exact


def lucidrains_rotary(positions: np.ndarray, half_precision: bool = False) -> tuple[Any, Any, Any]:
  """rotary-embedding-torch counts positions itself, from 0; the wanted rows are taken out."""
  import jax.numpy as jnp
  import torch
  from rotary_embedding_torch import RotaryEmbedding

  t = int(positions.max()) + 1
  x = bridge.normal(1, len(positions), bridge.C)
  full = np.zeros((1, t, bridge.C), np.float32)
  full[:, positions] = x
  given = bridge.tensor(full)[None].to(torch.bfloat16 if half_precision else torch.float32)
  theirs = bridge.array(RotaryEmbedding(bridge.C).rotate_queries_or_keys(given)[0])[:, positions]
  if not half_precision:
    ours, exact = _rotated(x, positions, "interleaved")
    return ours, theirs, exact
  rounded = jnp.asarray(x, jnp.bfloat16)
  ours = bridge.turned(bridge.encoding("rope", layout="interleaved"), rounded, positions)  # type: ignore[arg-type]
  wide = np.asarray(rounded.astype(jnp.float32))
  return ours, theirs, definitions.rotate(wide, positions, definitions.frequencies(bridge.C), "interleaved")


def x_transformers_rotary() -> tuple[Any, Any, Any]:
  import torch
  from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

  x = bridge.normal(bridge.H, len(NEAR), bridge.C)
  freqs, _ = RotaryEmbedding(bridge.C // 2)(torch.tensor(NEAR))
  ours, exact = _rotated(x, NEAR, "interleaved", bridge.C // 2)
  return ours, bridge.array(apply_rotary_pos_emb(bridge.tensor(x)[None], freqs)[0]), exact


def x_transformers_xpos(start: int, t: int = 33) -> tuple[Any, Any, Any]:
  import torch
  from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

  q, k = bridge.queries_keys(t)
  freqs, scale = RotaryEmbedding(bridge.C, use_xpos=True)(torch.arange(start, start + t))
  turned_q = apply_rotary_pos_emb(bridge.tensor(q)[None], freqs, scale)
  turned_k = apply_rotary_pos_emb(bridge.tensor(k)[None], freqs, scale**-1)
  theirs = bridge.torch_weights((turned_q @ turned_k.transpose(-1, -2))[0] * bridge.C**-0.5)
  return bridge.weights(bridge.encoding("xpos"), {}, q, k, start=start), theirs, definitions.softmax(definitions.xpos(q, k))


def lucidrains_xpos(t: int = 33) -> tuple[Any, Any, Any]:
  from rotary_embedding_torch import RotaryEmbedding

  q, k = bridge.queries_keys(t)
  turned_q, turned_k = RotaryEmbedding(bridge.C, use_xpos=True).rotate_queries_and_keys(bridge.tensor(q)[None], bridge.tensor(k)[None])
  theirs = bridge.torch_weights((turned_q @ turned_k.transpose(-1, -2))[0] * bridge.C**-0.5)
  return bridge.weights(bridge.encoding("xpos"), {}, q, k), theirs, definitions.softmax(definitions.xpos(q, k))


def x_transformers_polar(t: int = 33) -> tuple[Any, Any, Any]:
  import torch
  from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

  q, k = bridge.queries_keys(t)
  delta = -np.abs(bridge.normal(bridge.H, bridge.C, seed=3))
  model = PolarEmbedding(bridge.C, bridge.H)
  model.learned_bias.data = bridge.tensor(delta)[:, None]
  freqs, bias = model(torch.arange(t))
  # Its attention adds the phase to the keys' angles.
  turned_q, turned_k = apply_polar_pos_emb(bridge.tensor(q)[None], freqs), apply_polar_pos_emb(bridge.tensor(k)[None], freqs + bias[None])
  theirs = bridge.torch_weights((turned_q @ turned_k.transpose(-1, -2))[0] * bridge.C**-0.5)
  exact = definitions.softmax(definitions.pope(q, k, delta.astype(np.float64)))
  return bridge.weights(bridge.encoding("pope"), {"delta": delta}, q, k), theirs, exact


ROUNDS = "precision: the peer multiplies position and frequency in float32"
COMPARISONS = [
  Comparison("rope", "half, positions to 511", "transformers `LlamaRotaryEmbedding`", lambda: llama(NEAR), close=ROUNDED),
  Comparison(
    "rope", "half, positions to 131,071", "transformers `LlamaRotaryEmbedding`", lambda: llama(FAR), close=None, apart=5e-4, note=ROUNDS
  ),
  Comparison("rope", "half, a quarter of the channels", "transformers `GPTNeoXRotaryEmbedding`", neox, close=ROUNDED),
  Comparison("rope", "interleaved, half of the channels", "transformers `GPTJRotaryEmbedding`", gptj, close=ROUNDED),
  Comparison("rope", "interleaved, half of the channels", "x-transformers `RotaryEmbedding`", x_transformers_rotary, close=ROUNDED),
  Comparison("rope", "interleaved, positions to 511", "rotary-embedding-torch", lambda: lucidrains_rotary(NEAR), close=ROUNDED),
  Comparison(
    "rope", "interleaved, bfloat16 vectors, positions to 4,095", "rotary-embedding-torch",
    lambda: lucidrains_rotary(np.array([0, 200, 255, 257, 4095]), True), within=2e-2, close=None, apart=0.5,
    note="precision: the peer counts positions in bfloat16, which ends at 256",
  ),
  Comparison("xpos", "weights, 33 tokens", "x-transformers `RotaryEmbedding`", lambda: x_transformers_xpos(0)),
  Comparison("xpos", "weights, 33 tokens", "rotary-embedding-torch", lucidrains_xpos),
  Comparison(
    "xpos", "weights, 33 tokens from position 131,072", "x-transformers `RotaryEmbedding`", lambda: x_transformers_xpos(131072),
    close=None, note="precision: the peer's factors for queries and keys leave float32",
  ),
  Comparison("pope", "weights, 33 tokens", "x-transformers `PolarEmbedding`", x_transformers_polar),
]  # fmt: skip
