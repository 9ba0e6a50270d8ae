"""Comparisons of context extensions: inverse frequencies and gain, as one row of numbers, relative to the definition."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance import bridge, definitions
from conformance.rows import ROUNDED, Comparison

R, BASE, L0 = 64, 10000.0, 4096
LONG = tuple(1.0 + 0.25 * i for i in range(R // 2))
SHORT = tuple(1.0 + 0.01 * i for i in range(R // 2))


def _row(inv_freq: np.ndarray, gain: float) -> np.ndarray:
  return np.append(inv_freq, gain)


def _ours(name: str, length: int = L0, r: int = R, base: float = BASE, **fields: Any) -> np.ndarray:
  from posx import extensions

  return _row(*extensions.make(name, **fields).frequencies(r, base, length))


def _theirs(kind: str, length: int | None = None, maximum: int = L0, base: float = BASE, **fields: Any) -> np.ndarray:
  """transformers' rule of that name, for a model of 64 channels a head."""
  from transformers import LlamaConfig
  from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

  rope = {"rope_type": kind, "rope_theta": base, **fields}
  config = LlamaConfig(hidden_size=4 * R, num_attention_heads=4, head_dim=R, max_position_embeddings=maximum, rope_parameters=rope)
  inv_freq, gain = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
  return _row(bridge.array(inv_freq), float(gain))


def linear():
  return _ours("pi", factor=8.0), _theirs("linear", factor=8.0), _row(definitions.frequencies(R) / 8, 1.0)


def dynamic(length: int):
  exact = _row(definitions.dynamic_ntk(R, BASE, 2.0, L0, length), 1.0)
  return _ours("dynamic_ntk", length, factor=2.0, original_length=L0), _theirs("dynamic", length, factor=2.0), exact


def yarn(truncate: bool = True, **more: float):
  fields = {"factor": 16.0, "truncate": truncate, **more}
  gain = definitions.yarn_gain(16.0, more.get("mscale", 1.0))
  if more:
    gain /= definitions.yarn_gain(16.0, more["mscale_all_dim"])
  exact = _row(definitions.yarn(R, BASE, 16.0, L0, truncate), gain)
  return _ours("yarn", original_length=L0, **fields), _theirs("yarn", original_max_position_embeddings=L0, **fields), exact


def yarn_as_printed():
  exact = _row(definitions.by_turns(R, BASE, 16.0, L0, 32.0, 1.0), definitions.yarn_gain(16.0))
  ours = _ours("yarn", factor=16.0, original_length=L0, ramp="rotations")
  return ours, _theirs("yarn", factor=16.0, original_max_position_embeddings=L0), exact


def llama3():
  fields = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
  exact = _row(definitions.by_turns(R, 5e5, 8.0, 8192, 4.0, 1.0), 1.0)
  theirs = _theirs("llama3", base=5e5, maximum=65536, original_max_position_embeddings=8192, **fields)
  return _ours("llama3", base=5e5, original_length=8192, **fields), theirs, exact


def longrope(length: int):
  divisors = LONG if length > L0 else SHORT
  exact = _row(definitions.frequencies(R) / np.array(divisors), definitions.longrope_gain(8.0, L0))
  ours = _ours("longrope", length, factor=8.0, original_length=L0, short_factors=SHORT, long_factors=LONG)
  theirs = _theirs("longrope", length, factor=8.0, original_max_position_embeddings=L0, short_factor=list(SHORT), long_factor=list(LONG))
  return ours, theirs, exact


def proportional():
  kept = definitions.frequencies(R)
  kept[R // 8 :] = 0
  theirs = _theirs("proportional", partial_rotary_factor=0.25)
  return _ours("proportional", partial=0.25), theirs, _row(kept, 1.0)


def ntk_lucidrains():
  from rotary_embedding_torch import RotaryEmbedding

  exact = definitions.frequencies(R, BASE * 8.0 ** (R / (R - 2)))
  return _ours("ntk", factor=8.0)[:-1], bridge.array(RotaryEmbedding(R, theta_rescale_factor=8.0).freqs), exact


def ntk_x_transformers():
  from x_transformers.x_transformers import RotaryEmbedding

  exact = definitions.frequencies(R, BASE * 8.0 ** (R / (R - 2)))
  return _ours("ntk", factor=8.0)[:-1], bridge.array(RotaryEmbedding(R, base_rescale_factor=8.0).inv_freq), exact


def linear_lucidrains():
  """Positions are divided there, so the rotated vectors are compared."""
  from rotary_embedding_torch import RotaryEmbedding

  from posx import extensions

  positions = np.arange(512)
  x = bridge.normal(1, 512, R)
  theirs = bridge.array(RotaryEmbedding(R, interpolate_factor=8.0).rotate_queries_or_keys(bridge.tensor(x)[None])[0])
  made = extensions.apply(extensions.make("pi", factor=8.0), bridge.encoding("rope", layout="interleaved"))
  return bridge.turned(made, x, positions), theirs, definitions.rotate(x, positions, definitions.frequencies(R) / 8, "interleaved")


RULES = "transformers `ROPE_INIT_FUNCTIONS`"


def _relative(method: str, compared: str, run: Any, peer: str = RULES, **more: Any) -> Comparison:
  return Comparison(method, compared, peer, run, relative=True, **{"within": 2e-7, "close": 2e-6, **more})


COMPARISONS = [
  _relative("pi", "frequencies, factor 8", linear),
  Comparison("pi", "interleaved, positions to 511, factor 8", "rotary-embedding-torch", linear_lucidrains, close=ROUNDED),
  _relative("ntk", "frequencies, factor 8", ntk_lucidrains, "rotary-embedding-torch"),
  _relative("ntk", "frequencies, factor 8", ntk_x_transformers, "x-transformers `RotaryEmbedding`"),
  _relative("dynamic_ntk", "frequencies, factor 2, trained length", lambda: dynamic(L0)),
  _relative("dynamic_ntk", "frequencies, factor 2, 4 times the trained length", lambda: dynamic(4 * L0)),
  _relative("yarn", "frequencies and gain, factor 16", yarn),
  _relative("yarn", "the same, range not rounded", lambda: yarn(False)),
  _relative("yarn", "the same, DeepSeek's coefficients 1 and 0.5", lambda: yarn(mscale=1.0, mscale_all_dim=0.5)),
  _relative(
    "yarn", "frequencies and gain, `ramp=rotations`", yarn_as_printed, close=None, apart=0.1,
    note="definition: equation 18 mixes by turns; all published code, `ramp=index` here, by index",
  ),
  _relative("longrope", "frequencies and gain, trained length", lambda: longrope(L0)),
  _relative("longrope", "frequencies and gain, one token more", lambda: longrope(L0 + 1)),
  _relative("llama3", "frequencies, factor 8", llama3, close=4e-6),
  _relative("proportional", "frequencies, a quarter of the pairs turns", proportional),
]  # fmt: skip
