"""`attend`: attention with any encoding at any positions; picks a plan by the form of the score hook."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from posx.attention import dense, fused, measured, tiled
from posx.attention.visibility import concrete, narrowed, start_of_run
from posx.encodings.base import Dims, Encoding, merge

Plan = Literal["auto", "dense", "tiled", "fused"]
PLANS = ("auto", "dense", "tiled", "fused")


def attend(
  q: Float[Array, "b t h c"],
  k: Float[Array, "b u g c"],
  v: Float[Array, "b u g e"],
  *,
  q_positions: Int[Array, "*b t"],
  k_positions: Int[Array, "*b u"],
  encoding: Encoding,
  params: Any,
  causal: bool = True,
  window: int | None = None,
  q_segments: Int[Array, "*b t"] | None = None,
  k_segments: Int[Array, "*b u"] | None = None,
  plan: Plan = "auto",
  block: tuple[int, int] | None = None,
  constants: Any = None,
  dims: Dims | None = None,
  turned: bool = False,
  q_features: Any = None,
  k_features: Any = None,
) -> Float[Array, "b t h e"]:
  """Attention in which the encoding acts on queries and keys, on the scores and on the values.

  o_i = sum_j softmax_j(score(q_i . k_j / sqrt(c), i, j)) v_j over the keys that query i may see.

  Args:
    q: queries; h heads.
    k: keys; g heads, g divides h (grouped-query attention).
    v: values.
    q_positions: int32 positions of the queries, [t] or [b t]; any values, in any order.
    k_positions: int32 positions of the keys.
    encoding: what tells attention about positions.
    params: one layer's parameters, from `encoding.init`.
    causal: a query sees keys at or before its own position.
    window: a query sees the last `window` tokens, itself included; None for all. The encoding may narrow it, and keep first
      tokens visible beside it.
    q_segments: int32 document numbers; a query sees keys of its own document. None for one document.
    k_segments: as `q_segments`, for the keys.
    plan: 'dense' holds [h t u] scores; 'tiled' needs O(t) memory in both passes; 'fused' is `jax.nn.dot_product_attention`, for
      encodings without a score hook or with a separable one; 'auto' takes what was measured to be fastest
      (`posx.attention.measured`), 'dense' for 64 queries at most.
    block: (query, key) tokens of a tile; None chooses.
    constants: `encoding.constants(...)` as arrays, to share one executable between encodings; made here if None.
    dims: the model's sizes, where constants made here need more than q tells.
    turned: q and k went through `query_key` already (keys from a cache).
    q_features: of the queries, from `token_features`, for an encoding that declares features.
    k_features: of the keys.

  Returns:
    [b t h e] in v's dtype. A query that sees no key gets 0.

  Raises:
    ValueError: shapes that do not fit, an unknown plan, no features for an encoding that needs them, or an encoding that cannot
      serve these sizes.
  """
  _check_shapes(q, k, v, q_positions, k_positions, q_segments, k_segments, window, plan, turned)
  features = _features(encoding, q_features, k_features)
  b, t, h, c = q.shape
  dims = dims or Dims(h, c, h * c, 0)
  if constants is None:
    constants = encoding.constants(dims, lengths(encoding, q_positions, k_positions))
  if 0 in (b, t, k.shape[1], v.shape[3]):
    return jnp.zeros((b, t, h, v.shape[3]), v.dtype)
  p = encoding.prepare(params, jax.tree.map(jnp.asarray, constants))
  q_pos, k_pos, q_seg, k_seg = (_rows(x) for x in (q_positions, k_positions, q_segments, k_segments))
  q, k, v = (jnp.moveaxis(x, 2, 1) for x in (q, k, v))
  if encoding.uses("on_query_key") and not turned:
    q, k = _query_key(encoding, p, q, k, q_pos, k_pos)
  if k.shape[1] != v.shape[1]:  # keys turned by head are no longer shared by a group
    v = jnp.repeat(v, k.shape[1] // v.shape[1], axis=1)
  if encoding.ordered and (start_of_run(k_pos) is None or k_seg is not None):
    k, v, k_pos, k_seg, features = _in_order(k, v, k_pos, k_seg, features)
  shared = {"scale": dims.head_dim**-0.5, "causal": causal, "window": narrowed(window, encoding.visibility(dims)), "features": features}
  where = {"dtype": q.dtype, "causal": causal, "window": shared["window"], "segments": q_seg is not None}
  if plan == "auto":
    plan = _chosen(q, k, v, encoding, q_pos, k_pos, where)
  if plan == "dense":
    whole = lambda x: None if x is None else jnp.broadcast_to(jnp.asarray(x), (b, x.shape[-1]))
    out = dense.attention(q, k, v, whole(q_pos), whole(k_pos), encoding, p, **shared, q_segments=whole(q_seg), k_segments=whole(k_seg))
  elif plan == "fused":
    if reason := fused.serves(encoding, q_pos, k_pos, **where):
      raise ValueError(f"plan='fused' does not serve this: {reason}; take plan='auto' or 'tiled'")
    out = fused.attention(q, k, v, q_pos, k_pos, encoding, p, **shared)
  else:
    cpu = jax.default_backend() == "cpu"
    out = tiled.attention(q, k, v, q_pos, k_pos, encoding, p, **shared, q_segments=q_seg, k_segments=k_seg, block=block, cpu=cpu)
  return jnp.moveaxis(out, 1, 2)


def _chosen(q, k, v, encoding: Encoding, q_pos, k_pos, where) -> Plan:
  """The whole score matrix where it is small and was measured to be fastest; a library's kernel where there is one; else tiles."""
  t, u = q.shape[2], k.shape[2]
  times = measured.milliseconds(jax.default_backend(), measured.hook_of(encoding), t, u)
  fastest = min(times, key=lambda plan: times[plan]) if times else None
  small = t <= measured.MOST_QUERIES and fastest == "dense" if times else t * u <= 64 * 64
  if small or t == 1:
    return "dense"
  narrow = {x.dtype for x in (q, k, v)} in ({jnp.dtype("bfloat16")}, {jnp.dtype("float16")})
  if jax.default_backend() == "gpu" and narrow and not fused.serves(encoding, q_pos, k_pos, **where):
    return "fused"
  return "tiled"


