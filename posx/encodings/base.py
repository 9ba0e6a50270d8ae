"""The core contract: an encoding is a frozen dataclass with four places to act, all of them the identity here.

Attention is blind to order. An encoding may tell it about positions in exactly four places:

    on_input        the vector that enters the model            sinusoidal, learned
    on_query_key    queries and keys, before their product      RoPE, xPos
    on_scores       the scaled product, before softmax          ALiBi, T5, KERPLE, FIRE, Shaw, CoPE
    on_values       what the attended values sum to             Shaw's second table

`Encoding` leaves all four alone, so the base class *is* "no position" (NoPE). The fields of a subclass are its
hyper-parameters and nothing else: value equality, hash, repr and `dataclasses.replace` come for free and an encoding can
be a static argument of `jit`.

Hooks are written for **one head and one tile**. The attention maps them over heads, tiles and batch, so every hook is a
pure function of arrays and *positions*; positions are arguments, never `arange(shape)`.

An encoding that needs numbers made from the layer's input for each token (FoX's and CABLE's gates) declares `features`; the
score hook finds those of its queries in `p["query"]` and those of its keys in `p["key"]`.

Axes: t query token, u key token, h head, c head channel, d model channel, b batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

Arrays = Mapping[str, Any]
"""A (possibly nested) dictionary of arrays."""

Form = Literal["none", "distance", "elementwise", "rows"]
"""How general a score hook is; each form can be computed by the plans of those after it."""


@dataclasses.dataclass(frozen=True)
class Dims:
  """The sizes of the model that an encoding serves.

  Attributes:
    num_heads: h, the number of query heads (global, before any sharding).
    head_dim: c, channels of one head.
    model_dim: d, channels of the residual stream.
    train_length: tokens in a training window; the trained length L0.
  """

  num_heads: int
  head_dim: int
  model_dim: int
  train_length: int


@dataclasses.dataclass(frozen=True)
class Encoding:
  """No positional encoding (NoPE): order is known to a causal model by its mask alone.

  Subclasses override the hooks they need and state what they claim; `tests/encodings/test_contract.py` measures it.

  Class attributes:
    by_head: names of parameters and constants that carry a leading head axis, and of features whose axis after the tokens
      is one of heads; hooks see one head's slice. All others are shared by the heads.
    elementwise: the score hook at (i, j) needs only row i, column j and the score there. False asks for whole rows, in which
      hidden keys have a very negative score.
    mixes_heads: the score hook wants all heads at once: scores [h t u], q [h t c], k [h u c] and `p` whole.
    ordered: the score hook wants the keys of a document side by side, in the order of their positions.
    summed: names of features that hooks receive summed over the tokens so far (see `sums`), for pairs of one document.
    content_free: what is added to the scores depends on positions alone, not on queries, keys or the layer's input.
    relative: scores depend on positions through i - j alone (shift-invariant).
    norm_preserving: `on_query_key` keeps the norms of queries and keys.
    linear_shift: what `on_input` adds at p + k is a fixed linear map of what it adds at p.
    interpolable: fractional positions have a meaning, so that positions can be squeezed (false where content decides).

  Reference:
    Haviv et al., "Transformer Language Models without Positional Encodings Still Learn Positional Information",
    2022. arXiv:2203.16634. Kazemnejad et al., 2023. arXiv:2305.19466
  """

  by_head: ClassVar[tuple[str, ...]] = ()
  elementwise: ClassVar[bool] = True
  mixes_heads: ClassVar[bool] = False
  ordered: ClassVar[bool] = False
  summed: ClassVar[tuple[str, ...]] = ()
  content_free: ClassVar[bool] = True
  relative: ClassVar[bool] = True
  norm_preserving: ClassVar[bool] = True
  linear_shift: ClassVar[bool] = False
  interpolable: ClassVar[bool] = True

  # What the encoding owns.

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    """Learned float32 arrays of one layer (or of the input); `by_head` ones have a leading head axis."""
    del key, dims
    return {}

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    """Numbers that are not learned (slopes, inverse frequencies, tables), made on the host in float64.

    They reach the hooks as float32 or int32 arrays, as arguments of the compiled function: two encodings that
    differ only here share one executable.

    Args:
      dims: sizes of the model.
      length: the total number of positions in play (prompt plus what follows), for extensions that depend on it.
    """
    del dims, length
    return {}

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    """What the hooks receive as `p`: parameters and constants in one dictionary."""
    return {**constants, **params}

  # The four places.

  def on_input(self, p: Arrays, x: jax.Array, positions: jax.Array) -> jax.Array:
    """x [t d] -> [t d], positions [t]."""
    del p, positions
    return x

  def features(self, p: Arrays, x: jax.Array, positions: jax.Array) -> dict[str, Any]:
    """Numbers of each token from the layer's normalised input x [t d]: small float32 arrays [t ...], [t h ...] for `by_head` ones."""
    del p, x, positions
    return {}

  def on_query_key(self, p: Arrays, q: jax.Array, k: jax.Array, q_pos: jax.Array, k_pos: jax.Array) -> tuple[jax.Array, jax.Array]:
    """q [t c], k [u c] of one head -> the same, or with more channels (the scale stays that of c)."""
    del p, q_pos, k_pos
    return q, k

  def bias(self, p: Arrays, distance: jax.Array) -> jax.Array:
    """What is added to the scores as a function of `distance` = i - j (any shape) alone; float32, same shape."""
    del p
    return jnp.zeros(jnp.shape(distance), jnp.float32)

  def on_scores(self, p: Arrays, scores: jax.Array, q: jax.Array, k: jax.Array, q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
    """Scores [t u] (float32, already scaled) of one head -> scores. By default adds `bias(p, i - j)`.

    `q` [t c] and `k` [u c] are what was multiplied, unscaled. Positions are [t] and [u]. Masking comes after; a hook
    that is not elementwise can see other documents of a packed row only as scores, and wants hidden ones very negative.
    """
    del q, k
    if not self.uses("bias"):
      return scores
    return scores + self.bias(p, q_pos[:, None] - k_pos[None, :])

  def separable(self, p: Arrays, q_pos: jax.Array, k_pos: jax.Array) -> tuple[jax.Array, jax.Array]:
    """float32 [t r], [u r] of one head whose products are what the score hook adds, up to a number of the row.

    For keys at or behind the query. Overridden where r is small: attention kernels without a bias can then serve the encoding, and
    far keys whose weights must be 0 are known before their scores are made.
    """
    raise NotImplementedError("an encoding whose score hook is no product has no channels to give")

  def on_values(self, p: Arrays, weights: jax.Array, q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
    """An addition [t c] to the attended values, linear in `weights` [t u]; only called if overridden."""
    raise NotImplementedError("an encoding without a value hook has nothing to add")

  # What the machinery asks.

  def uses(self, hook: str) -> bool:
    """Whether this encoding overrides the hook of that name."""
    return getattr(type(self), hook) is not getattr(Encoding, hook)

  @property
  def form(self) -> Form:
    """The least general form that is true of the score hook; the attention picks its plan by it."""
    if not self.elementwise or self.mixes_heads:
      return "rows"
    if self.uses("on_scores"):
      return "elementwise"
    return "distance" if self.uses("bias") else "none"

  @property
  def length_dependent(self) -> bool:
    """Whether `constants` change with the length in play (then a cache must keep raw keys)."""
    return False

  @property
  def max_context(self) -> int | None:
    """The most tokens that are to be fed at once, the last ones; 0 for the trained length, None for no limit.

    A policy for whoever feeds tokens, not a formula: set by the extension 'truncate'.
    """
    return None

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    """(window, sinks): a query sees the last `window` tokens, itself included, and those at positions below `sinks`.

    (None, 0) hides nothing. Sinks stay visible beside a window that the caller sets, too; documents and the future do not.
    """
    del dims
    return None, 0

  def check(self, dims: Dims, length: int) -> None:
    """Raises UserError (a ValueError), with the cure, if the encoding cannot serve positions 0 .. length - 1 of such a model."""
    del dims, length

  def split(self) -> tuple[Encoding, Encoding]:
    """(what acts once on the input, what acts in every layer); each is an encoding, NoPE if there is nothing."""
    if self.uses("on_input"):
      return self, Encoding()
    return Encoding(), self

  def program(self) -> Encoding:
    """The encoding to trace with: equal programs differ in `constants` only and share one executable."""
    return self

  def heads(self, p: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits `p`, or features, into (what has a leading head axis, what the heads share)."""
    return parted(p, self.by_head)

  def sums(self, features: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits features into (what is to be summed over the tokens so far, what is not)."""
    return parted(features, self.summed)

  def join(self, p: Arrays, query: Arrays, key: Arrays) -> dict[str, Any]:
    """`p` with the features of the queries and of the keys at hand."""
    return {**p, "query": query, "key": key}


def parted(tree: Arrays, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
  """(what is called by one of the names, the rest), in dictionaries inside the dictionary too; `merge` undoes it."""
  named, rest = {}, {}
  for name, value in tree.items():
    if name in names:
      named[name] = value
    elif isinstance(value, Mapping):
      inner, rest[name] = parted(value, names)
      named |= {name: inner} if inner else {}
    else:
      rest[name] = value
  return named, rest


def merge(heads: Arrays, shared: Arrays) -> dict[str, Any]:
  """Undoes `Encoding.heads`: one dictionary again, nested where an encoding is a chain."""
  both = {**shared, **heads}
  return {n: merge(v, shared[n]) if isinstance(v, Mapping) and n in heads and n in shared else v for n, v in both.items()}


def over_heads(encoding: Encoding):
  """The score hook of an encoding that is written for one head, for scores [h t u], q [h t c] and k [h u c]."""

  def act(p, scores, q, k, q_pos, k_pos):
    mine, shared = encoding.heads(p)
    one = lambda mine, scores, q, k: encoding.on_scores(merge(mine, shared), scores, q, k, q_pos, k_pos)
    return jax.vmap(one)(mine, scores, q, k)

  return act
