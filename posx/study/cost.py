"""What a run costs, from its configuration alone: parameters, FLOPs, memory. Closed formulas that need no JAX.

FLOPs are those of the model: 2 for each multiply-add of the weight matrices and of attention (queries by keys and weights by
values, for each key that a query may see), a training step three times the forward pass. What an encoding computes itself and
what is computed twice to save memory is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from posx import config as configs
from posx.encodings import CATALOGUE
from posx.sizes import LOGITS_AT_ONCE, TOKENS_AT_ONCE, hidden_dim

_LEARNED: dict[str, Callable[[Any, Any], int]] = {
  "nope": lambda e, d: 0,
  "sinusoidal": lambda e, d: 0,
  "learned": lambda e, d: d.train_length * d.model_dim,
  "shaw": lambda e, d: (1 + e.values) * (2 * e.clip + 1) * d.head_dim,
  "transformer_xl": lambda e, d: d.num_heads * d.head_dim * (d.model_dim + 2),
  "t5": lambda e, d: d.num_heads * e.num_buckets,
  "rope": lambda e, d: 0,
  "xpos": lambda e, d: 0,
  "pope": lambda e, d: d.num_heads * d.head_dim,
  "alibi": lambda e, d: 0,
  "kerple": lambda e, d: 2 * d.num_heads,
  "sandwich": lambda e, d: 0,
  "fire": lambda e, d: 2 * e.width + d.num_heads * (e.width + 1) + 2,
  "cope": lambda e, d: e.max_position * d.head_dim,
  "bam": lambda e, d: (e.learn_shape + e.learn_scale + e.learn_location) * d.num_heads,
}
"""What one layer (or the input) learns with default fields; in all other cases the encoding is asked, which imports JAX."""


class Pass(NamedTuple):
  """Forward passes over `windows` windows of `length` tokens, with attention to the last `window` of them (0: all)."""

  length: int
  windows: int
  window: int = 0

  @property
  def tokens(self) -> int:
    return self.length * self.windows


class Cost(NamedTuple):
  """What one run costs.

  Attributes:
    parameters: of the model and its encoding.
    train_flops: of all steps.
    eval_flops: of all evaluations; None where `eval.documents` leaves their number to the text.
    train_bytes: memory of a training step, all devices together.
    eval_bytes: memory of the longest evaluation.
    train_tokens: of all steps.
    eval_tokens: fed in all evaluations, or None.
  """

  parameters: int
  train_flops: float
  eval_flops: float | None
  train_bytes: float
  eval_bytes: float
  train_tokens: int
  eval_tokens: int | None

  @property
  def memory(self) -> float:
    return max(self.train_bytes, self.eval_bytes)


class Sizes(NamedTuple):
  """The sizes of a decoder: v tokens, layers, d, h, g, c and the hidden width."""

  vocab: int
  layers: int
  width: int
  heads: int
  kv_heads: int
  head: int
  hidden: int
  up: int

  @property
  def projections(self) -> int:
    """Weights of all layers that a token is multiplied with."""
    attention = self.width * (self.heads + 2 * self.kv_heads) * self.head + self.heads * self.head * self.width
    return self.layers * (attention + self.width * (self.up + self.hidden))


def sizes(config: Any) -> Sizes:
  """The sizes that a configuration gives its decoder."""
  m, dims, gelu = config.model, configs.dims(config), config.model.mlp == "gelu"
  vocab = _vocabulary(config.data)
  hidden = m.mlp_dim or hidden_dim(m.mlp, m.model_dim)
  return Sizes(
    vocab, m.num_layers, m.model_dim, m.num_heads, m.num_kv_heads or m.num_heads, dims.head_dim, hidden, hidden if gelu else 2 * hidden
  )


def _vocabulary(data: Any) -> int:
  from posx.data import synthetic

  if synthetic.is_task(data.name):
    return len(synthetic.find(data.name).symbols)
  return data.vocab_size if data.tokenizer == "sentencepiece" else 256


def learned(config: Any) -> int:
  """Parameters of the encoding in the whole model."""
  encoding, dims = configs.encoding(config), configs.dims(config)
  first, inner = encoding.split()
  layers = _layers(config, inner)
  copies = 1 if config.model.share_encoding else config.model.num_layers // len(layers)
  inside = [_of_encoding(config, layer, dims) for layer, _ in (layers[:1] if config.model.share_encoding else layers)]
  return _of_encoding(config, first, dims) + copies * sum(inside)


def _layers(config: Any, encoding: Any) -> list[tuple[Any, int]]:
  """(encoding, window or 0) of the layers of one period."""
  if not config.model.layers:
    return [(encoding, 0)]
  from posx.encodings.layers import of_period

  return of_period(encoding)


def _of_encoding(config: Any, encoding: Any, dims: Any) -> int:
  if not encoding.uses("init"):
    return 0
  known = _LEARNED.get(config.encoding.name)
  if known is not None and encoding == CATALOGUE[config.encoding.name]() and not config.model.layers:
    return known(encoding, dims)
  import jax

  made = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(made))


def parameters(config: Any) -> int:
  """All parameters of the model."""
  s = sizes(config)
  tables = s.vocab * s.width * (1 if config.model.tied else 2)
  return tables + s.projections + (2 * s.layers + 1) * s.width + learned(config)


def forward(config: Any, length: int, window: int = 0) -> float:
  """FLOPs of one window of `length` tokens."""
  s = sizes(config)
  windows = [own for _, own in _layers(config, configs.encoding(config))] if config.model.layers else [0]
  seen = 0.0
  for own in windows:
    reach = min(filter(None, (window, config.model.window, own, length)))
    seen += (reach * (reach + 1) / 2 + (length - reach) * reach) / len(windows)
  matrices = s.projections + s.vocab * s.width
  return 2.0 * matrices * length + 4.0 * s.layers * s.heads * s.head * seen


def passes(config: Any) -> list[Pass] | None:
  """What the evaluations of a run feed to the model; None where the text decides how many documents there are."""
  from posx import checks
  from posx.evaluation.windows import place

  e, trained = config.eval, config.train.length
  if not e.documents:
    return None
  total = max(e.lengths)
  targets = min(e.targets or min(e.lengths), total)

  def windows(length: int, stride: int, scored: int, window: int = 0) -> Pass:
    return Pass(length, e.documents * len(place(total, length, stride, scored).starts), window)

  def fed(context: int) -> Pass:
    return windows(context, max(1, context // 8), max(targets, e.last_k))

  made: dict[Pass | tuple[str, Pass], Pass] = {}
  for name in dict.fromkeys(["", *e.extensions]):
    encoding = configs.encoding(checks.with_extension(config, name) if name else config)
    for length in e.lengths:
      context = _context(config, encoding, length)
      if context is not None:
        own = fed(context) if 0 < context < length else windows(length, min(e.stride or length, length), targets)
        # losses are kept: those of the plain model are computed once, however many rows need them
        plain = not name or 0 < context < length
        made[own if plain else (name, own)] = own
      if "truncate" in e.controls:
        bound = fed(trained) if length > trained else windows(length, min(e.stride or length, length), targets)
        made[bound] = bound
      if "window" in e.controls and not name and length > trained and context is not None:
        narrow = windows(length, min(e.stride or length, length), targets, trained)
        made[narrow] = narrow
  return list(made.values())


def _context(config: Any, encoding: Any, length: int) -> int | None:
  """The most tokens that are fed at once (0: no limit); None if the encoding cannot serve this length."""
  if encoding.max_context is not None:
    return encoding.max_context or config.train.length
  try:
    encoding.check(configs.dims(config), length)
  except ValueError:
    return None
  return 0


def train_bytes(config: Any) -> float:
  """Memory of a training step: parameters, gradients and two moments in float32, and what the backward pass keeps."""
  s, t = sizes(config), config.train
  tokens = t.batch_size // t.accumulate * t.length
  item = 2 if config.model.dtype == "bfloat16" else 4
  # twice what a tape would hold: most values are kept once more in the order that the backward pass reads
  kept = 2 * (4 * s.width + (2 * s.heads + 2 * s.kv_heads) * s.head + s.up + s.hidden)
  logits = min(tokens * s.vocab, LOGITS_AT_ONCE)
  return 16.0 * parameters(config) + item * tokens * (s.layers * kept + 4 * s.width) + 8.0 * logits


def eval_bytes(config: Any) -> float:
  """Memory of the longest evaluation: parameters, one layer's activations, a chunk of logits."""
  s, longest = sizes(config), max(config.eval.lengths)
  tokens = max(longest, TOKENS_AT_ONCE // min(longest, TOKENS_AT_ONCE) * longest)
  item = 2 if config.model.dtype == "bfloat16" else 4
  live = 3 * s.width + 2 * (s.heads + 2 * s.kv_heads) * s.head + s.up + s.hidden
  return 4.0 * parameters(config) + item * tokens * live + 8.0 * min(tokens * s.vocab, LOGITS_AT_ONCE)


def cost(config: Any) -> Cost:
  """What the run of a checked configuration costs."""
  t, found = config.train, passes(config)
  return Cost(
    parameters(config),
    3.0 * forward(config, t.length) * t.batch_size * t.steps,
    None if found is None else sum(each.windows * forward(config, each.length, each.window) for each in found),
    train_bytes(config),
    eval_bytes(config),
    t.batch_size * t.length * t.steps,
    None if found is None else sum(each.tokens for each in found),
  )
