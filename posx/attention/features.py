"""Features of tokens, made from a layer's input: what some score hooks need beside queries and keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from posx.attention.cache import EMPTY
from posx.attention.sharded import Dealt
from posx.attention.visibility import concrete
from posx.encodings.base import Encoding, merge
from posx.encodings.sums import running


def token_features(
  x: Float[Array, "b t d"],
  *,
  positions: Int[Array | np.ndarray, "*b t"],
  encoding: Encoding,
  params: Any,
  constants: Any,
  segments: Int[Array, "*b t"] | None = None,
  before: Any = None,
  dealt: Dealt | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
  """What `attend` takes as `q_features` and `k_features` for these tokens.

  Sums run over the tokens in the order of documents and positions, whatever their places in the array; an empty slot's token
  (segment -1) adds nothing.

  Args:
    x: the layer's normalised input.
    positions: int32, tokens.
    encoding: one that declares features.
    params: one layer's parameters.
    constants: `encoding.constants(...)` as arrays.
    segments: document numbers; None for one document.
    before: sums over the tokens read earlier, as this function returned them; None for none.
    dealt: inside `jax.shard_map`, how heads of a sequence that is cut over devices are dealt out. `x` has the tokens here then, positions
      and segments are those of all tokens.

  Returns:
    features [b t ...], and the sums over all tokens so far [b ...]; with `dealt` those of all tokens for the heads of this device.
  """
  b, t = x.shape[0], positions.shape[-1]
  known = concrete(positions)
  sorted_ = known is not None and segments is None and bool((np.diff(known) >= 0).all())
  positions = jnp.broadcast_to(jnp.asarray(positions), (b, t))
  p = encoding.prepare(params, constants)
  here = positions if dealt is None else dealt.here(positions, x.shape[1])
  made = jax.vmap(lambda x, positions: encoding.features(p, x, positions))(x, here)
  made = made if dealt is None else dealt.features(encoding, made)
  terms, rest = encoding.sums(made)
  if segments is not None:
    segments = jnp.broadcast_to(segments, (b, t))
    terms = jax.tree.map(lambda x: jnp.where((segments == EMPTY).reshape(b, t, *[1] * (x.ndim - 2)), 0.0, x), terms)
  order = None if sorted_ else jnp.lexsort((positions,) if segments is None else (positions, segments))
  sum_up = lambda x, *before: jax.vmap(running)(_rows(x, order), *before)
  totals = jax.tree.map(sum_up, terms) if before is None else jax.tree.map(sum_up, terms, before)
  after = jax.tree.map(lambda x: x[:, -1], totals)
  back = None if order is None else jnp.argsort(order, axis=1)
  return merge(jax.tree.map(lambda x: _rows(x, back), totals), rest), after


def _rows(x, order):
  return x if order is None else jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), axis=1)
