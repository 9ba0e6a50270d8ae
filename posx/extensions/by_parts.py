"""Extensions that treat fast and slow pairs differently: NTK by parts, YaRN, Llama 3, LongRoPE."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np

from posx.encodings.rope import inverse_frequencies
from posx.errors import UserError, unknown
from posx.extensions.frequencies import Scaled


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


@dataclasses.dataclass(frozen=True)
class DynamicYaRN(YaRN):
  """YaRN whose factor is the length in play over the trained length: nothing changes up to that.

  Attributes: those of `YaRN`, without a factor to set.

  Reference:
    Peng et al., "YaRN", 2023, section 3.3. arXiv:2309.00071
  """

  name: ClassVar = "dynamic_yarn"

  factor: float = dataclasses.field(default=0.0, init=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Llama3(Scaled):
  """Llama 3.1's rule: slow pairs divided by the factor, fast ones kept, those between mixed by their number of turns.

  The ramp that the YaRN paper prints, without a gain.

  Attributes:
    factor: target length / trained length; 0 takes the length in play over the trained length (no change up to that).
    original_length: the trained length L0 in tokens; 0 for the model's own.
    low_freq_factor: turns within L0 below which a pair is divided.
    high_freq_factor: turns within L0 above which a pair is kept.

  Reference:
    Grattafiori et al., "The Llama 3 Herd of Models", 2024, and its reference code. arXiv:2407.21783
  """

  name: ClassVar = "llama3"

  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0

  def __post_init__(self):
    super().__post_init__()
    if not 0 < self.low_freq_factor <= self.high_freq_factor:
      raise UserError(
        f"llama3 needs 0 < low_freq_factor <= high_freq_factor, got low_freq_factor={self.low_freq_factor}, "
        f"high_freq_factor={self.high_freq_factor}"
      )

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    kept = inverse_frequencies(rotary_dim, base)
    ramp = rotation_ramp(kept, self._original(train_length), self.high_freq_factor, self.low_freq_factor)
    return kept / self._factor(length, train_length) * ramp + kept * (1 - ramp), 1.0


@dataclasses.dataclass(frozen=True)
class LongRoPE(Scaled):
  """LongRoPE: every pair has its own divisor, found by search; one list up to the trained length, one beyond.

  inv_freq_i / lambda_i, with the long list if and only if length > L0, and a gain of sqrt(1 + ln s / ln L0).

  Attributes:
    factor: target length / trained length, for the gain; 0 takes the length in play over the trained length.
    original_length: the trained length L0 in tokens; 0 for the model's own.
    short_factors: r/2 divisors up to L0; empty for ones.
    long_factors: r/2 divisors beyond L0.
    gain: multiplier of cosines and sines; 0 computes it from the factor.

  Reference:
    Ding et al., "LongRoPE", 2024. arXiv:2402.13753; the gain is that of the released Phi-3 models
  """

  name: ClassVar = "longrope"

  short_factors: tuple[float, ...] = ()
  long_factors: tuple[float, ...] = ()
  gain: float = 0.0

  def __post_init__(self):
    super().__post_init__()
    if not self.long_factors:
      raise UserError("longrope needs long_factors, one divisor per pair of channels (rotary_dim / 2 numbers)")
    for field in ("short_factors", "long_factors"):
      if not all(v > 0 and math.isfinite(v) for v in getattr(self, field)):
        raise UserError(f"longrope's {field} divide frequencies and must be positive, got {getattr(self, field)}")
    if not (self.gain >= 0 and math.isfinite(self.gain)):
      raise UserError(f"longrope needs gain >= 0 (0: computed), got {self.gain}")

  @property
  def length_dependent(self) -> bool:
    return True

  def frequencies64(self, rotary_dim: int, base: float, length: int, train_length: int) -> tuple[np.ndarray, float]:
    original = self._original(train_length)
    name = "long_factors" if length > original else "short_factors"
    divisors = getattr(self, name) or (1.0,) * (rotary_dim // 2)
    if len(divisors) != rotary_dim // 2:
      raise UserError(f"longrope's {name} must have rotary_dim / 2 = {rotary_dim // 2} numbers, got {len(divisors)}")
    factor = self._factor(length, train_length)
    gain = self.gain or (math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0)
    return inverse_frequencies(rotary_dim, base) / np.asarray(divisors, np.float64), gain
