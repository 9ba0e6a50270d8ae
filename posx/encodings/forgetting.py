"""Forgetting attention (FoX): gates made from the input say how much of what came before is forgotten."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.encodings.sums import as_channels, between


def log_gates(x: Float[Array, "t d"], weight: Float[Array, "h d"], bias: Float[Array, " h"]) -> Float[Array, "t h"]:
  """log f = log sigmoid(x w + b), float32, at most 0; 0 forgets nothing.

  Args:
    x: the layer's normalised input.
    weight: of the gates.
    bias: of the gates.

  Reference:
    Lin et al., "Forgetting Transformer", 2025, section 3. arXiv:2503.02130
  """
  logits = jnp.einsum("td,hd->th", x.astype(jnp.float32), weight, precision="highest") + bias
  return jax.nn.log_sigmoid(logits)


@dataclasses.dataclass(frozen=True)
class Forgetting(Encoding):
  """Adds the logarithm of what the gates between key and query leave: sum of log f_l, l = j + 1 .. i.

  Acts on the scores. Parameters: weight [h, d] and bias [h] of the gates f = sigmoid(x w + b), x the layer's normalised input;
  the bias starts at 0. Gates that do not look at x make it ALiBi with a slope of -log f. Positions count for the order of the
  tokens alone. A key ahead of the query, without a causal mask, is treated as one as far behind.

  Attributes:
    std: of the initial weight.

  Reference:
    Lin, Nikishin, He, Courville, "Forgetting Transformer: Softmax Attention with a Forget Gate", 2025. arXiv:2503.02130,
    github.com/zhixuan-lin/forgetting-transformer
  """

  std: float = 0.02

  by_head: ClassVar = ("weight", "bias", "gates")
  summed: ClassVar = ("gates",)
  content_free: ClassVar = False
  interpolable: ClassVar = False

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    weight = self.std * jax.random.normal(key, (dims.num_heads, dims.model_dim), jnp.float32)
    return {"weight": weight, "bias": jnp.zeros(dims.num_heads, jnp.float32)}

  def features(self, p: Arrays, x: Num[Array, "t d"], positions: Num[Array, " t"]) -> dict[str, Any]:
    del positions
    return {"gates": log_gates(x, p["weight"], p["bias"])}

  def on_scores(self, p: Arrays, scores, q, k, q_pos, k_pos):
    del q, k, q_pos, k_pos
    return scores - jnp.abs(between(p["query"]["gates"], p["key"]["gates"]))

  def separable(self, p: Arrays, q_pos, k_pos):
    del q_pos, k_pos
    return as_channels(p["query"]["gates"], p["key"]["gates"])
