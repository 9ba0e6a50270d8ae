"""Extensions of the attention's temperature."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posx.encodings.base import Arrays, Dims, Encoding, Form
from posx.errors import UserError
from posx.extensions.base import Extension, check_length
from posx.extensions.positions import Around


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


@dataclasses.dataclass(frozen=True)
class Sharpened(Around):
  """An encoding whose queries are multiplied by `log_n` of their position; biases of the scores are not.

  Attributes:
    inner: the encoding as it was trained.
    original_length: the trained length L0 in tokens; 0 for the model's own.
  """

  original_length: int = 0

  @property
  def relative(self) -> bool:  # type: ignore[override]
    return False

  @property
  def norm_preserving(self) -> bool:  # type: ignore[override]
    return False

  @property
  def form(self) -> Form:
    return self.inner.form

  def uses(self, hook: str) -> bool:
    return hook == "on_query_key" or self.inner.uses(hook)

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    known = self.original_length or dims.train_length
    if known < 2:
      raise UserError("log_n needs the trained length: give original_length, at least 2 tokens")
    return {**self.inner.constants(dims, length), "log_n": np.float32(known)}

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    return {**self.inner.prepare(params, constants), "log_n": constants["log_n"]}

  def on_query_key(self, p, q, k, q_pos, k_pos):
    q, k = self.inner.on_query_key(p, q, k, q_pos, k_pos)
    return (q * log_n(q_pos, p["log_n"])[:, None]).astype(q.dtype), k

  def split(self) -> tuple[Encoding, Encoding]:
    first, rest = self.inner.split()
    return first, dataclasses.replace(self, inner=rest)

  def program(self) -> Encoding:
    return Sharpened(inner=self.inner.program())


@dataclasses.dataclass(frozen=True)
class LogN(Extension):
  """Scales queries beyond the trained length by log(i + 1) / log L0; for any encoding, extended or not.

  Attributes:
    original_length: the trained length L0 in tokens; 0 for the model's own.

  Reference:
    Su, 2021, kexue.fm/archives/8823; Chiang and Cholak, "Overcoming a Theoretical Limitation of Self-Attention", 2022.
    arXiv:2202.12172
  """

  name: ClassVar = "log_n"
  serves: ClassVar = "any encoding that it does not extend already"
  whole: ClassVar = True

  original_length: int = 0

  def __post_init__(self):
    check_length(self.name, self.original_length)
    if self.original_length == 1:
      raise UserError("log_n divides by log(original_length): give at least 2 tokens, got 1")

  @classmethod
  def accepts(cls, encoding: Encoding) -> bool:
    return not isinstance(encoding, Sharpened)

  def extend(self, encoding: Encoding) -> Encoding:
    return Sharpened(encoding, self.original_length)
