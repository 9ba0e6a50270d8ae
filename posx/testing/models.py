"""The checks of an encoding inside a small decoder: decoding, chunks, causality, neighbours, repetition; and the plans of attention."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posx.attention.cache import EMPTY
from posx.attention.features import token_features
from posx.testing.subject import Inapplicable, Subject, difference, require

VOCABULARY, TRAINED, LENGTH = 19, 8, 12
"""Trained on 8 tokens, asked about 12: below, at and above the trained length."""
JUNK = 4
TOLERANCE = 2e-5


@functools.lru_cache(maxsize=2)
class Small:
  """A decoder of two layers around the encoding, with parameters away from where they start."""

  def __init__(self, encoding):
    from posx.decoder import Decoder

    self.model = Decoder(VOCABULARY, 2, 16, 2, num_kv_heads=1, mlp_dim=24, train_length=TRAINED, encoding=encoding)
    self.program = dataclasses.replace(self.model, encoding=encoding.program())
    rng = np.random.default_rng(2)
    shapes = jax.eval_shape(self.model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    # Norms near 1, everything else at the scale of a fresh model, and nothing at zero.
    draw = lambda path, x: (jax.tree_util.keystr(path).endswith("['scale']") + 0.25 * rng.normal(size=x.shape)).astype(np.float32)
    self.params = jax.tree_util.tree_map_with_path(draw, shapes)
    # A learned table ends at its rows, an extension may refuse the model.
    self.length = TRAINED if Subject(encoding, dims=self.model.dims).refusal(LENGTH) else LENGTH
    self.tokens = rng.integers(0, VOCABULARY, (1, self.length)).astype(np.int32)
    self.at = np.arange(self.length, dtype=np.int32)

  def logits(self, tokens, positions=None, segments=None, length: int = 0) -> np.ndarray:
    """[t v] of one row, all arrays traced, so that one program serves every question."""
    positions = self.at if positions is None else np.asarray(positions, np.int32)
    segments = np.ones(len(positions), np.int32) if segments is None else np.asarray(segments, np.int32)
    constants = jax.tree.map(jnp.asarray, self.model.constants(length or self.length))
    return np.asarray(_full(self.program, self.params, tokens, positions, segments[None], constants))[0]

  def decoded(self, parts: list[int]) -> np.ndarray:
    from posx.decoding import Decoding

    session, found, first = Decoding(self.model, self.params, batch=1, capacity=self.length, total=self.length), [], 0
    for size in parts:
      found.append(np.asarray(session.feed(self.tokens[:, first : first + size], last=False))[0])
      first += size
    return np.concatenate(found)


@functools.partial(jax.jit, static_argnums=0)
def _full(model: Any, params, tokens, positions, segments, constants):
  return model.apply(params, tokens, positions=positions, segments=segments, constants=constants)


def _near(a: np.ndarray, b: np.ndarray, what: str) -> str:
  error = difference(a, b) / (1 + difference(a, 0))
  require(error < TOLERANCE, f"{what} differ from those of the full pass by {error:.2g}, allowed {TOLERANCE}")
  return f"{error:.1e}"


def decoding_equals_the_full_pass(s: Subject) -> str:
  """I1: logits of tokens decoded one at a time are those of the full pass, below, at and above the trained length."""
  small = Small(s.encoding)
  return _near(small.logits(small.tokens), small.decoded([1] * small.length), "decoded logits")


def chunks_equal_the_full_pass(s: Subject) -> str:
  """I2: read in chunks of 3 and 1 by turns, the text gives the logits of the full pass."""
  small = Small(s.encoding)
  return _near(small.logits(small.tokens), small.decoded([3, 1] * (small.length // 4)), "logits of chunks")


def later_tokens_change_nothing(s: Subject) -> str:
  """I3: another token t changes no logit before t, and those from t on."""
  small, t = Small(s.encoding), 5
  changed = small.tokens.copy()
  changed[0, t] = (changed[0, t] + 1) % VOCABULARY
  before, after = small.logits(small.tokens), small.logits(changed)
  require(np.array_equal(before[:t], after[:t]), f"token {t} changes earlier logits by {difference(before[:t], after[:t]):.2g}")
  require(difference(before[t:], after[t:]) > 1e-4, f"token {t} changes nothing at all")
  return "0, bit for bit"


def neighbours_change_nothing(s: Subject) -> str:
  """I4: a row padded on the left, or packed behind another document, gives the logits it has alone."""
  small = Small(s.encoding)
  n = small.length - JUNK
  # Alone the same tokens stand first, before what cannot reach back to them.
  alone, worst = small.logits(small.tokens)[:n], 0.0
  junk = (small.tokens[:, n:] + 7) % VOCABULARY
  for positions, first in (([0] * JUNK, EMPTY), (list(range(JUNK)), 0)):
    row = np.concatenate([junk, small.tokens[:, :n]], axis=1)
    found = small.logits(row, positions + list(range(n)), [first] * JUNK + [1] * n)[JUNK:]
    worst = max(worst, difference(found, alone) / (1 + difference(alone, 0)))
    require(worst < TOLERANCE, f"{'padding' if first == EMPTY else 'another document'} changes logits by {worst:.2g}")
  return f"{worst:.1e}"


def short_long_short(s: Subject) -> str:
  """I5: logits of a short text are the same bits before and after a long one."""
  small = Small(s.encoding)
  far = 40 * TRAINED
  if Subject(s.encoding, dims=small.model.dims).refusal(far):
    raise Inapplicable(f"does not serve {far} positions")
  ask = lambda last: small.logits(small.tokens, small.at + last - small.length, length=last)
  first, _, third = (ask(n) for n in (small.length, far, small.length))
  require(np.array_equal(first, third), f"{small.length} tokens differ by {difference(first, third):.2g} after {far}")
  return "0, bit for bit"


def tiles_equal_the_textbook(s: Subject) -> str:
  """The tiled plan gives what the dense one gives, at several sizes of tiles."""
  from posx.attention import attend

  t, blocks = 21, ((8, 8), (8, 16))
  if s.refusal(t):
    raise Inapplicable("serves too few positions")
  rng = np.random.default_rng(4)
  h, c = s.dims.num_heads, s.dims.head_dim
  q, k, v = (rng.normal(size=(1, t, n, c)).astype(np.float32) for n in (h, 2, 2))
  at, inner = np.arange(t, dtype=np.int32), s.encoding.split()[1]
  if not any(inner.uses(hook) for hook in s.hooks):
    raise Inapplicable("acts on the input only")
  constants = jax.tree.map(jnp.asarray, inner.constants(s.dims, t))
  rest = {"q_positions": at, "k_positions": at, "encoding": inner.program(), "dims": s.dims}
  if inner.uses("features"):
    x = rng.normal(size=(1, t, s.dims.model_dim)).astype(np.float32)
    made, _ = token_features(jnp.asarray(x), positions=jnp.asarray(at), encoding=inner, params=s.params, constants=constants)
    rest |= {"q_features": made, "k_features": made}

  def run(plan, block):
    call = lambda params, constants, q, k, v: attend(q, k, v, params=params, constants=constants, plan=plan, block=block, **rest)
    return jax.jit(call)(s.params, constants, q, k, v)

  dense = run("dense", None)
  worst = max(difference(dense, run("tiled", block)) for block in blocks)
  require(worst < TOLERANCE, f"tiles differ from the textbook by {worst:.2g}, allowed {TOLERANCE}")
  return f"{worst:.1e} with tiles of {', '.join(f'{a} x {b}' for a, b in blocks)}"
