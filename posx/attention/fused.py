"""Library kernels where no score hook has to run inside the tile: `jax.nn.dot_product_attention`, cuDNN's flash attention on GPU.

A bias that is a product of something of the query and something of the key needs no bias array either: it becomes a few more
channels of q and k. After the softmax a constant of the row does not count, so ALiBi is slope x j, and the gates of FoX and CABLE
are one number of the key. Such encodings say so by `Encoding.separable`.

Channels in bfloat16 hold 8 bits, so a float32 number is given as several of them whose sum it is: three for what belongs to the
key (positions up to 2^24 exactly), two for what belongs to the query.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posx.attention.dense import joined
from posx.attention.visibility import start_of_run
from posx.encodings.base import Encoding, merge

WIDTH = 8
"""Heads are padded to a multiple of so many channels, as cuDNN wants them."""


def serves(encoding: Encoding, q_pos, k_pos, *, dtype, causal: bool, window, segments: bool) -> str:
  """'' if this plan computes what the others do, else the reason why not."""
  if encoding.form != "none" and not encoding.uses("separable"):
    return f"{type(encoding).__name__} has a score hook that is no product of query and key numbers"
  if encoding.uses("on_values"):
    return f"{type(encoding).__name__} adds to the values"
  if segments:
    return "documents are packed"
  if window is not None and (not isinstance(window, int) or not causal):
    return "the window is no plain causal one"
  if encoding.uses("separable") and not causal:
    return "the bias is a product for keys behind the query only"
  if encoding.uses("separable") and dtype == jnp.float16:
    return "float16 ends at 65,504, which a bias of far positions exceeds; take bfloat16"
  start = start_of_run(q_pos)
  if start is None or start != start_of_run(k_pos) or q_pos.shape[1] != k_pos.shape[1]:
    return "positions of queries and keys are not the same consecutive ones"
  return ""


def attention(q, k, v, q_pos, k_pos, encoding: Encoding, p, *, scale, causal, window, features: Any = None, implementation: Any = None):
  """The same as `dense.attention` for what `serves` accepts. q [b h t c], k and v [b g u c], positions [1 or b, t].

  Args:
    implementation: of `jax.nn.dot_product_attention`: 'cudnn', 'xla' or None for its choice.
  """
  size, width = q.shape[-1], v.shape[-1]
  if encoding.uses("separable"):
    mine, theirs = _channels(encoding, p, q_pos, k_pos, features, q, scale)
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))  # numbers of the key may differ by head
    q, k = jnp.concatenate([q, mine], -1), jnp.concatenate([k, theirs], -1)
    size = -(-max(q.shape[-1], width) // WIDTH) * WIDTH
  q, k, v = (_pad(jnp.moveaxis(x, 1, 2), size) for x in (q, k, v))
  out = jax.nn.dot_product_attention(
    q, k, v, scale=scale, is_causal=causal, local_window_size=None if window is None else (window - 1, 0), implementation=implementation
  )
  return jnp.moveaxis(out, 2, 1)[..., :width]


def _pad(x, size: int):
  return jnp.pad(x, [(0, 0)] * 3 + [(0, max(0, size - x.shape[-1]))])


def channels(encoding: Encoding, p, q_pos, k_pos, h: int):
  """What `encoding.separable` gives for the queries [h t r] and for the keys [h u r] of one row, `p` with their features."""
  mine, shared = encoding.heads(p)
  one = lambda mine: encoding.separable(merge(mine, shared), q_pos, k_pos)
  if jax.tree.leaves(mine):
    return jax.vmap(one)(mine)
  return jax.tree.map(lambda x: jnp.broadcast_to(x, (h, *x.shape)), one({}))


def _channels(encoding: Encoding, p, q_pos, k_pos, features, q, scale: float):
  """What is appended to queries [b h t r] and to keys [b h u r], in the dtype of q, for a product that will be scaled."""
  b, h, dtype = q.shape[0], q.shape[1], q.dtype
  one_row = lambda q_pos, k_pos, features: channels(encoding, joined(encoding, p, features), q_pos, k_pos, h)
  q_rows, k_rows = (jnp.broadcast_to(jnp.asarray(x), (b, x.shape[-1])) for x in (q_pos, k_pos))
  of_query, of_key = jax.vmap(one_row)(q_rows, k_rows, features)
  of_query = of_query / scale
  if dtype == jnp.float32:
    return of_query, of_key
  products = [(x, y) for x in _pieces(of_query, 2, dtype) for y in _pieces(of_key, 3, dtype)]
  return jnp.concatenate([x for x, _ in products], -1), jnp.concatenate([y for _, y in products], -1)


def _pieces(x, count: int, dtype):
  """`count` arrays of a narrow type whose sum is x, the first ones the largest; gradients reach x through the first."""
  made = []
  for _ in range(count):
    piece = lax.reduce_precision(x, jnp.finfo(dtype).nexp, jnp.finfo(dtype).nmant)
    made.append((x + lax.stop_gradient(piece - x) if not made else lax.stop_gradient(piece)).astype(dtype))
    x = lax.stop_gradient(x - piece)
  return made
