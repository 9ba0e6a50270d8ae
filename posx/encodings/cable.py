"""CABLE: context-aware biases; every token says by how much it pushes what came before away."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.encodings.sums import as_channels, between


def steps(x: Float[Array, "t d"], weight: Float[Array, "h d"], bias: Float[Array, " h"]) -> Float[Array, "t h"]:
  """softplus(x w + b), float32, positive: what a token adds to the distance of all that came before it.

  Args:
    x: the layer's normalised input.
    weight: of the steps.
    bias: of the steps.

  Reference:
    Veisi, Amirzadeh, Mansourian, 2025. arXiv:2503.08067
  """
  return jax.nn.softplus(jnp.einsum("td,hd->th", x.astype(jnp.float32), weight, precision="highest") + bias)


@dataclasses.dataclass(frozen=True)
class CABLE(Encoding):
  """Subtracts the steps between key and query: b_i - b_j with b_i = -sum of softplus(x_l w + b), l = 1 .. i.

  Acts on the scores. Parameters: weight [h, d] and bias [h], uniform within d^-1/2 as the authors' framework starts a linear
  map; x is the layer's normalised input. As -softplus(z) = log sigmoid(-z), it is FoX with the sign of the weights turned,
  found independently; what differs is where training starts. The authors' code leaves out the scale 1/sqrt(c) of the
  products; here it is kept, as for all encodings. Positions count for the order of the tokens alone.

  Reference:
    Veisi, Amirzadeh, Mansourian, "Context-aware Biases for Length Extrapolation", 2025. arXiv:2503.08067,
    github.com/axiomlab/Cable
  """

  by_head: ClassVar = ("weight", "bias", "steps")
  summed: ClassVar = ("steps",)
  content_free: ClassVar = False
  interpolable: ClassVar = False

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    first, second = jax.random.split(key)
    bound = dims.model_dim**-0.5
    uniform = lambda key, shape: jax.random.uniform(key, shape, jnp.float32, -bound, bound)
    return {"weight": uniform(first, (dims.num_heads, dims.model_dim)), "bias": uniform(second, (dims.num_heads,))}

  def features(self, p: Arrays, x: Num[Array, "t d"], positions: Num[Array, " t"]) -> dict[str, Any]:
    del positions
    return {"steps": steps(x, p["weight"], p["bias"])}

  def on_scores(self, p: Arrays, scores, q, k, q_pos, k_pos):
    del q, k, q_pos, k_pos
    return scores - jnp.abs(between(p["query"]["steps"], p["key"]["steps"]))

  def separable(self, p: Arrays, q_pos, k_pos):
    del q_pos, k_pos
    mine, theirs = as_channels(p["query"]["steps"], p["key"]["steps"])
    return -mine, theirs
