"""xPos: rotary positions whose score also decays with the distance, faster for faster pairs."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.encodings.rope import LAYOUTS, Layout, angle_tables, cos_sin, inverse_frequencies, turn
from posx.errors import UserError, unknown

_LARGEST = 80.0
"""exp of this, and of its negative, is a normal float32."""


def decay_rates(dim: int, scale_base: float = 512.0, gamma: float = 0.4) -> np.ndarray:
  """Decay of each pair in nats per token: -ln(zeta_i) / S, with zeta_i = (2i/c + gamma) / (1 + gamma).

  Args:
    dim: c, channels of a head; even.
    scale_base: S; larger decays slower.
    gamma: how far the fastest pair is from decaying at once.

  Returns:
    Positive float64 [c // 2], falling: the fast pair decays most.

  Reference:
    Sun et al., "A Length-Extrapolatable Transformer", 2022, section 3.2. arXiv:2212.10554
  """
  zeta = (np.arange(0, dim, 2, dtype=np.float64) / dim + gamma) / (1 + gamma)
  return -np.log(zeta) / scale_base


def decayed(
  q: Float[Array, "t c"],
  k: Float[Array, "u c"],
  q_pos: Num[Array, " t"],
  k_pos: Num[Array, " u"],
  rates: Float[Array, " n"],
  layout: Layout,
) -> Float[Array, "t u"]:
  """Products of rotated queries and keys, each pair of channels weighted by exp(-rate (i - j)); float32.

  The two factors exp(-rate (i - m)) and exp(-rate (m - j)) are taken about the last query m of the tile, so a far key
  fades to 0 and nothing overflows wherever the tile lies. A query so far before m that its factor would overflow (32,000
  tokens at the defaults: several long documents in one tile) gets NaN, never a wrong number.
  """

  def spread(x):
    return jnp.concatenate([x, x], axis=-1) if layout == "half" else jnp.repeat(x, 2, axis=-1)

  m = jnp.max(q_pos)
  early = (m - q_pos).astype(jnp.float32)[:, None] * rates
  late = (k_pos - m).astype(jnp.float32)[:, None] * rates
  q = q.astype(jnp.float32) * spread(jnp.exp(jnp.minimum(early, _LARGEST)))
  k = k.astype(jnp.float32) * spread(jnp.exp(jnp.minimum(late, _LARGEST)))
  lost = jnp.any(early > _LARGEST, axis=-1)[:, None]
  return jnp.where(lost, jnp.nan, jnp.matmul(q, k.T, precision="highest"))


@dataclasses.dataclass(frozen=True)
class XPos(Encoding):
  """RoPE whose score is sum_n zeta_n^((i - j)/S) (q_n e^(i w_n i)) (k_n e^(i w_n j))*: rotation and decay.

  Acts on queries and keys (rotation) and on the scores (decay); nothing is learned. For causal models: the future grows
  as the past decays.

  The authors multiply queries by zeta^((i - centre)/S) and keys by its inverse, with the centre in the middle of the
  sequence: that cancels in the product, but overflows float32 beyond some 65,000 tokens. Here the rotation is in the
  vectors and the decay in the score hook, about each tile's own centre; it costs two more products per tile.

  Attributes:
    base: theta of the rotation.
    scale_base: S; larger decays slower.
    gamma: 0.4 in the paper; larger decays slower.
    layout: pairs of channels; 'interleaved' as the authors' code, or 'half'.

  Reference:
    Sun et al., "A Length-Extrapolatable Transformer", 2022. arXiv:2212.10554; code of torchscale
  """

  base: float = 10000.0
  scale_base: float = 512.0
  gamma: float = 0.4
  layout: Layout = "interleaved"

  by_head: ClassVar = ()
  content_free: ClassVar = False

  def __post_init__(self):
    inverse_frequencies(2, self.base)
    if not (self.scale_base > 0 and self.gamma > 0):
      raise UserError(f"xPos needs scale_base > 0 and gamma > 0, got scale_base={self.scale_base}, gamma={self.gamma}")
    if self.layout not in LAYOUTS:
      raise UserError(unknown("xPos layout", self.layout, LAYOUTS))

  def check(self, dims: Dims, length: int) -> None:
    del length
    inverse_frequencies(dims.head_dim, self.base)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    inv_freq = inverse_frequencies(dims.head_dim, self.base)
    rates = decay_rates(dims.head_dim, self.scale_base, self.gamma)
    return {"inv_freq": inv_freq.astype(np.float32), "rates": rates.astype(np.float32), **angle_tables(inv_freq, length)}

  def on_query_key(self, p: Arrays, q, k, q_pos, k_pos):
    return tuple(turn(x, *cos_sin(positions, p["inv_freq"], p), self.layout) for x, positions in ((q, q_pos), (k, k_pos)))

  def on_scores(self, p: Arrays, scores, q, k, q_pos, k_pos):
    c = 2 * p["rates"].shape[0]
    q, k = q[:, :c], k[:, :c]
    plain = jnp.matmul(q.astype(jnp.float32), k.astype(jnp.float32).T, precision="highest")
    return scores + (decayed(q, k, q_pos, k_pos, p["rates"], self.layout) - plain) * c**-0.5

  def program(self) -> Encoding:
    return XPos(layout=self.layout)
