"""Extensions that bend distances: near ones stay exact, far ones are folded back into the trained range."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from posx.encodings.base import Dims
from posx.errors import UserError, unknown
from posx.extensions.base import check_factor
from posx.extensions.folding import Fold, Folding, beyond


@dataclasses.dataclass(frozen=True)
class SelfExtend(Folding):
  """SelfExtend: distances from the window on count groups of tokens instead of tokens.

  d if d < w, else (i // g + w - w // g) - j // g. Serves (L0 - w) g + w tokens within the trained distances.

  Attributes:
    window: w, distances below it are exact, in tokens; a multiple of `group`. 0 for half the trained length.
    group: g, tokens that share a far position.

  Reference:
    Jin et al., "LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning", 2024. arXiv:2401.01325. The authors' code
    shifts by w - w/g, the paper by w - w // g: equal where g divides w, which is asked for here.
  """

  name: ClassVar = "self_extend"
  relative: ClassVar = False

  window: int = 0
  group: int = 8

  def __post_init__(self):
    if self.group < 2:
      raise UserError(f"self_extend needs a group of at least 2 tokens (1 changes nothing), got group={self.group}")
    if self.window < 0 or self.window % self.group:
      allowed = f"a multiple of group={self.group} (0: half the trained length)"
      raise UserError(f"self_extend needs a window that is {allowed}, got window={self.window}")

  def numbers(self, dims: Dims, length: int) -> dict[str, Any]:
    window = _window(self.name, self.window, dims.train_length // 2 // self.group * self.group)
    return {"window": np.int32(window), "group": np.int32(self.group)}

  def fold(self, n, q_pos, k_pos) -> Fold:
    w, g = n["window"], n["group"]
    return Fold(beyond(w, q_pos, k_pos), ((q_pos, k_pos), (q_pos // g + w - w // g, k_pos // g)))


@dataclasses.dataclass(frozen=True)
class ReRoPE(Folding):
  """ReRoPE: every distance from the window on is the window.

  min(d, w).

  Attributes:
    window: w, distances below it are exact, in tokens; 0 for half the trained length.

  Reference:
    Su, "Rectified Rotary Position Embeddings", 2023, kexue.fm/archives/9708; github.com/bojone/rerope. The author's code
    scales queries by log-n as well, which is the extension `log_n` here.
  """

  name: ClassVar = "rerope"

  window: int = 0

  def __post_init__(self):
    _check_window(self.name, self.window)

  def numbers(self, dims: Dims, length: int) -> dict[str, Any]:
    return {"window": np.int32(_window(self.name, self.window, dims.train_length // 2))}

  def fold(self, n, q_pos, k_pos) -> Fold:
    return Fold(beyond(n["window"], q_pos, k_pos), ((q_pos, k_pos), (jnp.full_like(q_pos, n["window"]), jnp.zeros_like(k_pos))))


@dataclasses.dataclass(frozen=True)
class LeakyReRoPE(Folding):
  """Leaky ReRoPE: distances from the window on grow by 1 / factor a token.

  d if d < w, else w + (d - w) / s. With a large factor it is ReRoPE, with factor 1 nothing changes.

  Attributes:
    window: w, distances below it are exact, in tokens; 0 for half the trained length.
    factor: s; 0 takes (L - w) / (L0 - w), L the length in play, so that no distance exceeds the trained length L0.

  Reference:
    Su, "Rectified Rotary Position Embeddings", 2023, kexue.fm/archives/9708; `leaky_rerope_patch.py` of
    github.com/bojone/rerope, which has window 512 and factor 16 for a trained length of 4,096, and scales queries by log-n
    as well: here the extension `log_n`.
  """

  name: ClassVar = "leaky_rerope"

  window: int = 0
  factor: float = 0.0

  def __post_init__(self):
    _check_window(self.name, self.window)
    check_factor(self.name, self.factor)

  def numbers(self, dims: Dims, length: int) -> dict[str, Any]:
    window = _window(self.name, self.window, dims.train_length // 2)
    if not self.factor and window >= dims.train_length:
      raise UserError(
        f"leaky_rerope with window={window} leaves no trained distances beyond it; give less than {dims.train_length}, or a factor"
      )
    factor = self.factor or max(1.0, (length - window) / (dims.train_length - window))
    return {"window": np.int32(window), "factor": np.float32(factor)}

  def fold(self, n, q_pos, k_pos) -> Fold:
    # Counted from the first key, so that fractions are exact far out.
    start = k_pos[:1]
    far = lambda positions: (positions - start).astype(jnp.float32)
    w, s = n["window"].astype(jnp.float32), n["factor"]
    return Fold(beyond(n["window"], q_pos, k_pos), ((q_pos, k_pos), ((far(q_pos) + w * (s - 1)) / s, far(k_pos) / s)))


@dataclasses.dataclass(frozen=True)
class DCA(Folding):
  """Dual chunk attention: positions count within chunks of s = c - w tokens, and queries are moved towards older chunks.

  The key is at j mod s. The query is at i mod s for its own chunk, at min(s + i mod s, C1) for the one before, at C2 for
  all older ones, so no distance exceeds the cap. Published results come from the code, C1 = c and C2 = min(2s - 1, c); the
  paper says C1 = C2 = c - 1, and outputs differ. Distances below w are exact. For causal models.

  The code also multiplies cosines and sines by 0.05 ln(L / L0) + 1 beyond the trained length in later versions, and can
  interpolate positions: neither is part of the method, `yarn` and `pi` do that here.

  Attributes:
    chunk: c, at most the trained length, in tokens; 0 for 3/4 of it, as the authors set it.
    window: w, tokens of the local window; 0 for 1/16 of the trained length, as the authors set it.
    cap: 'code' or 'paper'.

  Reference:
    An et al., "Training-Free Long-Context Scaling of Large Language Models", 2024, section 3. arXiv:2402.17463;
    `chunkllama_attn_replace.py` of github.com/HKUNLP/ChunkLlama
  """

  name: ClassVar = "dca"
  relative: ClassVar = False

  chunk: int = 0
  window: int = 0
  cap: Literal["code", "paper"] = "code"

  def __post_init__(self):
    _check_window(self.name, self.window)
    if self.chunk < 0 or (self.chunk and self.window >= self.chunk):
      raise UserError(f"dca needs 0 <= window < chunk (0: from the trained length), got chunk={self.chunk}, window={self.window}")
    if self.cap not in ("code", "paper"):
      raise UserError(unknown("dca cap", self.cap, ("code", "paper")))

  def numbers(self, dims: Dims, length: int) -> dict[str, Any]:
    chunk, window = self.chunk or dims.train_length * 3 // 4, self.window or dims.train_length // 16
    step = chunk - window
    if step < 1 or window < 1:
      raise UserError(f"dca needs 1 <= window < chunk, got chunk={chunk}, window={window}; give both, in tokens, or a trained length")
    before, older = (chunk, min(2 * step - 1, chunk)) if self.cap == "code" else (chunk - 1, chunk - 1)
    return {"step": np.int32(step), "before": np.int32(before), "older": np.int32(older)}

  def fold(self, n, q_pos, k_pos) -> Fold:
    s = n["step"]
    chunks = jnp.clip(q_pos[:, None] // s - k_pos[None, :] // s, 0, 2)
    q, k = q_pos % s, k_pos % s
    return Fold(chunks, ((q, k), (jnp.minimum(s + q, n["before"]), k), (jnp.full_like(q, n["older"]), k)))


def _check_window(name: str, window: int) -> None:
  if window < 0:
    raise UserError(f"{name} needs window >= 0 tokens (0: from the trained length), got {window}")


def _window(name: str, given: int, otherwise: int) -> int:
  """The window given, or the one that follows from the trained length."""
  if (given or otherwise) < 1:
    raise UserError(f"{name} needs a window of exact distances: give window, in tokens, or a trained length to halve")
  return given or otherwise
