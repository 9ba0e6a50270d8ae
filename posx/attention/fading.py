"""Tiles whose every weight is exactly 0 in float32, because the bias of far keys is so low; like the future they are not computed.

A query sees its own key, so the largest score of its row is at least that one. By Cauchy and Schwarz no other score exceeds the
norms' product, and what the bias adds is bounded tile by tile. Where the two are further apart than float32 can tell a weight from
0, the tile changes nothing, in neither pass: the result is the same to the last bit, for any queries and keys. Values are not looked at:
an infinite one, of weight 0, makes no NaN here, and one of 1e30 does not show what rounding left of its weight.

With the slopes of ALiBi most heads see a few hundred to a few thousand tokens in this sense, which is most of the work at 32,768.

Reference:
  Lin, Obando-Ceron, He, Courville, "Adaptive Computation Pruning for the Forgetting Transformer", 2025. arXiv:2504.06949, which
  allows small errors too.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from jax import lax

from posx.attention.heads import varying
from posx.attention.tile import Head, Spec

NOTHING = -106.0
"""exp of less is 0 in float32, whose smallest number is exp(-103.3); the rest is for rounding in the scores."""

_ROUNDING = 1.0001
"""Norms are made a little larger, more than float32 may have rounded them or a score."""


def without(spec: Spec, head: Head) -> Head:
  """The head with the bounds of the tiles that weigh something."""
  if spec.encoding.form != "distance":
    return _cut_off(head, _skipped(spec, head, _of_product(spec, head)))
  # a bias of small range costs no more than this look at it
  more = _of_distance(spec, head)
  every = varying(jnp.zeros(more.shape[0], jnp.int32), (head.queries["q"], head.k))
  return _cut_off(head, lax.cond(more.min() < NOTHING, lambda: _skipped(spec, head, more), lambda: every))


def _skipped(spec: Spec, head: Head, bias: Any):
  """How many of the first key tiles each query tile does not need [rows].

  Args:
    bias: the most that a key of a tile can get more than the own key of a query of a tile [rows, columns].
  """
  q, k = (x.astype(jnp.float32) for x in (head.queries["q"], head.k))
  square = lambda x: (x * x).sum(-1)
  highest = _ROUNDING * jnp.sqrt(square(q) * square(k).max())
  more = spec.scale * (highest - (q * _own(spec, k, q.shape[0])).sum(-1))
  if spec.segmented:
    alone = head.where["q_segments"] != _own(spec, head.where["k_segments"], q.shape[0])
    more = jnp.where(alone, jnp.inf, more)
  worst = more.reshape(-1, spec.tiles[0]).max(1)
  return (worst[:, None] + bias < NOTHING).argmin(1).astype(jnp.int32)


def _own(spec: Spec, x: Any, t: int):
  """Of arrays by key, what stands at the place of each query."""
  x = lax.slice_in_dim(x, spec.offset, min(spec.offset + t, x.shape[0]))
  return jnp.pad(x, [(0, t - x.shape[0]), *[(0, 0)] * (x.ndim - 1)])


def _of_product(spec: Spec, head: Head):
  """A bias that is a sum of products: of each the most that its factors' ends allow [rows, columns]."""
  n, m = spec.tiles
  p = spec.join(head.p, head.features["query"], head.features["key"])
  of_query, of_key = spec.encoding.separable(p, head.where["q_pos"], head.where["k_pos"])
  own = _own(spec, of_key, of_query.shape[0])
  ends = lambda x, size: ((tiled := x.reshape(-1, size, x.shape[1])).min(1), tiled.max(1))
  (low, high), (least, most) = ends(own, n), ends(of_key, m)
  further = least - high[:, None], most - low[:, None]
  corners = [x[:, None] * y for x in ends(of_query, n) for y in further]
  return functools.reduce(jnp.maximum, corners).sum(-1)


def _of_distance(spec: Spec, head: Head):
  """A bias of distance: the most of it from the nearest key of a tile on, over blocks of distances [rows, columns]."""
  n, m = spec.tiles
  rows, columns = head.queries["q"].shape[0] // n, head.k.shape[0] // m
  count = -(-(spec.offset + rows * n) // m)
  if spec.tabled:  # falling distances from spec.offset + rows n - 1 on
    bias = head.p["mine"]["bias"][: spec.offset + rows * n][::-1]
    bias = jnp.pad(bias, (0, count * m - bias.shape[0]), constant_values=-jnp.inf)
  else:
    bias = spec.encoding.bias(spec.join(head.p, {}, {}), jnp.arange(count * m, dtype=jnp.int32))
  most = lax.cummax(bias.reshape(count, m).max(1), reverse=True)
  nearest = spec.offset + n * jnp.arange(rows)[:, None] - m * (jnp.arange(columns)[None] + 1) + 1
  return most[jnp.maximum(nearest, 0) // m] - bias[0]


def _cut_off(head: Head, skipped: Any) -> Head:
  later = {name: jnp.maximum(getattr(head.bounds, name), skipped) for name in ("first", "last", "full_first", "full_last")}
  sinks = jnp.minimum(jnp.maximum(head.bounds.head_first, skipped), head.bounds.head_last)
  return head._replace(bounds=dataclasses.replace(head.bounds, **later, head_first=sinks))
