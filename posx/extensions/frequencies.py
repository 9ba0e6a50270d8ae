"""Extensions of the RoPE family: other inverse frequencies, and a gain of cosines and sines.

Every rule is a function of (rotary_dim, base, length) that runs on the host in float64. `frequencies` gives float32 for
use outside posx; `frequencies64` is what `posx.encodings.rope.RoPE` asks.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from posx.encodings.base import Encoding
from posx.encodings.rope import inverse_frequencies, proportional_frequencies
from posx.errors import UserError
from posx.extensions.around import Around
from posx.extensions.base import ByFactor, Extension, check_factor, check_length, stretch
from posx.extensions.positions import Interpolated


def ntk_base(rotary_dim: int, base: float, factor: float) -> float:
  """The base that divides the lowest frequency by `factor` and keeps the highest: base * factor^(r / (r - 2)).

  Raises:
    UserError: for r = 2, whose only frequency is both.

  Reference:
    bloc97, 2023; quoted in Peng et al., "YaRN", 2023, section 3.1. arXiv:2309.00071
  """
  if rotary_dim <= 2:
    raise UserError(f"NTK scaling keeps the highest frequency and divides the lowest; rotary_dim={rotary_dim} has one, give at least 4")
  return float(base) * factor ** (rotary_dim / (rotary_dim - 2))


@dataclasses.dataclass(frozen=True)
class Frequencies(Extension):
  """An extension that gives RoPE other inverse frequencies."""

  serves: ClassVar = "rotary encodings (RoPE, PoPE)"

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    return hasattr(encoding, "scaling")

  def extend(self, encoding: Encoding) -> Encoding:
    if encoding.scaling is not None:  # type: ignore[attr-defined]
      raise UserError(f"{self.name}: the encoding is already extended by {encoding.scaling.name}; apply one to the encoding as trained")  # type: ignore[attr-defined]
    return dataclasses.replace(encoding, scaling=self)  # type: ignore[call-arg]

  @property
  def length_dependent(self) -> bool:
    """Whether the frequencies change with the length in play."""
    return getattr(self, "factor", 1.0) == 0

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    """(inverse frequencies float64 [rotary_dim // 2], gain) for `length` positions of a model trained on `train_length`."""
    raise NotImplementedError

  def score_gain(self, length: int, train_length: int) -> float:
    """A multiplier of all scores, those of channels without rotation too."""
    del length, train_length
    return 1.0

  def frequencies(self, rotary_dim: int, base: float, length: int) -> tuple[np.ndarray, float]:
    """Inverse frequencies and gain, for use outside posx.

    Args:
      rotary_dim: r, the number of rotated channels of a head; even.
      base: theta of the encoding as trained.
      length: positions in play; matters to extensions that depend on it.

    Returns:
      (float32 NumPy array [r // 2] in radians per token, multiplier of cosines and sines).

    Raises:
      UserError: if the trained length is needed and `original_length` is 0.

    Example:
      >>> from posx.extensions.frequencies import PI
      >>> PI(factor=4.0).frequencies(4, 10000.0, 2048)
      (array([0.25  , 0.0025], dtype=float32), 1.0)
    """
    inv_freq, gain = self.frequencies64(rotary_dim, base, length, 0)
    return inv_freq.astype(np.float32), float(gain)

  def _original(self, train_length: int) -> int:
    known = getattr(self, "original_length", 0) or train_length
    if not known:
      raise UserError(f"{self.name} needs the trained length: give original_length, in tokens")
    return known


@dataclasses.dataclass(frozen=True)
class Scaled(ByFactor, Frequencies):
  """A frequency extension with a factor and a trained length.

  Attributes:
    factor: target length / trained length; 0 takes the length in play over the trained length (no change up to that).
    original_length: the trained length L0 in tokens; 0 for the model's own.
  """

  def _factor(self, length: int, train_length: int) -> float:
    return self.factor or stretch(0, self._original(train_length), length)


@dataclasses.dataclass(frozen=True)
class PI(Scaled):
  """Position interpolation: every position is divided by the factor, so they stay within the trained range.

  inv_freq / s. On an encoding without frequencies (sinusoidal, learned, ALiBi, T5, KERPLE, ...) positions themselves are
  divided: see `posx.extensions.positions.Interpolated`.

  Reference:
    Chen et al., "Extending Context Window of Large Language Models via Position Interpolation", 2023. arXiv:2306.15595
  """

  name: ClassVar = "pi"
  serves: ClassVar = "encodings that take positions"

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    acts = any(encoding.uses(hook) for hook in ("on_input", "on_query_key", "bias", "on_scores", "on_values"))
    return super().accepts(encoding) or (acts and encoding.interpolable and not isinstance(encoding, Around))

  def extend(self, encoding: Encoding) -> Encoding:
    if super().accepts(encoding):
      return super().extend(encoding)
    return Interpolated(encoding, self.factor, self.original_length)

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    return inverse_frequencies(rotary_dim, base) / self._factor(length, train_length), 1.0


@dataclasses.dataclass(frozen=True)
class NTK(Scaled):
  """NTK-aware scaling: a larger base, which leaves the fastest pair alone and divides the slowest by the factor.

  base' = base * s^(r / (r - 2)).

  Reference:
    bloc97, 2023; quoted in Peng et al., "YaRN", 2023, section 3.1. arXiv:2309.00071
  """

  name: ClassVar = "ntk"

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    return inverse_frequencies(rotary_dim, ntk_base(rotary_dim, base, self._factor(length, train_length))), 1.0


@dataclasses.dataclass(frozen=True)
class DynamicNTK(Frequencies):
  """NTK-aware scaling by the length in play: nothing changes up to the trained length.

  base' = base * (s L / L0 - (s - 1))^(r / (r - 2)) for L > L0.

  Attributes:
    factor: s; 1 grows the base with L / L0 itself, more grows it faster.
    original_length: the trained length L0 in tokens; 0 for the model's own.

  Reference:
    emozilla, 2023; Peng et al., "YaRN", 2023, section 3.3. arXiv:2309.00071
  """

  name: ClassVar = "dynamic_ntk"

  factor: float = 1.0
  original_length: int = 0

  def __post_init__(self):
    check_factor(self.name, self.factor, least=0, automatic=False)
    check_length(self.name, self.original_length)

  @property
  def length_dependent(self) -> bool:
    return True

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    original = self._original(train_length)
    longer = max(length, original)
    return inverse_frequencies(rotary_dim, ntk_base(rotary_dim, base, self.factor * longer / original - (self.factor - 1))), 1.0


@dataclasses.dataclass(frozen=True)
class ABF(Frequencies):
  """Adjusted base frequency: another base, fixed in advance, usually with training on.

  base' = `base`. A larger one slows every pair but the first.

  Attributes:
    base: the new theta; must differ from the encoding's own.

  Reference:
    Xiong et al., "Effective Long-Context Scaling of Foundation Models", 2023, section 4.1. arXiv:2309.16039
  """

  name: ClassVar = "abf"

  base: float = 500000.0

  def __post_init__(self):
    inverse_frequencies(2, self.base)

  def extend(self, encoding: Encoding) -> Encoding:
    self._check(encoding.base)  # type: ignore[attr-defined]
    return super().extend(encoding)

  def _check(self, base: float) -> None:
    if base == self.base:
      raise UserError(f"abf with base={self.base} changes nothing: the encoding has that base; give another")

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    self._check(base)
    return inverse_frequencies(rotary_dim, self.base), 1.0


@dataclasses.dataclass(frozen=True)
class Proportional(Frequencies):
  """Proportional RoPE: only the fastest share of the pairs turns, with the exponents of the full width.

  inv_freq_i = base^(-2i/r) / s for i < int(partial r // 2), else 0. Not partial rotary, whose exponents and pairs come
  from the narrower width: here channel i stays paired with i + r/2. For a model as trained; a model trained that way is
  `rope` with its field `partial`.

  Attributes:
    partial: share of the pairs that turn, in (0, 1].
    factor: divides the frequencies, as in position interpolation.

  Reference:
    Barbero et al., "Round and Round We Go", 2024 (p-RoPE). arXiv:2410.06205. Gemma 4's 'proportional' rope type.
  """

  name: ClassVar = "proportional"

  partial: float = 0.25
  factor: float = 1.0

  def __post_init__(self):
    check_factor(self.name, self.factor, least=0, automatic=False)
    if not 0 < self.partial <= 1:
      raise UserError(f"proportional needs a share of pairs 0 < partial <= 1, got {self.partial}")
    if self.partial == 1 and self.factor == 1:
      raise UserError("proportional with partial 1 and factor 1 changes nothing; give a smaller share, or a factor")

  def extend(self, encoding: Encoding) -> Encoding:
    held = getattr(encoding, "partial", 1.0)
    if self.factor == 1 and held <= self.partial:
      raise UserError(
        f"proportional with partial={self.partial} changes nothing: the encoding turns {held} of its pairs; give less, or a factor"
      )
    return super().extend(encoding)

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    return proportional_frequencies(rotary_dim, base, self.partial) / self.factor, 1.0
