"""Decoding with a cache: prefill in chunks, then a token at a time; logits equal those of the full forward pass."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posx.attention import cache as caches
from posx.attention import query_key, token_features
from posx.attention.cache import EMPTY, Cache, Slots
from posx.attention.visibility import Sight, narrowed
from posx.decoder import Decoder, check_tokens
from posx.encodings.base import Encoding
from posx.encodings.layers import PerLayer, of_period


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(4,))
def _step(model: Decoder, last: bool, raw: bool, params, cache, tokens, positions, segments, slots, constants):
  return model.apply(
    params, tokens, positions=positions, segments=segments, constants=constants, cache=cache, slots=slots, raw_keys=raw, last=last
  )


class Decoding:
  """A session: feeds tokens, keeps the cache, counts on the host so that nothing overflows silently.

  Tables that depend on the length (dynamic NTK, LongRoPE) have two honest readings. With `total` the length in play is
  known from the start, keys are cached turned, and every logit equals that of `model.apply` with `constants(total)`.
  Without it keys are cached raw and turned by the tables of the length reached; attention then is that of the full pass
  over the tokens so far, while what deeper layers made of earlier tokens stays as it was when they were read.

  Args:
    model: the decoder, with its encoding and extension.
    params: its parameters.
    batch: rows.
    capacity: tokens that the cache holds.
    total: the number of positions in play, prompt and what follows; 0 for the length reached.
    ring: overwrite the oldest tokens; the model's window, or the encoding's, says how many must stay, and which first ones.

  Raises:
    ValueError: if the encoding cannot serve so many positions, or a ring is asked for a model without a window.

  Example:
    decoding = Decoding(model, params, batch=1, capacity=2048)
    logits = decoding.feed(prompt)          # [1, 1, v], of the last token
    logits = decoding.feed(logits.argmax(-1))
  """

  def __init__(self, model: Decoder, params: Any, *, batch: int, capacity: int, total: int = 0, ring: bool = False):
    sight = narrowed(model.window, model.encoding.visibility(model.dims))
    if ring and sight is None:
      raise ValueError("a ring cache forgets tokens that a model without a window still looks at; set model.window, or ring=False")
    self.model, self.params, self.total = model, params, total
    self.follows = model.encoding.length_dependent and not total
    if not ring:
      model.encoding.check(model.dims, total or capacity)
    if self.follows and model.encoding.split()[0].length_dependent:
      raise ValueError(
        f"{model.encoding} changes the input of tokens already read with the length; give total=, the number of positions in play"
      )
    window, sinks = sight if isinstance(sight, Sight) else (sight or 0, 0)
    self.slots = Slots(capacity, ring, window, sinks)
    self.used = 0
    self.next = np.zeros(batch, np.int64)
    self.program = dataclasses.replace(model, encoding=model.encoding.program())
    self.constants = None if self.follows else jax.tree.map(jnp.asarray, model.constants(total or capacity))
    self.cache = self._empty(batch, capacity)

  def _empty(self, batch: int, capacity: int) -> Cache:
    _, g, c = self.model.head_shape
    encoding = self.program.encoding.split()[1]
    keys = g, c
    if self.constants is not None and encoding.uses("on_query_key"):
      constants = self.constants["layers"]
      own = lambda n: constants[str(n)] if isinstance(encoding, PerLayer) else constants
      sizes = {self._keys(part, own(n)) for n, (part, _) in enumerate(of_period(encoding))}
      if len(sizes) > 1:
        raise ValueError(f"layers whose keys differ in size, {sorted(sizes)}, do not share a cache; use encodings that keep the channels")
      (keys,) = sizes
    features = self._features(encoding)
    stacked = self.model.num_layers // self.model.period
    return caches.create(self.model.num_layers, batch, capacity, keys, (g, c), self.model.dtype, *features, stacked=stacked)

  def _features(self, encoding: Encoding):
    """Shapes of what one token's features and their sums take; by the place in the period where layers differ."""
    if isinstance(encoding, PerLayer):
      each = [self._features(part) for part in encoding.parts]
      return tuple({str(n): both[kind] for n, both in enumerate(each)} for kind in (0, 1))
    if not encoding.uses("features"):
      return {}, {}
    dims = self.model.dims
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))
    constants = jax.tree.map(jnp.asarray, encoding.constants(dims, dims.train_length))
    x = jax.ShapeDtypeStruct((1, 1, dims.model_dim), self.model.dtype)
    make = functools.partial(token_features, positions=np.zeros((1, 1), np.int32), encoding=encoding, constants=constants)
    features, sums = jax.eval_shape(lambda x, params: make(x, params=params), x, params)
    without = lambda tree, axes: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[axes:], x.dtype), tree)
    return without(features, 2), without(sums, 1)

  def _keys(self, encoding: Encoding, constants: Any) -> tuple[int, int]:
    """(heads, channels) of the keys that a cache keeps in a layer of this encoding."""
    h, g, c = self.model.head_shape
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), self.model.dims))
    one = lambda n: jax.ShapeDtypeStruct((1, 1, n, c), self.model.dtype)
    make = functools.partial(query_key, positions=np.zeros((1, 1), np.int32), encoding=encoding)
    return jax.eval_shape(lambda q, k, p: make(q, k, params=p, constants=constants), one(h), one(g), params)[1].shape[2:]

  def feed(self, tokens, *, positions=None, segments=None, last: bool = True, chunk: int = 0) -> jax.Array:
    """Reads tokens [b, t] and returns float32 logits of the last one [b, 1, v], or of all [b, t, v].

    Args:
      tokens: int32 [b, t].
      positions: int32 [b, t]; by default they go on from the last token of each row.
      segments: int32 [b, t], the document of each token; EMPTY (-1) marks padding, which is never seen and takes no position.
      last: logits of the last token only.
      chunk: read at most so many tokens at a time; 0 for all at once.

    Raises:
      ValueError: if the cache or the encoding has no room for them; nothing is read then.
    """
    tokens = np.asarray(tokens, np.int32)
    check_tokens("tokens", tokens, self.model.vocab_size)
    b, t = tokens.shape
    segments = np.zeros((b, t), np.int32) if segments is None else np.asarray(segments, np.int32)
    if positions is None:
      real = segments != EMPTY
      positions = self.next[:, None] + np.maximum(np.cumsum(real, axis=1) - 1, 0)
    positions = np.asarray(positions, np.int32)
    if positions.shape != (b, t) or segments.shape != (b, t):
      raise ValueError(f"tokens are {tokens.shape}; positions {positions.shape} and segments {segments.shape} must be the same")
    reached = int(positions.max(initial=0)) + 1
    if self.total and reached > self.total:
      raise ValueError(f"position {reached - 1} exceeds the {self.total} positions in play; give total={reached} or more")
    self.model.encoding.check(self.model.dims, reached)
    if self.slots.ring and ((positions < self.slots.sinks) & (segments != EMPTY) & (self.used + np.arange(t) >= self.slots.sinks)).any():
      raise ValueError(
        f"a ring keeps the first {self.slots.sinks} tokens fed, and here first tokens of a document come later; "
        "feed one document without padding before it, or use ring=False"
      )
    step = chunk or t
    parts = [(first, min(step, t - first)) for first in range(0, t, step)]
    places = [self.slots.take(self.used + first, size) for first, size in parts]
    logits = []
    for (first, size), slots in zip(parts, places, strict=True):
      cut = slice(first, first + size)
      constants = self.constants
      if self.follows:
        constants = jax.tree.map(jnp.asarray, self.model.constants(int(positions[:, cut].max(initial=0)) + 1))
      arrays = (jnp.asarray(x[:, cut]) for x in (tokens, positions, segments))
      out, self.cache = _step(self.program, last, self.follows, self.params, self.cache, *arrays, jnp.asarray(slots), constants)
      logits.append(out)
    self.used += t
    self.next = np.maximum(self.next, np.where((segments != EMPTY).any(1), positions.max(1) + 1, self.next))
    return logits[-1] if last else jnp.concatenate(logits, axis=1)
