"""A small pre-norm decoder in Flax Linen: the model in which encodings are compared.

The same weights under another encoding or extension are `dataclasses.replace(model, encoding=...)` with the same
parameters. The only file of the project that defines Flax modules.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from posx.attention import attend, query_key, sharded, token_features
from posx.attention import cache as caches
from posx.attention.attend import Plan
from posx.attention.cache import Cache
from posx.attention.visibility import concrete
from posx.encodings.base import Dims, Encoding
from posx.encodings.layers import PerLayer, of_period
from posx.errors import UserError
from posx.functional import swiglu, token_losses
from posx.sizes import UNROLLED_LAYERS, hidden_dim


def _normal(scale: float):
  return nn.initializers.normal(scale)


class Block(nn.Module):
  """x + attention(norm(x)), then x + mlp(norm(x)), on flat tokens [b * t, d].

  Tokens stay flat around every projection, so that a weight's gradient contracts one axis.
  """

  model: Decoder

  @nn.compact
  def __call__(self, x, memory, shared, constants, positions, segments, shape, recall, scored=0):
    """memory: this layer's part of a cache, or None; scored: only the last so many tokens are needed (0: all).

    Returns the new x and memory.
    """
    m = self.model
    params = _encoding_params(self, m.encoding.split()[1], m.dims) if shared is None else shared
    norm = lambda name: nn.RMSNorm(dtype=m.dtype, name=name)
    seen, memory = self.attention(norm("attention_norm")(x), memory, params, constants, positions, segments, shape, recall, scored)
    x = _last(x, shape, scored, m.context) + seen
    return x + self.mlp(norm("mlp_norm")(x)), memory

  def attention(self, x, memory, params, constants, positions, segments, shape, recall, scored):
    m, (h, g, c) = self.model, self.model.head_shape
    encoding = m.encoding.split()[1]
    qkv = self.project("qkv", x, (h + 2 * g) * c)
    q, k, v = jnp.split(qkv.reshape(*shape, h + 2 * g, c), [h, h + g], axis=2)
    rest = {"encoding": encoding, "params": params, "constants": constants}
    k_positions, k_segments, turned = positions, segments, False
    features, sums = {}, {}
    dealt = sharded.Dealt(m.context, g) if m.context else None
    if encoding.uses("features"):
      before = None if memory is None else memory["sums"]
      how = {"positions": positions, "segments": segments, "before": before, "dealt": dealt}
      features, sums = token_features(x.reshape(*shape, -1), **how, **rest)
    k_features = features
    if memory is not None:
      cache, slots, turned = recall
      if turned:
        q, k = query_key(q, k, positions=positions, **rest)
      write = lambda old, new: old.at[:, slots].set(new.astype(old.dtype))
      k, v, k_features = kept = jax.tree.map(write, (memory["keys"], memory["values"], memory["features"]), (k, v, features))
      memory = dict(zip(("keys", "values", "features"), kept, strict=True), sums=sums)
      k_positions, k_segments = cache.positions, cache.segments
    if dealt:
      q, k, v = map(dealt.by_heads, (q, k, v))
      rest |= {"params": dealt.own(encoding, params), "constants": dealt.own(encoding, constants)}
    if scored:
      q, features = jax.tree.map(lambda x: x[:, -scored:], (q, features))
      positions, segments = jax.tree.map(lambda x: x[..., -scored:], (positions, segments))
    out = attend(
      q, k, v, q_positions=positions, k_positions=k_positions, q_segments=segments, k_segments=k_segments,
      q_features=features or None, k_features=k_features or None,
      dims=m.dims, window=m.window, plan=m.plan, block=m.block, turned=turned, **rest,
    )  # fmt: skip
    out = dealt.by_tokens(out) if dealt else out
    return self.project("out", out.reshape(-1, h * c), m.model_dim, deep=True), memory

  def mlp(self, x):
    m = self.model
    if m.mlp == "gelu":
      return self.project("down", nn.gelu(self.project("up", x, m.hidden_dim)), m.model_dim, deep=True)
    return self.project("down", swiglu(self.project("up", x, 2 * m.hidden_dim)), m.model_dim, deep=True)

  def project(self, name: str, x, width: int, deep: bool = False):
    """A bias-free linear map; what is added to the residual stream starts smaller in deeper models."""
    scale = x.shape[-1] ** -0.5 * ((2 * self.model.num_layers) ** -0.5 if deep else 1.0)
    return nn.Dense(width, use_bias=False, dtype=self.model.dtype, kernel_init=_normal(scale), name=name)(x)


class Period(nn.Module):
  """One period of layers that differ in encoding or window: a block for each, called '0', '1', ..."""

  model: Decoder

  @nn.compact
  def __call__(self, x, memory, shared, constants, positions, segments, shape, recall, scored=0):
    """As a block, with memory and constants of every layer of the period."""
    kept = []
    for n, model in enumerate(_each(self.model)):
      mine = None if memory is None else caches.at_place(memory, n)
      last = scored if n == self.model.period - 1 else 0
      x, mine = Block(model, name=str(n))(x, mine, shared, constants[str(n)], positions, segments, shape, recall, last)
      kept.append(mine)
    return x, None if memory is None else caches.by_place(kept)


class Decoder(nn.Module):
  """Tokens to logits, with one encoding.

  Embeddings have unit variance when they enter the model (a table of standard deviation d^-1/2, times d^1/2), the scale
  for which sinusoids were designed.

  Attributes:
    vocab_size: number of tokens.
    num_layers: depth.
    model_dim: width d.
    num_heads: query heads h.
    num_kv_heads: key and value heads g; 0 for as many as query heads.
    head_dim: channels c of a head; 0 for d / h.
    mlp_dim: hidden width; 0 for 8/3 d up to a multiple of 32 (gated), or 4 d.
    mlp: 'gated' (SwiGLU) or 'gelu'.
    tied: the output matrix is the embedding.
    train_length: L0, tokens in a training window.
    encoding: what tells the model about positions; a `PerLayer` for layers that differ.
    share_encoding: one set of encoding parameters for all layers instead of one per layer.
    window: a query sees the last `window` tokens, itself included; None for all.
    dtype: of the computation; parameters, scores and losses are float32.
    plan, block: see `posx.attend`.
    context: inside `jax.shard_map`, the mesh axis over which tokens, and whatever is given by token, are cut; '' for none.
    reach: positions in play where they are not known while tracing; 0 for as many as tokens.
  """

  vocab_size: int
  num_layers: int
  model_dim: int
  num_heads: int
  num_kv_heads: int = 0
  head_dim: int = 0
  mlp_dim: int = 0
  mlp: str = "gated"
  tied: bool = True
  train_length: int = 512
  encoding: Encoding = Encoding()
  share_encoding: bool = False
  window: int | None = None
  dtype: Any = jnp.float32
  plan: Plan = "auto"
  block: tuple[int, int] | None = None
  reach: int = 0
  context: str = ""

  @property
  def dims(self) -> Dims:
    return Dims(self.num_heads, self.head_dim or self.model_dim // self.num_heads, self.model_dim, self.train_length)

  @property
  def head_shape(self) -> tuple[int, int, int]:
    """(query heads, key heads, channels of a head)."""
    return self.num_heads, self.num_kv_heads or self.num_heads, self.dims.head_dim

  @property
  def hidden_dim(self) -> int:
    return self.mlp_dim or hidden_dim(self.mlp, self.model_dim)

  @property
  def period(self) -> int:
    """Layers after which encodings and windows repeat."""
    return len(of_period(self.encoding))

  def constants(self, length: int) -> dict[str, Any]:
    """The encoding's host arrays for `length` positions; given as an argument, encodings share one executable."""
    first, inner = self.encoding.split()
    return {"input": first.constants(self.dims, length), "layers": inner.constants(self.dims, length)}

  @nn.compact
  def __call__(
    self,
    tokens: Int[Array, "b t"],
    targets: Int[Array, "b t"] | None = None,
    *,
    positions: Int[Array | np.ndarray, "*b t"] | None = None,
    segments: Int[Array, "b t"] | None = None,
    constants: Any = None,
    cache: Cache | None = None,
    slots: Int[Array, " t"] | None = None,
    raw_keys: bool = False,
    last: bool = False,
    scored: int = 0,
  ) -> Any:
    """Logits of the next token, or its losses if `targets` are given.

    Args:
      tokens: int32 token numbers; traced ones beyond the vocabulary count as its last, known ones are refused.
      targets: the token that follows each position.
      positions: int32 [t] or [b t]; 0 .. t - 1 by default.
      segments: document numbers; tokens of other documents are not seen. None for one document.
      constants: of `self.constants(length)`; made here by default.
      cache: memory of earlier tokens, see `posx.decoding`, which checks that the tokens fit.
      slots: int32 [t], where in the cache these tokens go.
      raw_keys: the cache holds keys as projected, and `constants` turn all of them anew.
      last: logits of the last token only, [b 1 v].
      scored: losses of the last so many tokens only, [b scored]; the last layer then asks for nothing else. 0 for all.

    Returns:
      float32 logits [b t v], or float32 losses [b t] in nats per token, made a chunk of tokens at a time; with a cache
      (logits, new cache).

    Raises:
      ValueError: sizes that do not fit together, or positions that the encoding cannot serve.
    """
    pieces = sharded.devices_of(self.context) if self.context else 1
    self._check(pieces)
    b, t = tokens.shape
    check_tokens("tokens", tokens, self.vocab_size)
    if targets is not None:
      check_tokens("targets", targets, self.vocab_size)
    if not 0 <= scored <= t * pieces or (scored and (targets is None or cache is not None)) or scored % pieces:
      evenly = f", shared evenly by {pieces} devices" if pieces > 1 else ""
      raise ValueError(
        f"scored={scored} counts the last tokens whose losses are asked for: 1 to {t * pieces}{evenly}, with targets and without a cache"
      )
    if self.context and (last or cache is not None):
      raise ValueError("a sequence that is cut over devices has no cache and no last token: leave cache and last out, or context")
    if self.context:
      here, positions, segments = sharded.whole(self.context, t, positions, segments)
    else:
      here = positions = np.arange(t, dtype=np.int32) if positions is None else positions
    if not isinstance(positions, jax.core.Tracer) or constants is None:
      if isinstance(positions, jax.core.Tracer) and self.encoding.length_dependent and not self.reach:
        raise ValueError(
          f"{self.encoding} depends on the length in play, which traced positions do not tell; "
          "pass constants=model.constants(length), or positions as NumPy values"
        )
      length = (
        max(positions.shape[-1], self.reach)
        if isinstance(positions, jax.core.Tracer)
        else int(np.max(np.asarray(positions), initial=0)) + 1
      )
      self.encoding.check(self.dims, length)
    constants = jax.tree.map(jnp.asarray, self.constants(length) if constants is None else constants)

    embedding = self.param("embedding", _normal(self.model_dim**-0.5), (self.vocab_size, self.model_dim), jnp.float32)
    x = (jnp.take(embedding, tokens, axis=0, mode="clip") * self.model_dim**0.5).astype(self.dtype)
    x = self._input(x, here, constants["input"]).reshape(b * t, self.model_dim)
    shared = _encoding_params(self, self.encoding.split()[1], self.dims) if self.share_encoding else None

    memory = None
    if cache is not None:
      assert slots is not None and positions is not None, "slots says where in the cache the tokens go"
      segments = jnp.zeros((b, t), jnp.int32) if segments is None else segments
      cache = cache.note(slots, jnp.broadcast_to(positions, (b, t)), segments)
      memory = {"keys": cache.keys, "values": cache.values, "features": cache.features, "sums": cache.sums}

    # positions stay in this closure: as NumPy values they let the attention choose a static plan
    def layer(block, x, memory):
      return block(x, memory, shared, constants["layers"], positions, segments, (b, t), (cache, slots, not raw_keys))

    groups = self.num_layers // self.period
    if scored and targets is not None and not self.is_initializing():
      x = self._scored(x, (shared, constants["layers"], positions, segments, (b, t)), scored)
      targets, t = _last(targets, (b, t), scored, self.context), scored // pieces
    else:
      apart = isinstance(self.encoding, PerLayer)
      if apart and memory is not None:
        memory = caches.by_period(memory, groups)
      unroll = groups if self.num_layers <= UNROLLED_LAYERS else 1
      scanned = nn.scan(layer, variable_axes={"params": 0, "intermediates": 0}, split_rngs={"params": True}, length=groups, unroll=unroll)
      x, memory = scanned(_stack(self, name="layers"), x, memory)
      if apart and memory is not None:
        memory = caches.by_layer(memory)
    if last:
      x, t = _last(x, (b, t), 1), 1
    x = nn.RMSNorm(dtype=self.dtype, name="norm")(x)
    out = embedding.T if self.tied else self.param("output", _normal(self.model_dim**-0.5), (self.model_dim, self.vocab_size), jnp.float32)
    if targets is None:
      logits = jnp.matmul(x, out.astype(self.dtype), preferred_element_type=jnp.float32).reshape(b, t, -1)
      if cache is None:
        return logits
      assert memory is not None
      return logits, dataclasses.replace(cache, **memory)
    return token_losses(x, out, targets.reshape(-1)).reshape(b, t)

  def token_losses(self, tokens, targets, **kwargs) -> Float[Array, "b t"]:
    """Losses in nats of `targets` [b t] after `tokens` [b t], or of the last `scored` of them; see `__call__`."""
    return self(tokens, targets, **kwargs)

  def _scored(self, x, rest, scored: int):
    """All layers, the last of them for the last `scored` tokens; the weights are those that the scan over layers made."""
    weights = self.variables["params"]["layers"]

    def layer(x, weights, scored):
      return _stack(self, parent=None).apply({"params": weights}, x, None, *rest, None, scored)[0]

    if self.num_layers > self.period:
      x, _ = lax.scan(lambda x, weights: (layer(x, weights, 0), None), x, jax.tree.map(lambda w: w[:-1], weights))
    return layer(x, jax.tree.map(lambda w: w[-1], weights), scored)

  def _input(self, x, positions, constants):
    first = self.encoding.split()[0]
    if not first.uses("on_input"):
      return x
    p = first.prepare(_encoding_params(self, first, self.dims, "input_encoding"), constants)
    axis = 0 if np.ndim(positions) == 2 else None
    return jax.vmap(lambda x, positions: first.on_input(p, x, positions), in_axes=(0, axis))(x, jnp.asarray(positions))

  def _check(self, pieces: int):
    if self.mlp not in ("gated", "gelu"):
      raise ValueError(f"unknown mlp {self.mlp!r}; known: 'gated', 'gelu'")
    if not self.head_dim and self.model_dim % self.num_heads:
      raise ValueError(f"num_heads={self.num_heads} does not divide model_dim={self.model_dim}; change one of them or give head_dim")
    if self.context and (reason := sharded.uncut(self.encoding, *self.head_shape[:2], pieces)):
      raise ValueError(f"a sequence cannot be cut over {pieces} devices: {reason}; evaluate on one")
    if self.num_layers % self.period:
      raise ValueError(f"a period of {self.period} layers does not divide num_layers={self.num_layers}")
    h, g, _ = self.head_shape
    if h % g:
      raise ValueError(f"num_kv_heads={g} does not divide num_heads={h}")


