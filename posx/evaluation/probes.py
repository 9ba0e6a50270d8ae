"""What attention does with length: where it looks, how far a loss reaches back, and the kernels that encodings have learned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posx import data
from posx.attention import bias_matrix, dense, query_key
from posx.decoder import Decoder
from posx.encodings.base import Encoding
from posx.encodings.layers import PerLayer
from posx.errors import UserError
from posx.evaluation.subject import Subject

STRIP = 16
"""Queries whose weights over all keys exist at a time."""

STATISTICS = ("distance", "entropy", "sink")


def _inner(subject: Subject) -> Encoding:
  """What acts in every layer.

  Raises:
    UserError: if layers differ; their weights and kernels are not stacked.
  """
  if isinstance(subject.model.encoding, PerLayer):
    raise UserError(f"{subject.label} has layers that differ (model.layers); this probe takes a run whose layers are alike")
  return subject.model.encoding.split()[1]


# Attention.


def projected(model: Decoder, params: Any, tokens: Any, constants: Any) -> jax.Array:
  """Queries, keys and values of all layers as projected, [layer b t h + 2g c]."""
  found: Any
  _, found = model.apply(
    params, tokens, constants=constants, mutable=["intermediates"], capture_intermediates=lambda module, name: module.name == "qkv"
  )
  qkv = found["intermediates"]["layers"]["qkv"]["__call__"][0]
  return qkv.reshape(model.num_layers, *tokens.shape, -1, model.dims.head_dim)


def of_layers(model: Decoder, params: Any) -> Any:
  """The encoding's parameters of every layer, stacked; shared ones are repeated."""
  own = params["params"]
  if model.share_encoding and "encoding" in own:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (model.num_layers, *jnp.shape(x))), own["encoding"])
  return own["layers"].get("encoding", {})


