"""The textbook use of an encoding, slow and plain on purpose: every score of every head in one array."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posx.attention.dense import NEGATIVE, joined
from posx.attention.features import token_features
from posx.attention.fused import channels
from posx.encodings.base import Dims, Encoding, merge, over_heads

DIMS = Dims(num_heads=4, head_dim=8, model_dim=32, train_length=64)
HOOKS = ("on_input", "features", "on_query_key", "bias", "on_scores", "on_values")


class Bound:
  """An encoding with parameters and constants, as attention would use it."""

  def __init__(self, encoding: Encoding, dims: Dims = DIMS, params: Any = None, length: int | None = None, seed: int = 0):
    self.encoding, self.dims = encoding, dims
    self.params = encoding.init(jax.random.key(seed), dims) if params is None else params
    self.constants = jax.tree.map(jnp.asarray, encoding.constants(dims, length or dims.train_length))

  def p(self, params: Any = None) -> dict[str, Any]:
    return self.encoding.prepare(self.params if params is None else params, self.constants)

  def head(self, n: int, params: Any = None) -> dict[str, Any]:
    mine, shared = self.encoding.heads(self.p(params))
    return merge(jax.tree.map(lambda x: x[n], mine), shared)

  def scores(self, q, k, q_pos, k_pos, params: Any = None):
    """q [h t c], k [h u c] -> [h t u], float32, what the softmax receives."""
    q, k, q_pos, k_pos = jnp.asarray(q), jnp.asarray(k), jnp.asarray(q_pos), jnp.asarray(k_pos)
    mine, shared = self.encoding.heads(self.p(params))

    def products(mine, q, k):
      turned_q, turned_k = self.encoding.on_query_key(merge(mine, shared), q, k, q_pos, k_pos)
      s = jnp.einsum("tc,uc->tu", turned_q, turned_k, preferred_element_type=jnp.float32, precision="highest") * q.shape[-1] ** -0.5
      return s, turned_q, turned_k

    hook = self.encoding.on_scores if self.encoding.mixes_heads else over_heads(self.encoding)
    return hook(self.p(params), *jax.vmap(products)(mine, q, k), q_pos, k_pos)

  def output(self, q, k, v, q_pos, k_pos, causal: bool, params: Any = None):
    """Attended values [h t c]."""
    s = self.scores(q, k, q_pos, k_pos, params)
    allowed = np.asarray(q_pos)[:, None] >= np.asarray(k_pos)[None, :] if causal else True
    w = jax.nn.softmax(jnp.where(allowed, s, -jnp.inf), axis=-1)
    o = jnp.einsum("htu,huc->htc", w, jnp.asarray(v), precision="highest")
    if self.encoding.uses("on_values"):
      added = [self.encoding.on_values(self.head(n, params), w[n], jnp.asarray(q_pos), jnp.asarray(k_pos)) for n in range(w.shape[0])]
      o = o + jnp.stack(added)
    return o


def everything(encoding: Encoding, params, constants, x, q, k, q_pos, k_pos, seen) -> dict[str, jax.Array]:
  """What all hooks make of tokens x [t d], q [h t c], k [h t c]: input, queries, keys, scores, output, products of channels.

  `seen` is bool [t t]. The last are those of an encoding that is separable.
  """
  p = encoding.prepare(params, constants)
  own, shared = encoding.heads(p)
  turn = lambda mine, q, k: encoding.on_query_key(merge(mine, shared), q, k, q_pos, k_pos)
  turned_q, turned_k = jax.vmap(turn)(own, q, k)
  s = jnp.einsum("htc,huc->htu", turned_q, turned_k, preferred_element_type=jnp.float32, precision="highest") * q.shape[-1] ** -0.5
  if not encoding.elementwise:
    s = jnp.where(seen, s, NEGATIVE)
  p = with_features(encoding, p, params, constants, x, q_pos, k_pos)
  s = (encoding.on_scores if encoding.mixes_heads else over_heads(encoding))(p, s, turned_q, turned_k, q_pos, k_pos)
  w = jax.nn.softmax(jnp.where(seen, s, NEGATIVE), axis=-1)
  # The value of a key is the key itself: one array less to make up.
  out = jnp.matmul(w, k.astype(jnp.float32), precision="highest")
  if encoding.uses("on_values"):
    mine, shared = encoding.heads(p)
    out = out + jax.vmap(lambda mine, w: encoding.on_values(merge(mine, shared), w, q_pos, k_pos))(mine, w)
  made = {"input": encoding.on_input(p, x, q_pos), "queries": turned_q, "keys": turned_k, "scores": s, "output": out}
  if encoding.uses("separable"):
    of_query, of_key = channels(encoding, p, q_pos, k_pos, q.shape[0])
    made["separable"] = jnp.einsum("htr,hur->htu", of_query, of_key, precision="highest")
  return made


def with_features(encoding: Encoding, p, params, constants, x, q_pos, k_pos):
  """`p` with what the encoding makes of the input of the queries and of the keys, if it declares features."""
  if not encoding.uses("features"):
    return p
  made = [token_features(x[None], positions=at, encoding=encoding, params=params, constants=constants)[0] for at in (q_pos, k_pos)]
  return joined(encoding, p, {side: jax.tree.map(lambda x: x[0], tree) for side, tree in zip(("query", "key"), made, strict=True)})


def slope(encoding: Encoding, params, constants, x, q, k, q_pos, k_pos, seen):
  """Gradients of a scalar that all hooks reach, by (params, x, q, k)."""

  def loss(params, x, q, k):
    made = everything(encoding, params, constants, x, q, k, q_pos, k_pos, seen)
    # A constant added to all scores leaves the output alone, so the scores are asked too.
    scores = jnp.where(seen, made["scores"], 0.0)
    return (made["output"].astype(jnp.float32) ** 3).sum() + (made["input"].astype(jnp.float32) ** 3).sum() + (scores**2).mean()

  return jax.grad(loss, (0, 1, 2, 3))(params, x, q, k)


@functools.cache
def compiled(which: str):
  """'everything' or 'slope' under jit, with the encoding as its static argument."""
  return jax.jit({"everything": everything, "slope": slope}[which], static_argnums=0)