def query_key(q, k, *, positions, encoding: Encoding, params: Any, constants: Any):
  """What `attend` does to queries [b t h c] and keys [b t g c] of the same tokens first; the keys are what a cache keeps."""
  if not encoding.uses("on_query_key"):
    return q, k
  p = encoding.prepare(params, constants)
  positions = _rows(positions)
  q, k = _query_key(encoding, p, jnp.moveaxis(q, 2, 1), jnp.moveaxis(k, 2, 1), positions, positions)
  return jnp.moveaxis(q, 1, 2), jnp.moveaxis(k, 1, 2)


def bias_matrix(encoding: Encoding, params: Any, q_positions, k_positions, num_heads: int) -> Float[Array, "h t u"]:
  """What a content-free encoding adds to the scores, without any mask.

  Args:
    encoding: an encoding whose score hook does not look at queries and keys; one without a score hook adds 0.
    params: one layer's parameters, from `encoding.init`.
    q_positions: int32 [t].
    k_positions: int32 [u].
    num_heads: h.

  Returns:
    float32 [h, t, u], in logits.

  Raises:
    ValueError: if what is added depends on queries and keys.
  """
  if not encoding.content_free or encoding.uses("features"):
    raise ValueError(
      f"{type(encoding).__name__} adds to the scores what depends on queries and keys; bias_matrix shows content-free encodings only"
    )
  q_pos, k_pos = jnp.asarray(q_positions), jnp.asarray(k_positions)
  constants = encoding.constants(Dims(num_heads, 2, 2 * num_heads, 0), lengths(encoding, q_pos, k_pos))
  mine, shared = encoding.heads(encoding.prepare(params, jax.tree.map(jnp.asarray, constants)))
  blank = jnp.zeros((num_heads, q_pos.size, k_pos.size), jnp.float32)
  nothing = jnp.zeros((q_pos.size, 0)), jnp.zeros((k_pos.size, 0))
  return jax.vmap(lambda mine, s: encoding.on_scores(merge(mine, shared), s, *nothing, q_pos, k_pos))(mine, blank)


