"""Extensions that bend distances: near ones stay exact, far ones are folded back into the trained range."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from posx.encodings.base import Arrays, Dims, Encoding, Form
from posx.errors import UserError
from posx.extensions.base import Extension
from posx.extensions.positions import Around

Positions = tuple[Num[Array, " t"], Num[Array, " u"]]


def grouped(q_pos: Num[Array, " t"], k_pos: Num[Array, " u"], window: Num[Array, ""], group: Num[Array, ""]) -> Positions:
  """SelfExtend's far positions: (i // g + w - w // g, j // g)."""
  return q_pos // group + window - window // group, k_pos // group


def capped(q_pos: Num[Array, " t"], k_pos: Num[Array, " u"], window: Num[Array, ""], group: Num[Array, ""]) -> Positions:
  """ReRoPE's far positions: distance w whatever the tokens."""
  del group
  return jnp.full_like(q_pos, window), jnp.zeros_like(k_pos)


@dataclasses.dataclass(frozen=True)
class Folded(Around):
  """An encoding that sees its own distances below `window`, and those of other positions from there on.

  Acts on the scores, tile by tile, with the same parameters; queries and keys stay as they are, so a cache keeps them
  unrotated. Costs two more products and rotations per tile.

  Attributes:
    inner: the encoding as it was trained; rotary, or a bias of the distance.
    window: w, distances below it are exact, in tokens; 0 for half the trained length.
    group: tokens that share a far position.
    rule: 'grouped' or 'capped'.
  """

  window: int = 0
  group: int = 1
  rule: str = "grouped"

  @property
  def content_free(self) -> bool:  # type: ignore[override]
    return not self.inner.uses("on_query_key")

  @property
  def relative(self) -> bool:  # type: ignore[override]
    return self.rule == "capped"

  @property
  def norm_preserving(self) -> bool:  # type: ignore[override]
    return True

  @property
  def form(self) -> Form:
    return "elementwise"

  @property
  def length_dependent(self) -> bool:
    return self.inner.length_dependent

  def uses(self, hook: str) -> bool:
    return hook == "on_scores"

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    window = self.window or dims.train_length // 2 // self.group * self.group
    if window < 1:
      raise UserError("folded distances need a window of exact ones: give window, in tokens, or a trained length to halve")
    return {**self.inner.constants(dims, length), "window": np.int32(window), "group": np.int32(self.group)}

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    return {**self.inner.prepare(params, constants), "window": constants["window"], "group": constants["group"]}

  def on_query_key(self, p, q, k, q_pos, k_pos):
    return q, k

  def bias(self, p, distance):
    raise NotImplementedError("the bias of folded distances depends on both positions")

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    far_q, far_k = (grouped if self.rule == "grouped" else capped)(q_pos, k_pos, p["window"], p["group"])
    near = q_pos[:, None] - k_pos[None, :] < p["window"]
    if self.inner.uses("bias"):
      scores = scores + self.inner.bias(p, jnp.where(near, q_pos[:, None] - k_pos[None, :], far_q[:, None] - far_k[None, :]))
    if self.inner.uses("on_query_key"):
      product = lambda q, k: jnp.matmul(q, k.T, preferred_element_type=jnp.float32, precision="highest")
      turned = [product(*self.inner.on_query_key(p, q, k, *at)) for at in ((q_pos, k_pos), (far_q, far_k))]
      scores = scores + (jnp.where(near, *turned) - product(q, k)) * q.shape[-1] ** -0.5
    return scores

  def split(self) -> tuple[Encoding, Encoding]:
    return Encoding(), self

  def program(self) -> Encoding:
    return Folded(inner=self.inner.program(), rule=self.rule)


@dataclasses.dataclass(frozen=True)
class _Folding(Extension):
  serves: ClassVar = "relative encodings of the distance alone (RoPE, PoPE, ALiBi, T5, KERPLE, ...)"

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    acts = encoding.uses("on_query_key") or encoding.uses("bias")
    return acts and encoding.relative and encoding.form in ("none", "distance") and not isinstance(encoding, Around)


@dataclasses.dataclass(frozen=True)
class SelfExtend(_Folding):
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

  window: int = 0
  group: int = 8

  def __post_init__(self):
    if self.group < 2:
      raise UserError(f"self_extend needs a group of at least 2 tokens (1 changes nothing), got group={self.group}")
    if self.window < 0 or self.window % self.group:
      allowed = f"a multiple of group={self.group} (0: half the trained length)"
      raise UserError(f"self_extend needs a window that is {allowed}, got window={self.window}")

  def extend(self, encoding: Encoding) -> Encoding:
    return Folded(encoding, self.window, self.group, "grouped")


@dataclasses.dataclass(frozen=True)
class ReRoPE(_Folding):
  """ReRoPE: every distance from the window on is the window.

  min(d, w).

  Attributes:
    window: w, distances below it are exact, in tokens; 0 for half the trained length.

  Reference:
    Su, "Rectified Rotary Position Embeddings", 2023, kexue.fm/archives/9708
  """

  name: ClassVar = "rerope"

  window: int = 0

  def __post_init__(self):
    if self.window < 0:
      raise UserError(f"rerope needs window >= 0 tokens (0: half the trained length), got {self.window}")

  def extend(self, encoding: Encoding) -> Encoding:
    return Folded(encoding, self.window, 1, "capped")
