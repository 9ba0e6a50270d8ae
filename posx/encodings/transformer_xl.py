"""Transformer-XL's relative attention: content and position each meet the query with a bias of their own."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from posx.encodings.base import Arrays, Dims, Encoding
from posx.encodings.rope import angle_tables, cos_sin, inverse_frequencies
from posx.errors import UserError


@dataclasses.dataclass(frozen=True)
class TransformerXL(Encoding):
  """A_ij = (q_i + u) k_j + (q_i + v) W_r R_{i-j}, over sqrt(c), with R_d = [sin(d w), cos(d w)].

  Acts on queries and keys. Parameters: u [h, c], v [h, c], project [h, c, d], which is W_r. By the addition theorem the
  second term is a product of d channels that depend on i and d channels that depend on j: they are appended to queries
  and keys, so that no shift of a matrix is needed and any plan of attention can serve it.

  Attributes:
    base: the longest wavelength over 2 pi, in tokens.
    std: standard deviation of the initial values.

  Reference:
    Dai et al., "Transformer-XL", 2019, section 3.3. arXiv:1901.02860
  """

  base: float = 10000.0
  std: float = 0.02

  by_head: ClassVar = ("u", "v", "project")
  norm_preserving: ClassVar = False
  content_free: ClassVar = True  # its score hook adds nothing

  def __post_init__(self):
    inverse_frequencies(2, self.base)
    if not self.std >= 0:
      raise UserError(f"Transformer-XL needs std >= 0, got {self.std}")

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    shapes: dict[str, tuple[int, ...]] = {"u": (dims.num_heads, dims.head_dim), "v": (dims.num_heads, dims.head_dim)}
    shapes["project"] = (dims.num_heads, dims.head_dim, dims.model_dim)
    keys = jax.random.split(key, len(shapes))
    return {name: self.std * jax.random.normal(k, shape, jnp.float32) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

  def check(self, dims: Dims, length: int) -> None:
    del length
    if dims.model_dim % 2:
      raise UserError(f"Transformer-XL pairs the model's channels: model_dim must be even, got {dims.model_dim}")

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    self.check(dims, length)
    inv_freq = inverse_frequencies(dims.model_dim, self.base)
    return {"inv_freq": inv_freq.astype(np.float32), **angle_tables(inv_freq, length)}

  def on_query_key(self, p: Arrays, q, k, q_pos, k_pos):
    wide = q.astype(jnp.float32)
    by_sin, by_cos = jnp.split(jnp.matmul(wide + p["v"], p["project"], precision="highest"), 2, axis=-1)
    cos, sin = cos_sin(q_pos, p["inv_freq"], p)
    # sin((i-j)w) a + cos((i-j)w) b = cos(jw) (a sin(iw) + b cos(iw)) + sin(jw) (b sin(iw) - a cos(iw))
    place = [by_sin * sin + by_cos * cos, by_cos * sin - by_sin * cos]
    q = jnp.concatenate([wide + p["u"], *place], axis=-1).astype(q.dtype)
    k = jnp.concatenate([k, *(x.astype(k.dtype) for x in cos_sin(k_pos, p["inv_freq"], p))], axis=-1)
    return q, k

  def program(self) -> Encoding:
    return TransformerXL()
