"""Extensions of the attention's temperature: queries are multiplied by a number that depends on their position."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding
from posx.errors import UserError
from posx.extensions.around import Around
from posx.extensions.base import Extension, check_length


def log_n(positions: Num[Array, "*t"], original_length: Num[Array, ""] | int) -> Float[Array, "*t"]:
  """What queries are multiplied by: max(1, log(i + 1) / log L0), so that entropy does not grow with the context.

  Args:
    positions: i, tokens counted from 0.
    original_length: L0, in tokens.

  Example:
    >>> log_n(jnp.array([0, 511, 262143]), 512)
    Array([1., 1., 2.], dtype=float32)

  Reference:
    Su, 2021, kexue.fm/archives/8823; Chiang and Cholak, 2022. arXiv:2202.12172
  """
  i = jnp.asarray(positions).astype(jnp.float32)
  return jnp.maximum(1.0, jnp.log1p(jnp.maximum(i, 0.0)) / jnp.log(jnp.float32(original_length)))


def ssmax(positions: Num[Array, "*t"], scale: Num[Array, ""] | float) -> Float[Array, "*t"]:
  """What queries are multiplied by: s log n, with n = i + 1 keys that a causal query sees: weights n^(s z_j) / sum_k n^(s z_k).

  Args:
    positions: i, tokens counted from 0.
    scale: s.

  Example:
    >>> ssmax(jnp.array([0, 511, 262143]), 1 / math.log(512))
    Array([0., 1., 2.], dtype=float32)

  Reference:
    Nakanishi, "Scalable-Softmax Is Superior for Attention", 2025, equation 2. arXiv:2501.19399
  """
  i = jnp.asarray(positions).astype(jnp.float32)
  return scale * jnp.log1p(jnp.maximum(i, 0.0))


def mean_log(length: int) -> float:
  """The mean of log n over n = 1 .. length."""
  return math.lgamma(length + 1) / length


def llama4(
  positions: Num[Array, "*t"], floor_scale: Num[Array, ""] | int, attn_scale: Num[Array, ""] | float, first: Num[Array, ""] | int = 1
) -> Float[Array, "*t"]:
  """What queries are multiplied by: 1 + attn_scale log(1 + floor((i + first) / floor_scale)).

  Args:
    positions: i, tokens counted from 0.
    floor_scale: tokens of one step; nothing changes before the first.
    attn_scale: growth for each natural log of steps.
    first: number of the first position.

  Example:
    >>> llama4(jnp.array([0, 8190, 8191]), 8192, 0.1)
    Array([1.       , 1.       , 1.0693147], dtype=float32)

  Reference:
    Meta, Llama 4 reference code, 2025 (`attn_temperature_tuning`)
  """
  steps = (jnp.maximum(jnp.asarray(positions), 0) + first) // floor_scale
  return 1 + attn_scale * jnp.log1p(steps.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class Temperature(Extension):
  """An extension that multiplies queries by a number of their position; for any encoding, extended or not."""

  serves: ClassVar = "any encoding whose temperature is not extended already"
  whole: ClassVar = True

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    return not isinstance(encoding, Sharpened)

  def extend(self, encoding: Encoding) -> Encoding:
    return Sharpened(encoding, self)

  def numbers(self, dims: Dims) -> dict[str, Any]:
    """The settings in force as numbers, made on the host."""
    raise NotImplementedError

  def factor(self, n: Arrays, positions: Num[Array, "*t"]) -> Float[Array, "*t"]:
    """What queries at these positions are multiplied by, from `numbers`; the settings themselves are not looked at."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Sharpened(Around):
  """An encoding whose queries are multiplied by a number of their position; biases of the scores are not.

  Attributes:
    inner: the encoding as it was trained.
    by: the extension that tells the number.
  """

  own: ClassVar = ("temperature",)

  by: Temperature = dataclasses.field(default_factory=Temperature)

  @property
  def relative(self) -> bool:  # type: ignore[override]
    return False

  @property
  def norm_preserving(self) -> bool:  # type: ignore[override]
    return False

  def uses(self, hook: str) -> bool:
    return hook == "on_query_key" or self.inner.uses(hook)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    return {**self.inner.constants(dims, length), "temperature": self.by.numbers(dims)}

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    return {**self.inner.prepare(params, constants), "temperature": constants["temperature"]}

  def on_query_key(self, p, q, k, q_pos, k_pos):
    q, k = self.inner.on_query_key(p, q, k, q_pos, k_pos)
    return (q * self.by.factor(p["temperature"], q_pos)[:, None]).astype(q.dtype), k

  def split(self) -> tuple[Encoding, Encoding]:
    first, rest = self.inner.split()
    return first, dataclasses.replace(self, inner=rest)

  def program(self) -> Encoding:
    return Sharpened(self.inner.program(), type(self.by)())


