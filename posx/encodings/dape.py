"""DAPE: a small network mixes the scores of all heads with a static bias, and adds what it makes of them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from posx.encodings.alibi import ALiBi
from posx.encodings.base import Arrays, Dims, Encoding, over_heads
from posx.encodings.fire import FIRE
from posx.encodings.kerple import KERPLE
from posx.errors import UserError, unknown

PRIORS = {"kerple": KERPLE(), "alibi": ALiBi(), "fire": FIRE()}
HIDDEN = -1e29
"""Scores below it are those of hidden keys."""


def convolve(x: Float[Array, "n t u"], weight: Float[Array, "m n k"], bias: Float[Array, " m"], seen: Bool[Array, "t u"]):
  """Channels n to m at every (i, j), over the k keys around j; hidden keys count as 0. k = 1 mixes channels alone."""
  x = jnp.where(seen, x, 0.0)
  k = weight.shape[2]
  padded = jnp.pad(x, ((0, 0), (0, 0), (k // 2, k // 2)))
  taps = [jnp.einsum("mn,ntu->mtu", weight[:, :, s], padded[:, :, s : s + x.shape[2]], precision="highest") for s in range(k)]
  return sum(taps, bias[:, None, None])


@dataclasses.dataclass(frozen=True)
class DAPE(Encoding):
  """Adds B + f([S; B]): S the scores of all heads, B a static bias of each, f a network of one hidden layer over the heads.

  f is two linear maps over the 2h channels with a leaky ReLU (slope 0.01) between, at every (i, j). With `key_window` k > 1
  (DAPE v2) they are convolutions over k neighbouring keys, in the order of positions within a document. Keys that the query
  does not see are 0 for both; the authors' code hides them from the first only, and lets its bias through to the second,
  but not behind the last token, where a row would change when tokens follow.

  Acts on the scores of all heads at once: devices cannot share out the heads. Parameters: inner [width, 2, h, k] (of S and of B),
  inner_bias [width], outer [h, width, k], outer_bias [h], uniform within one over the square root of their inputs as the authors'
  framework starts them; and those of the static bias.

  Attributes:
    prior: the static bias: 'kerple', 'alibi' or 'fire'.
    width: units of the hidden layer.
    key_window: k, neighbouring keys that are mixed; odd. 1 is DAPE v1, the authors' v2 has 3.

  Reference:
    Zheng et al., "DAPE: Data-Adaptive Positional Encoding for Length Extrapolation", 2024. arXiv:2405.14722; Zheng et al.,
    "DAPE V2: Process Attention Score as Feature Map for Length Extrapolation", 2024. arXiv:2410.04798,
    github.com/chuanyang-Zheng/DAPE
  """

  prior: Literal["kerple", "alibi", "fire"] = "kerple"
  width: int = 32
  key_window: int = 1

  mixes_heads: ClassVar = True
  content_free: ClassVar = False

  def __post_init__(self):
    if self.prior not in PRIORS:
      raise UserError(unknown("prior of DAPE", self.prior, PRIORS))
    if self.width < 1 or self.key_window < 1 or self.key_window % 2 == 0:
      raise UserError(f"DAPE needs width >= 1 and an odd key_window >= 1, got {self}")

  @property
  def by_head(self) -> tuple[str, ...]:  # type: ignore[override]
    return PRIORS[self.prior].by_head

  @property
  def elementwise(self) -> bool:  # type: ignore[override]
    return self.key_window == 1

  @property
  def ordered(self) -> bool:  # type: ignore[override]
    return self.key_window > 1

  @property
  def relative(self) -> bool:  # type: ignore[override]
    return PRIORS[self.prior].relative

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    h, n, k = dims.num_heads, self.width, self.key_window
    shapes = {"inner": (n, 2, h, k), "inner_bias": (n,), "outer": (h, n, k), "outer_bias": (h,)}
    *keys, last = jax.random.split(key, len(shapes) + 1)
    bounds = {"inner": 2 * h * k, "inner_bias": 2 * h * k, "outer": n * k, "outer_bias": n * k}
    made = {
      name: jax.random.uniform(key, shape, jnp.float32, -(bounds[name] ** -0.5), bounds[name] ** -0.5)
      for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return {**PRIORS[self.prior].init(last, dims), **made}

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    return PRIORS[self.prior].constants(dims, length)

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    return {**params, **PRIORS[self.prior].prepare(params, constants)}

  def on_scores(self, p: Arrays, scores, q, k, q_pos, k_pos):
    seen = (scores > HIDDEN).all(0)
    static = over_heads(PRIORS[self.prior])(p, jnp.zeros_like(scores), q, k, q_pos, k_pos)
    inner = p["inner"].reshape(len(p["inner"]), -1, self.key_window)
    hidden = jax.nn.leaky_relu(convolve(jnp.concatenate([scores, static]), inner, p["inner_bias"], seen), 0.01)
    return scores + static + convolve(hidden, p["outer"], p["outer_bias"], seen)
