"""What many heads of many batch rows do, from what one head of one row does.

Heads and batch rows are an outer loop on a CPU, where a tile should stay in cache, and batched on accelerators. Forward and
backward passes of a rule are each such a loop: a loop around a rule for one head stacked what the gradient needs, and cut it apart
again.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Parts(NamedTuple):
  """Trees of arrays, sorted by what one head of one batch row has of them.

  What a head gives in `queries` is put where it belongs; what it gives in the others is summed over all that share it.
  """

  queries: Any = ()  # [b n h ..] -> [n ..]
  keys: Any = ()  # [b n g ..] -> [n ..], heads of a group share it
  heads: Any = ()  # [h ..] -> [..]
  rows: Any = ()  # [b ..] -> [..]
  shared: Any = ()  # [..]


def each(cpu: bool, sizes: tuple[int, int, int], one: Callable[[Parts], Parts], given: Parts) -> Parts:
  """one(...) of every head and row; `sizes` are the batch rows, the heads and the groups of heads that share keys."""
  return (_one_by_one if cpu else _batched)(sizes, one, given)


def varying(tree: Any, of: Any) -> Any:
  """`tree`, tied to other arrays: `jax.shard_map` asks that what a loop or a rule takes and gives varies over the same axes."""
  if not jax.sharding.get_abstract_mesh().manual_axes:
    return tree
  firsts = [lax.index_in_dim(x.ravel(), 0, keepdims=False).astype(jnp.float32) for x in jax.tree.leaves(of) if x.size]
  nothing = jnp.where(False, lax.stop_gradient(sum(firsts)), 0.0)
  return jax.tree.map(lambda x: x + nothing.astype(x.dtype), tree)


def _one_by_one(sizes, one, given: Parts) -> Parts:
  b, h, g = sizes
  shapes = jax.eval_shape(lambda: one(_cut(given, 0, 0, 0)))
  leading = Parts((b, None, h), (b, None, g), (h,), (b,), ())
  zeros = lambda x, axes: jnp.zeros((*(x.shape[0] if n is None else n for n in axes), *x.shape[None in axes :]), x.dtype)
  start = Parts(*(jax.tree.map(lambda x, axes=axes: zeros(x, axes), part) for part, axes in zip(shapes, leading, strict=True)))

  def body(n, done: Parts) -> Parts:
    i, j = n // h, n % h
    m = j // (h // g)
    mine = one(_cut(given, i, j, m))
    row = lambda x, y: lax.dynamic_update_index_in_dim(x, lax.dynamic_index_in_dim(x, i, 0, keepdims=False) + y, i, 0)
    head = lambda x, y: lax.dynamic_update_index_in_dim(x, lax.dynamic_index_in_dim(x, j, 0, keepdims=False) + y, j, 0)
    return Parts(
      jax.tree.map(lambda x, y: _put(x, y, i, j), done.queries, mine.queries),
      jax.tree.map(lambda x, y: _put(x, _of_head(x, i, m) + y, i, m), done.keys, mine.keys),
      jax.tree.map(head, done.heads, mine.heads),
      jax.tree.map(row, done.rows, mine.rows),
      jax.tree.map(operator.add, done.shared, mine.shared),
    )

  return lax.fori_loop(0, b * h, body, varying(start, [x for x in jax.tree.leaves(given) if jnp.issubdtype(x.dtype, jnp.floating)]))


def _cut(given: Parts, i, j, m) -> Parts:
  index = lambda n: lambda x: lax.dynamic_index_in_dim(x, n, 0, keepdims=False)
  return Parts(
    jax.tree.map(lambda x: _of_head(x, i, j), given.queries),
    jax.tree.map(lambda x: _of_head(x, i, m), given.keys),
    jax.tree.map(index(j), given.heads),
    jax.tree.map(index(i), given.rows),
    given.shared,
  )


def _of_head(x, i, j):
  """Row i of the batch, head j: [b n h ..] -> [n ..]."""
  size = (1, x.shape[1], 1, *x.shape[3:])
  return lax.dynamic_slice(x, (i, 0, j, *[0] * (x.ndim - 3)), size).reshape(x.shape[1], *x.shape[3:])


def _put(x, y, i, j):
  return lax.dynamic_update_slice(x, y.reshape(1, x.shape[1], 1, *x.shape[3:]), (i, 0, j, *[0] * (x.ndim - 3)))


def _batched(sizes, one, given: Parts) -> Parts:
  b, h, g = sizes
  grouped = lambda x: x.reshape(g, h // g, *x.shape[1:])
  split = Parts(
    jax.tree.map(lambda x: jnp.moveaxis(x.reshape(b, x.shape[1], g, h // g, *x.shape[3:]), 1, 3), given.queries),
    jax.tree.map(lambda x: jnp.moveaxis(x, 1, 2), given.keys),
    jax.tree.map(grouped, given.heads),
    given.rows,
    given.shared,
  )
  for axes in (Parts(0, None, 0, None, None), Parts(0, 0, 0, None, None), Parts(0, 0, None, 0, None)):
    one = jax.vmap(one, in_axes=(axes,))
  out = one(split)  # whatever comes out has [b g h/g] in front
  total = lambda *axes: functools.partial(jnp.sum, axis=axes)
  by_token = lambda x: jnp.moveaxis(x, 3, 1).reshape(b, x.shape[3], h, *x.shape[4:])
  return Parts(
    jax.tree.map(by_token, out.queries),
    jax.tree.map(lambda x: jnp.moveaxis(x.sum(2), 1, 2), out.keys),
    jax.tree.map(lambda x: x.sum(0).reshape(h, *x.shape[3:]), out.heads),
    jax.tree.map(total(1, 2), out.rows),
    jax.tree.map(total(0, 1, 2), out.shared),
  )