@dataclasses.dataclass(frozen=True)
class LogN(Temperature):
  """Scales queries beyond the trained length by log(i + 1) / log L0.

  Attributes:
    original_length: the trained length L0 in tokens; 0 for the model's own.

  Reference:
    Su, 2021, kexue.fm/archives/8823; Chiang and Cholak, "Overcoming a Theoretical Limitation of Self-Attention", 2022.
    arXiv:2202.12172
  """

  name: ClassVar = "log_n"

  original_length: int = 0

  def __post_init__(self):
    _check_trained(self.name, self.original_length)

  def numbers(self, dims: Dims) -> dict[str, Any]:
    return {"original_length": np.float32(_trained(self.name, self.original_length, dims))}

  def factor(self, n, positions):
    return log_n(positions, n["original_length"])


@dataclasses.dataclass(frozen=True)
class SSMax(Temperature):
  """Scalable softmax: scores are multiplied by s log n, n the number of keys that a causal query sees.

  s log(i + 1), at every length. The paper learns s per head; a model trained with softmax is given a constant, by default
  the reciprocal of the mean of log n over the trained length, so that scores keep their size on average. n counts the
  past, whatever a window hides. The bias that the paper tries beside s is left out, as it advises.

  Attributes:
    scale: s; 0 for the reciprocal of the mean of log n, n = 1 .. L0.
    original_length: the trained length L0 in tokens; 0 for the model's own.

  Reference:
    Nakanishi, "Scalable-Softmax Is Superior for Attention", 2025, sections 2 and 3. arXiv:2501.19399
  """

  name: ClassVar = "ssmax"

  scale: float = 0.0
  original_length: int = 0

  def __post_init__(self):
    _check_trained(self.name, self.original_length)
    if not (self.scale >= 0 and math.isfinite(self.scale)):
      raise UserError(f"ssmax needs scale >= 0 (0: from the trained length), got {self.scale}")

  def numbers(self, dims: Dims) -> dict[str, Any]:
    return {"scale": np.float32(self.scale or 1 / mean_log(_trained(self.name, self.original_length, dims)))}

  def factor(self, n, positions):
    return ssmax(positions, n["scale"])


@dataclasses.dataclass(frozen=True)
class Llama4(Temperature):
  """Llama 4's temperature: scores grow with the logarithm of the position, in steps.

  1 + attn_scale log(1 + floor((i + first) / floor_scale)). Llama 4 has it in its layers without rotation only; Ministral 3
  in all, counting positions from 0.

  Attributes:
    floor_scale: tokens of one step; 0 for the trained length.
    attn_scale: growth for each natural log of steps.
    first: number of the first position: 1 as in Llama 4, 0 as in Ministral 3.

  Reference:
    Meta, Llama 4 reference code, 2025 (`attn_temperature_tuning`, floor_scale 8,192, attn_scale 0.1)
  """

  name: ClassVar = "llama4"

  floor_scale: int = 8192
  attn_scale: float = 0.1
  first: int = 1

  def __post_init__(self):
    if self.floor_scale < 0:
      raise UserError(f"llama4 needs floor_scale >= 0 tokens (0: the trained length), got {self.floor_scale}")
    if not (self.attn_scale > 0 and math.isfinite(self.attn_scale)):
      raise UserError(f"llama4 needs attn_scale above 0 (0 changes nothing), got {self.attn_scale}")
    if self.first not in (0, 1):
      raise UserError(f"llama4 counts positions from first=0 or first=1, got {self.first}")

  def numbers(self, dims: Dims) -> dict[str, Any]:
    floor_scale = self.floor_scale or dims.train_length
    if not floor_scale:
      raise UserError("llama4 needs floor_scale, in tokens, or a trained length")
    return {"floor_scale": np.int32(floor_scale), "attn_scale": np.float32(self.attn_scale), "first": np.int32(self.first)}

  def factor(self, n, positions):
    return llama4(positions, n["floor_scale"], n["attn_scale"], n["first"])


def _check_trained(name: str, original_length: int) -> None:
  check_length(name, original_length)
  if original_length == 1:
    raise UserError(f"{name} divides by the log of original_length: give at least 2 tokens, got 1")


def _trained(name: str, given: int, dims: Dims) -> int:
  known = given or dims.train_length
  if known < 2:
    raise UserError(f"{name} needs the trained length: give original_length, at least 2 tokens")
  return known