def _query_key(encoding: Encoding, p, q, k, q_pos, k_pos):
  """Maps `on_query_key` over batch and heads; q [b h t c], k [b g u c]."""
  b, h, t, _ = q.shape
  g = k.shape[1]
  mine, shared = encoding.heads(p)
  if jax.tree.leaves(mine):
    k = jnp.repeat(k, h // g, axis=1)
  else:  # the heads of a group turn alike: they are more rows of one head
    q = q.reshape(b, g, h // g * t, -1)
  repeats = q.shape[2] // t
  q_rows, k_rows = jnp.asarray(q_pos), jnp.asarray(k_pos)
  axes = 0 if q_rows.shape[0] == b else None, 0 if k_rows.shape[0] == b else None
  q_rows, k_rows = (x if axis == 0 else x[0] for x, axis in zip((q_rows, k_rows), axes, strict=True))

  def one(mine, q, k, q_pos, k_pos):
    return encoding.on_query_key(merge(mine, shared), q, k, jnp.tile(q_pos, repeats), k_pos)

  over_heads = jax.vmap(one, in_axes=(0, 0, 0, None, None)) if jax.tree.leaves(mine) else jax.vmap(one, in_axes=(None, 0, 0, None, None))
  q, k = jax.vmap(over_heads, in_axes=(None, 0, 0, *axes))(mine, q, k, q_rows, k_rows)
  return q.reshape(b, h, t, -1), k


def _features(encoding: Encoding, queries: Any, keys: Any) -> dict[str, Any] | None:
  if encoding.uses("features") != (queries is not None) or (queries is None) != (keys is None):
    name = type(encoding).__name__
    if encoding.uses("features"):
      raise ValueError(
        f"{name} needs numbers made from the layer's input; give q_features and k_features, see posx.attention.token_features"
      )
    raise ValueError(f"{name} declares no features; leave q_features and k_features out")
  return None if queries is None else {"query": queries, "key": keys}


def _in_order(k, v, k_pos, k_seg, features):
  """Keys of [b g u c] and whatever goes with them, document by document in the order of their positions."""
  k_pos, k_seg = jnp.asarray(k_pos), None if k_seg is None else jnp.asarray(k_seg)
  rows = max(k_pos.shape[0], 1 if k_seg is None else k_seg.shape[0])
  k_pos, k_seg = (None if x is None else jnp.broadcast_to(x, (rows, x.shape[1])) for x in (k_pos, k_seg))
  by: Any = (k_pos,) if k_seg is None else (k_pos, k_seg)
  order = jnp.lexsort(by)
  take = lambda x, axis=1: jnp.take_along_axis(x, order.reshape(rows, *[1] * (axis - 1), -1, *[1] * (x.ndim - axis - 1)), axis=axis)
  k, v, k_pos, k_seg = take(k, 2), take(v, 2), take(k_pos), None if k_seg is None else take(k_seg)
  return k, v, k_pos, k_seg, features and {**features, "key": jax.tree.map(take, features["key"])}


def _rows(x):
  """[t] or [b t] -> int32 [1 or b, t]; stays NumPy where values are known, so that plans may look at them."""
  if x is None:
    return None
  known = concrete(x)
  x = (x if known is None else known).astype(np.int32)  # differences of unsigned or narrow integers would wrap around
  x = x[None] if x.ndim == 1 else x
  return x[:1] if known is not None and (x == x[:1]).all() else x


def lengths(encoding: Encoding, q_positions, k_positions) -> int:
  q_known, k_known = concrete(q_positions), concrete(k_positions)
  if q_known is not None and k_known is not None:
    return int(max((x.max() for x in (q_known, k_known) if x.size), default=0)) + 1
  if encoding.length_dependent:
    raise ValueError(
      f"{encoding} depends on the length in play, which is not known here while tracing; pass constants=encoding.constants(dims, length)"
    )
  return max(q_positions.shape[-1], k_positions.shape[-1])


def _check_shapes(q, k, v, q_positions, k_positions, q_segments, k_segments, window, plan, turned):
  if plan not in PLANS:
    raise ValueError(f"unknown plan {plan!r}; known: {', '.join(PLANS)}")
  if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
    raise ValueError(f"q, k, v must be [b t h c], [b u g c], [b u g e]; got {q.shape}, {k.shape}, {v.shape}")
  (b, t, h, c), (_, u, g, _) = q.shape, k.shape
  if k.shape != (b, u, g, c) or v.shape[:2] != (b, u) or (v.shape[2] != g and not turned):
    raise ValueError(f"q {q.shape}, k {k.shape} and v {v.shape} do not fit: they share b and c, k and v share u and g")
  if h % g:
    raise ValueError(f"{g} key heads do not divide {h} query heads")
  for name, x, n in (
    ("q_positions", q_positions, t),
    ("k_positions", k_positions, u),
    ("q_segments", q_segments, t),
    ("k_segments", k_segments, u),
  ):
    if x is not None and x.shape not in ((n,), (b, n), (1, n)):
      raise ValueError(f"{name} must be [{n}] or [{b}, {n}], got {x.shape}")
    if x is not None and not jnp.issubdtype(x.dtype, jnp.integer):
      raise ValueError(f"{name} must be integers, got {x.dtype}")
  for name, x in (("q", q), ("k", k), ("v", v)):
    if over := [axis for axis in jax.typeof(x).sharding.spec if axis is not None]:
      raise ValueError(
        f"{name} is shared out over the explicit mesh axis {over[0]!r}; "
        "use posx.attention.sharded.attend_sharded, or a mesh with axis_types=AxisType.Auto"
      )
  if (q_segments is None) != (k_segments is None):
    raise ValueError("give both q_segments and k_segments, or neither")
  if window is not None and window < 1:
    raise ValueError(f"window counts the query itself, so it must be at least 1; got {window}")
