"""Extensions that hide keys: a window, and first tokens that stay visible beside it; distances are bent to match."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from posx.encodings.base import Dims, Encoding
from posx.encodings.combine import Chain
from posx.errors import UserError, unknown
from posx.extensions.around import Around
from posx.extensions.base import Extension
from posx.extensions.folding import Fold, Folded, Folding, beyond


def hides(encoding: Encoding) -> bool:
  """Whether an extension of this file is on the encoding already."""
  if isinstance(encoding, Chain):
    return any(hides(part) for part in encoding.parts)
  if isinstance(encoding, Windowed) or (isinstance(encoding, Folded) and isinstance(encoding.by, Hiding)):
    return True
  return isinstance(encoding, Around) and hides(encoding.inner)


@dataclasses.dataclass(frozen=True)
class Windowed(Around):
  """An encoding whose queries see a window of the last tokens and the first ones; its formulas are those inside.

  Attributes:
    inner: the encoding as it was trained.
    by: the extension that tells what is seen.
  """

  by: Window | Hiding = dataclasses.field(default_factory=lambda: Window())

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    return self.by.visibility(dims)

  def split(self) -> tuple[Encoding, Encoding]:
    first, rest = self.inner.split()
    return first, dataclasses.replace(self, inner=rest)


def _window(name: str, given: int, trained: int) -> int:
  window = given or trained
  if window < 1:
    raise UserError(f"{name} needs a window: give window, in tokens, or a trained length")
  return window


@dataclasses.dataclass(frozen=True)
class Window(Extension):
  """Hides all but the last W tokens, the query included; for any encoding, extended or not.

  A model that trained on L0 tokens sees no distance it does not know with W = L0, and nothing further back either.

  Attributes:
    window: W, in tokens; 0 for the trained length.

  Reference:
    Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer", 2020, section 3.1. arXiv:2004.05150
  """

  name: ClassVar = "window"
  serves: ClassVar = "any encoding whose keys are not hidden by an extension already"
  whole: ClassVar = True

  window: int = 0

  def __post_init__(self):
    if self.window < 0:
      raise UserError(f"window needs window >= 0 tokens (0: the trained length), got {self.window}")

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    return not hides(encoding)

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    return _window(self.name, self.window, dims.train_length), 0

  def extend(self, encoding: Encoding) -> Encoding:
    return Windowed(encoding, self)


@dataclasses.dataclass(frozen=True)
class Hiding(Folding):
  """A mask with first tokens that stay visible, and the distances at which those are seen."""

  serves: ClassVar = "NoPE, and relative encodings of the distance alone (RoPE, PoPE, ALiBi, T5, KERPLE, ...)"

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    return type(encoding) is Encoding or super().accepts(encoding)

  def extend(self, encoding: Encoding) -> Encoding:
    return Windowed(encoding, self) if type(encoding) is Encoding else Folded(encoding, self)

  def program(self) -> Folding:
    # What is seen decides which tiles are computed, so it is part of the program.
    return self


@dataclasses.dataclass(frozen=True)
class Sinks(Hiding):
  """StreamingLLM: the first S tokens stay visible beside a window of the last ones, and positions count within the cache.

  A key of the window is at its own distance d; one of the first S, once it has left the window, is at
  min(i, S + R) - j, its distance if the tokens hidden between were not there. So no distance exceeds S + R.

  The authors' evaluation keeps R tokens before the query, their generation counts the query among the R: 'beside' and
  'inside' here. The first tokens are those at positions below S, so each packed document keeps its own.

  Attributes:
    sinks: S, first tokens that stay visible.
    window: R, last tokens that stay visible; 0 so that the trained length is seen in all.
    query: 'beside' the R tokens or 'inside'.

  Reference:
    Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section 3.2. arXiv:2309.17453;
    `kv_cache.py`, `pos_shift/modify_llama.py` and `examples/` of github.com/mit-han-lab/streaming-llm
  """

  name: ClassVar = "sinks"
  relative: ClassVar = False

  sinks: int = 4
  window: int = 0
  query: Literal["beside", "inside"] = "beside"

  def __post_init__(self):
    if self.sinks < 1:
      raise UserError(f"sinks keeps at least 1 first token (without them it is the extension 'window'), got sinks={self.sinks}")
    if self.window < 0:
      raise UserError(f"sinks needs window >= 0 tokens (0: so that the trained length is seen in all), got {self.window}")
    if self.query not in ("beside", "inside"):
      raise UserError(unknown("sinks query", self.query, ("beside", "inside")))

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    if self.window:
      return self.window + (self.query == "beside"), self.sinks
    return _window(self.name, 0, dims.train_length - self.sinks), self.sinks

  def numbers(self, dims: Dims, length: int) -> dict[str, Any]:
    window, sinks = self.visibility(dims)
    return {"window": np.int32(window), "furthest": np.int32(sinks + window - 1)}  # type: ignore[operator]

  def fold(self, n, q_pos, k_pos) -> Fold:
    return Fold(beyond(n["window"], q_pos, k_pos), ((q_pos, k_pos), (jnp.minimum(q_pos, n["furthest"]), k_pos)))


@dataclasses.dataclass(frozen=True)
class LMInfinite(Hiding):
  """LM-Infinite: a Lambda-shaped mask, and a ceiling on distances.

  A query sees the last W tokens, itself included, at their distances, and the first G. The paper gives those of the
  first G that lie beyond the window min(d, M), the code gives them M whatever their distance: 'minimum' and 'constant'
  here, the same where W = M. The authors' third part, re-weighting some middle tokens in some layers, is left out.

  Attributes:
    sinks: G, first tokens that stay visible.
    window: W, in tokens; 0 for the trained length.
    ceiling: M, the largest distance, in tokens, at least W; 0 for the trained length.
    far: 'constant' as the code or 'minimum' as the paper.

  Reference:
    Han et al., "LM-Infinite: Zero-Shot Extreme Length Generalization for Large Language Models", 2023, section 4.
    arXiv:2308.16137; `models/lambda_attention.py` and `models/llama.py` of github.com/Glaciohound/LM-Infinite
  """

  name: ClassVar = "lm_infinite"

  sinks: int = 10
  window: int = 0
  ceiling: int = 0
  far: Literal["constant", "minimum"] = "constant"

  def __post_init__(self):
    if self.sinks < 1:
      raise UserError(f"lm_infinite keeps at least 1 first token (without them it is the extension 'window'), got sinks={self.sinks}")
    if min(self.window, self.ceiling) < 0 or (self.ceiling and self.window > self.ceiling):
      raise UserError(
        f"lm_infinite needs 0 <= window <= ceiling tokens (0: the trained length), got window={self.window}, ceiling={self.ceiling}"
      )
    if self.far not in ("constant", "minimum"):
      raise UserError(unknown("lm_infinite far", self.far, ("constant", "minimum")))

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    return _window(self.name, self.window, dims.train_length), self.sinks

  def numbers(self, dims: Dims, length: int) -> dict[str, Any]:
    window, _ = self.visibility(dims)
    assert window is not None
    ceiling = self.ceiling or max(dims.train_length, window or 0)
    return {"near": np.int32(window if self.far == "constant" else ceiling), "ceiling": np.int32(ceiling)}

  def fold(self, n, q_pos, k_pos) -> Fold:
    return Fold(beyond(n["near"], q_pos, k_pos), ((q_pos, k_pos), (jnp.full_like(q_pos, n["ceiling"]), jnp.zeros_like(k_pos))))
