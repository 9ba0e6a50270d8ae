"""Extensions of the RoPE family: other inverse frequencies, and a gain of cosines and sines.

Every rule is a function of (rotary_dim, base, length) that runs on the host in float64. `frequencies` gives float32 for
use outside posx; `frequencies64` is what `posx.encodings.rope.RoPE` asks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np

from posx.encodings.base import Encoding
from posx.encodings.rope import inverse_frequencies
from posx.errors import UserError, unknown
from posx.extensions.base import Extension, check_factor, check_length, stretch
from posx.extensions.positions import Around, Interpolated


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


def yarn_range(
  rotary_dim: int, base: float, original_length: int, beta_fast: float = 32.0, beta_slow: float = 1.0, truncate: bool = True
) -> tuple[float, float]:
  """(low, high): the frequency indices that turn beta_fast and beta_slow times within the trained length.

  index(n) = r ln(L0 / (2 pi n)) / (2 ln base); rounded outwards if `truncate`, kept within 0 .. r - 1.

  Reference:
    the authors' code of Peng et al., "YaRN", 2023. arXiv:2309.00071
  """

  def place(rotations: float) -> float:
    return rotary_dim * math.log(original_length / (rotations * 2 * math.pi)) / (2 * math.log(base))

  low, high = place(beta_fast), place(beta_slow)
  if truncate:
    low, high = math.floor(low), math.ceil(high)
  return max(low, 0), min(high, rotary_dim - 1)


def index_ramp(n: int, low: float, high: float) -> np.ndarray:
  """0 up to index `low`, 1 from `high` on, linear between; float64 [n]."""
  # The width the authors give an empty range.
  high = high + 0.001 if low == high else high
  return np.clip((np.arange(n, dtype=np.float64) - low) / (high - low), 0, 1)


def rotation_ramp(inv_freq: np.ndarray, original_length: int, fast: float, slow: float) -> np.ndarray:
  """1 for frequencies below `slow` turns in the trained length, 0 above `fast`, linear in the turns between.

  Reference:
    Peng et al., "YaRN", 2023, equations 17 and 18. arXiv:2309.00071
  """
  turns = original_length * inv_freq / (2 * np.pi)
  if fast == slow:
    return (turns < fast).astype(np.float64)
  return 1 - np.clip((turns - slow) / (fast - slow), 0, 1)


def yarn_gain(factor: float, mscale: float = 1.0) -> float:
  """0.1 mscale ln(factor) + 1 for a factor above 1, else 1.

  Reference:
    Peng et al., "YaRN", 2023, equation 22. arXiv:2309.00071
  """
  return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


@dataclasses.dataclass(frozen=True)
class Frequencies(Extension):
  """An extension that gives RoPE other inverse frequencies."""

  serves: ClassVar = "rotary encodings (RoPE, xPos)"

  def accepts(self, encoding: Encoding) -> bool:
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
class Scaled(Frequencies):
  """A frequency extension with a factor and a trained length.

  Attributes:
    factor: target length / trained length; 0 takes the length in play over the trained length (no change up to that).
    original_length: the trained length L0 in tokens; 0 for the model's own.
  """

  factor: float = 0.0
  original_length: int = 0

  def __post_init__(self):
    check_factor(self.name, self.factor)
    check_length(self.name, self.original_length)

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

  def accepts(self, encoding: Encoding) -> bool:
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
class NTKByParts(Scaled):
  """NTK by parts: fast pairs keep their frequency, slow ones are divided by the factor, those between are mixed.

  inv_freq' = (1 - g) inv_freq / s + g inv_freq. With 'index' g falls linearly over the frequency index, from the pair
  that turns beta_fast times within the trained length to the one that turns beta_slow times, as in all published code.
  With 'rotations' it is linear in the number of turns, as printed; the two differ by up to 77 %.

  Attributes:
    factor: target length / trained length; 0 takes the length in play over the trained length (no change up to that).
    original_length: the trained length L0 in tokens; 0 for the model's own.
    beta_fast: turns within L0 from which a pair is kept.
    beta_slow: turns within L0 below which a pair is interpolated.
    truncate: round the range of indices outwards ('index' only).
    ramp: 'index' as the code, 'rotations' as the paper.

  Reference:
    Peng et al., "YaRN", 2023, section 3.2, equations 17 to 20. arXiv:2309.00071
  """

  name: ClassVar = "ntk_by_parts"

  beta_fast: float = 32.0
  beta_slow: float = 1.0
  truncate: bool = True
  ramp: Literal["index", "rotations"] = "index"

  def __post_init__(self):
    super().__post_init__()
    if not 0 < self.beta_slow < self.beta_fast:
      raise UserError(f"{self.name} needs 0 < beta_slow < beta_fast, got beta_slow={self.beta_slow}, beta_fast={self.beta_fast}")
    if self.ramp not in ("index", "rotations"):
      raise UserError(unknown(f"{self.name} ramp", self.ramp, ("index", "rotations")))

  def _by_parts(self, rotary_dim: int, base: float, original: int, factor: float) -> np.ndarray:
    kept = inverse_frequencies(rotary_dim, base)
    if self.ramp == "index":
      ramp = index_ramp(len(kept), *yarn_range(rotary_dim, base, original, self.beta_fast, self.beta_slow, self.truncate))
    else:
      ramp = rotation_ramp(kept, original, self.beta_fast, self.beta_slow)
    return kept / factor * ramp + kept * (1 - ramp)

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    return self._by_parts(rotary_dim, base, self._original(train_length), self._factor(length, train_length)), 1.0


@dataclasses.dataclass(frozen=True)
class YaRN(NTKByParts):
  """YaRN: NTK by parts, and a gain of 0.1 ln s + 1 on cosines and sines, so that the scores get its square.

  With both `mscale` and `mscale_all_dim` the gain is (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1), and with
  `mscale_all_dim` all scores, rotated or not, are multiplied by (0.1 mscale_all_dim ln s + 1)^2, as DeepSeek does.

  Attributes:
    gain: multiplier of cosines and sines; 0 computes it from the factor.
    mscale: DeepSeek's coefficient of the rotated channels; 0 for none.
    mscale_all_dim: DeepSeek's coefficient of all channels; 0 for none.

  Reference:
    Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023. arXiv:2309.00071.
    DeepSeek-AI, "DeepSeek-V2", 2024, section 3.1.4. arXiv:2405.04434
  """

  name: ClassVar = "yarn"

  gain: float = 0.0
  mscale: float = 0.0
  mscale_all_dim: float = 0.0

  def __post_init__(self):
    super().__post_init__()
    for field in ("gain", "mscale", "mscale_all_dim"):
      if not (getattr(self, field) >= 0 and math.isfinite(getattr(self, field))):
        raise UserError(f"{self.name} needs {field} >= 0 (0: computed, or none), got {getattr(self, field)}")

  def _gain(self, factor: float) -> float:
    if self.gain:
      return self.gain
    if self.mscale and self.mscale_all_dim:
      return yarn_gain(factor, self.mscale) / yarn_gain(factor, self.mscale_all_dim)
    return yarn_gain(factor)

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    inv_freq, _ = super().frequencies64(rotary_dim, base, length, train_length)
    return inv_freq, self._gain(self._factor(length, train_length))

  def score_gain(self, length: int, train_length: int) -> float:
    return yarn_gain(self._factor(length, train_length), self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0
