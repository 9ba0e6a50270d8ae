"""PoPE: polar coordinates, where content sets only magnitudes and position only angles."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from posx.encodings.base import Arrays, Dims, Encoding
from posx.encodings.kerple import keep_within
from posx.encodings.rope import Scaling, angle_tables, cos_sin, inverse_frequencies
from posx.errors import UserError


@dataclasses.dataclass(frozen=True)
class PoPE(Encoding):
  """score_ij = sum_c softplus(q_c) softplus(k_c) cos((i - j) w_c - delta_c), w_c = base^(-c/d), d frequencies for d channels.

  Acts on queries and keys, which become twice as wide (real and imaginary parts); the scale stays that of d channels.
  Parameters: delta [h, d], a trained phase per head and channel, used within [-2 pi, 0].

  Attributes:
    base: theta; larger is slower.
    uniform: start the phases uniformly in [-2 pi, 0] rather than at 0.
    scaling: a context extension of the RoPE family, or None; set it with `posx.extensions.apply`.

  Reference:
    Gopalakrishnan et al., "Decoupling the 'What' and 'Where' With Polar Coordinate Positional Embeddings", 2025.
    arXiv:2509.10534
  """

  base: float = 10000.0
  uniform: bool = False
  scaling: Scaling | None = None

  by_head: ClassVar = ("delta",)
  norm_preserving: ClassVar = False

  def __post_init__(self):
    inverse_frequencies(2, self.base)
    if not isinstance(self.uniform, bool):
      raise UserError(f"PoPE's uniform is true or false, got {self.uniform!r}")

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    shape = (dims.num_heads, dims.head_dim)
    if self.uniform:
      return {"delta": jax.random.uniform(key, shape, jnp.float32, -2 * math.pi, 0.0)}
    return {"delta": jnp.zeros(shape, jnp.float32)}

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    # d frequencies base^(-c/d) are those of a RoPE of 2d channels.
    inv_freq, gain, score_gain = inverse_frequencies(2 * dims.head_dim, self.base), 1.0, 1.0
    if self.scaling is not None:
      inv_freq, gain = self.scaling.frequencies64(2 * dims.head_dim, self.base, length, dims.train_length)
      score_gain = self.scaling.score_gain(length, dims.train_length)
    numbers = {"inv_freq": inv_freq.astype(np.float32), "gain": np.float32(gain * math.sqrt(score_gain))}
    return {**numbers, **angle_tables(inv_freq, length)}

  def on_query_key(self, p: Arrays, q, k, q_pos, k_pos):
    def polar(x, positions, phase):
      size = jax.nn.softplus(x.astype(jnp.float32)) * p["gain"]
      cos, sin = cos_sin(positions, p["inv_freq"], p)
      # The phase turns the exact angle, so that it is not lost in a large one.
      cos, sin = cos * jnp.cos(phase) - sin * jnp.sin(phase), sin * jnp.cos(phase) + cos * jnp.sin(phase)
      return jnp.concatenate([size * cos, size * sin], axis=-1).astype(x.dtype)

    return polar(q, q_pos, 0.0), polar(k, k_pos, keep_within(p["delta"], -2 * math.pi, 0.0))

  @property
  def length_dependent(self) -> bool:
    return self.scaling is not None and self.scaling.length_dependent

  def program(self) -> Encoding:
    return PoPE()