def check_tokens(name: str, tokens: Any, vocab_size: int) -> None:
  """Refuses token numbers outside the vocabulary where their values are known."""
  known = concrete(tokens)
  if known is not None and known.size and not 0 <= known.min() <= known.max() < vocab_size:
    raise UserError(
      f"{name} are numbers from 0 to {vocab_size - 1}, got {known.min()} to {known.max()}; use the tokenizer that the model was made for"
    )


def _last(x, shape: tuple[int, int], n: int, context: str = ""):
  """Of flat tokens [b * t, d] the last n of each row, [b * n, d]; 0 for all. Of tokens that are cut over devices, the own share."""
  if not n:
    return x
  x = x.reshape(*shape, -1)
  x = sharded.last_of(context, x, n) if context else x[:, -n:]
  return x.reshape(-1, x.shape[-1])


def _plain(model: Decoder) -> Decoder:
  """The model as a plain value that a submodule may read its sizes from."""
  return model.clone(parent=None, name=None)


def _stack(model: Decoder, **how: Any) -> nn.Module:
  """What is scanned over the depth: a block, or a period of blocks that differ."""
  return Block(_plain(model), **how) if not isinstance(model.encoding, PerLayer) else Period(_plain(model), **how)


def _each(model: Decoder) -> list[Decoder]:
  """The model as each layer of a period sees it."""
  windows = lambda own: min((w for w in (own, model.window) if w), default=None)
  return [model.clone(parent=None, name=None, encoding=encoding, window=windows(own)) for encoding, own in of_period(model.encoding)]


def _encoding_params(module: nn.Module, encoding: Encoding, dims: Dims, name: str = "encoding") -> dict[str, Any]:
  """The encoding's learned arrays as one parameter of `module`; none if it learns nothing."""
  if not jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims)):
    return {}
  return module.param(name, lambda key: encoding.init(key, dims))


def from_config(config: Any, vocab_size: int, encoding: Encoding | None = None) -> Decoder:
  """The model that a config describes.

  Args:
    config: with `model` and `train` sections (see `posx.config`).
    vocab_size: number of tokens.
    encoding: in place of the config's own, for the same weights under another encoding or extension.
  """
  from posx import config as configs
  from posx import positions

  model = {name: value for name, value in config.model.items() if name not in ("dtype", "window", "layers")}
  return Decoder(
    vocab_size=vocab_size,
    encoding=configs.encoding(config) if encoding is None else encoding,
    train_length=config.train.original_length or config.train.length,
    reach=max(config.train.length, positions.reach(config.positions)),
    window=config.model.window or None,
    dtype=jnp.dtype(config.model.dtype),
    **model,
  )