@functools.partial(jax.jit, static_argnums=(0, 4))
def _statistics(model: Decoder, params, tokens, constants, queries: int):
  """{statistic: [layer h]} over the last `queries` queries of one window [t]."""
  inner, (h, g, _) = model.encoding.split()[1], model.head_shape
  t = tokens.shape[0]
  positions = np.arange(t, dtype=np.int32)
  first = t - queries

  def layer(inputs):
    qkv, own = inputs
    q, k, _ = jnp.split(qkv, [h, h + g], axis=2)
    q, k = query_key(q, k, positions=positions, encoding=inner, params=own, constants=constants["layers"])
    q, k, p = jnp.moveaxis(q, 2, 1), jnp.moveaxis(k, 2, 1), inner.prepare(own, constants["layers"])

    def strip(start):
      rows = jax.lax.dynamic_slice_in_dim(q, start, STRIP, axis=2)
      at = start + jnp.arange(STRIP, dtype=jnp.int32)
      scale = model.dims.head_dim**-0.5
      w = dense.weights(rows, k, at[None], jnp.asarray(positions)[None], inner, p, scale=scale, window=model.window)[0]
      distance = (at[:, None] - positions[None, :]).astype(jnp.float32)
      bits = -jnp.sum(jnp.where(w > 0, w * jnp.log2(jnp.where(w > 0, w, 1.0)), 0.0), axis=-1)
      return jnp.stack([jnp.sum(w * distance, axis=-1).mean(-1), bits.mean(-1), w[..., 0].mean(-1)])

    return jax.lax.map(strip, first + STRIP * jnp.arange(queries // STRIP)).mean(0)

  stacked = jax.lax.map(layer, (projected(model, params, tokens[None], constants), of_layers(model, params)))
  return dict(zip(STATISTICS, jnp.moveaxis(stacked, 1, 0), strict=True))


def attention(subject: Subject, *, lengths: Sequence[int], documents: int, queries: int, say: Callable[[str], None] = print) -> dict:
  """Where the last queries of a window look, by length of the window.

  Args:
    subject: the run.
    lengths: of the windows, tokens.
    documents: how many texts, the longest ones.
    queries: the last so many queries of each window, rounded up to whole strips.
    say: receives a line for each length.

  Returns:
    'lengths' [n]; 'distance' (mean of i - j under the weights, tokens), 'entropy' (bits) and 'sink' (weight on the first
    token), float32 [n, layer, h], averaged over queries and documents.

  Raises:
    UserError: for windows shorter than a strip, or an encoding whose weights need more than queries and keys.
  """
  model, inner = subject.model, _inner(subject)
  if inner.uses("features") or inner.visibility(model.dims) != (None, 0):
    raise UserError(f"{subject.label}: weights are recomputed from queries and keys alone, which is not all that this encoding uses")
  queries = -(-queries // STRIP) * STRIP
  if min(lengths) < queries:
    raise UserError(f"the last {queries} queries are asked for, but a window has {min(lengths)} tokens; give longer lengths")
  tokens, _ = data.segments(subject.corpus, length=max(lengths), documents=documents)
  found: dict[str, list] = {name: [] for name in STATISTICS}
  for length in sorted(lengths):
    model.encoding.check(model.dims, length)
    constants = jax.tree.map(jnp.asarray, model.constants(length))
    each = [_statistics(model, subject.params, row[:length], constants, queries) for row in tokens]
    for name in STATISTICS:
      found[name].append(np.mean([np.asarray(one[name]) for one in each], axis=0))
    distance, entropy, sink = (float(found[name][-1].mean()) for name in STATISTICS)
    say(f"{subject.label} at {length} tokens: {distance:.1f} tokens away, {entropy:.2f} bits, {sink:.1%} on the first token")
  return {"lengths": np.array(sorted(lengths)), **{name: np.stack(values) for name, values in found.items()}}


# The receptive field.


@functools.partial(jax.jit, static_argnums=(0,))
def _reach(model: Decoder, params, tokens, constants, target):
  """|d loss of the token after `target` / d input j| [t], of one window with its last target [t + 1]."""
  from flax import linen

  def loss(shift):
    def shifted(function, args, kwargs, context):
      return function(args[0] + shift, *args[1:], **kwargs) if context.method_name == "_input" else function(*args, **kwargs)

    with linen.intercept_methods(shifted):
      losses: Any = model.apply(params, tokens[None, :-1], tokens[None, 1:], constants=constants, method="token_losses")
    return losses[0, target]

  t = tokens.shape[0] - 1
  return jnp.linalg.norm(jax.grad(loss)(jnp.zeros((1, t, model.model_dim), jnp.float32))[0], axis=-1)


def receptive(subject: Subject, *, length: int, documents: int, targets: int, say: Callable[[str], None] = print) -> dict:
  """How much a loss near the end of a window depends on the input so many tokens before it.

  Args:
    subject: the run.
    length: of the windows, tokens.
    documents: how many texts, the longest ones.
    targets: the last so many losses of each.
    say: receives a line.

  Returns:
    'distance' [n], from 0; 'gradient' float64 [n], the norm of the gradient with respect to the embedding of the input at
    that distance, averaged over targets and documents.
  """
  model = subject.model
  model.encoding.check(model.dims, length)
  tokens, _ = data.segments(subject.corpus, length=length, documents=documents)
  if not 1 <= targets <= length // 2:
    raise UserError(f"targets={targets} must lie in 1 .. {length // 2}, half a window, so that all of them look far back")
  constants = jax.tree.map(jnp.asarray, model.constants(length))
  n = length - targets + 1
  total = np.zeros(n)
  for row in tokens:
    for target in range(length - targets, length):
      norms = np.asarray(_reach(model, subject.params, row, constants, target), np.float64)
      total += norms[target - n + 1 : target + 1][::-1]
  gradient = total / (len(tokens) * targets)
  say(f"{subject.label} at {length} tokens: half of the gradient is within {half(gradient)} tokens, 99 % within {half(gradient, 0.99)}")
  return {"distance": np.arange(n), "gradient": gradient}


def half(gradient: np.ndarray, share: float = 0.5) -> int:
  """How many tokens, counted back from the last one, hold that share of the gradient."""
  return int(np.searchsorted(np.cumsum(gradient), share * gradient.sum())) + 1


# Kernels.


def kernels(subject: Subject, *, lengths: Sequence[int]) -> dict:
  """What the encoding adds to the scores of the last query of a window, by distance.

  Returns:
    'lengths' [n] and for each of them 'bias_LENGTH', float32 [layer, h, LENGTH], in logits, from distance 0.

  Raises:
    UserError: for an encoding that adds nothing, or what depends on queries and keys.
  """
  model, inner = subject.model, _inner(subject)
  if not inner.content_free or not (inner.uses("bias") or inner.uses("on_scores")):
    raise UserError(f"{subject.label} adds no function of positions to the scores; kernels are of t5, alibi, kerple, sandwich, fire, bam")
  stacked = of_layers(model, subject.params)
  found: dict[str, Any] = {"lengths": np.array(sorted(lengths))}
  for length in found["lengths"].tolist():
    model.encoding.check(model.dims, length)
    keys = np.arange(length, dtype=np.int32)
    layers = [jax.tree.map(lambda x: x[n], stacked) for n in range(model.num_layers)]  # noqa: B023
    each = [bias_matrix(inner, own, keys[-1:], keys, model.num_heads)[:, 0, ::-1] for own in layers]
    found[f"bias_{length}"] = np.stack([np.asarray(x) for x in each])
  return found
