"""Several encodings in one model: each acts in its own places, in the order given."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from posx.encodings.base import Arrays, Dims, Encoding, Form, over_heads

_FORMS: tuple[Form, ...] = ("none", "distance", "elementwise", "rows")


@dataclasses.dataclass(frozen=True)
class Chain(Encoding):
  """Applies `parts` one after the other in each of the four places, e.g. learned positions and ALiBi.

  Parameters and constants are dictionaries keyed by the place in the chain, '0', '1', ...
  """

  parts: tuple[Encoding, ...] = ()

  by_head: ClassVar = ()

  def _each(self, p: Arrays):
    return [(part, p.get(str(n), {})) for n, part in enumerate(self.parts)]

  def _named(self):
    return [(str(n), part) for n, part in enumerate(self.parts)]

  @property
  def content_free(self) -> bool:  # type: ignore[override]
    return all(part.content_free for part in self.parts)

  @property
  def elementwise(self) -> bool:  # type: ignore[override]
    return all(part.elementwise for part in self.parts)

  @property
  def mixes_heads(self) -> bool:  # type: ignore[override]
    return any(part.mixes_heads for part in self.parts)

  @property
  def ordered(self) -> bool:  # type: ignore[override]
    return any(part.ordered for part in self.parts)

  @property
  def relative(self) -> bool:  # type: ignore[override]
    return all(part.relative for part in self.parts)

  @property
  def norm_preserving(self) -> bool:  # type: ignore[override]
    return all(part.norm_preserving for part in self.parts)

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    keys = jax.random.split(key, max(len(self.parts), 1))
    made = {str(n): part.init(keys[n], dims) for n, part in enumerate(self.parts)}
    return {n: params for n, params in made.items() if params}

  def constants(self, dims: Dims, length: int) -> dict[str, Any]:
    made = {str(n): part.constants(dims, length) for n, part in enumerate(self.parts)}
    return {n: numbers for n, numbers in made.items() if numbers}

  def prepare(self, params: Arrays, constants: Arrays) -> dict[str, Any]:
    return {str(n): part.prepare(params.get(str(n), {}), constants.get(str(n), {})) for n, part in enumerate(self.parts)}

  def heads(self, p: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    split = {str(n): part.heads(mine) for n, (part, mine) in enumerate(self._each(p))}
    return {n: pair[0] for n, pair in split.items()}, {n: pair[1] for n, pair in split.items()}

  def sums(self, features: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    split = {str(n): part.sums(mine) for n, (part, mine) in enumerate(self._each(features))}
    return {n: pair[0] for n, pair in split.items()}, {n: pair[1] for n, pair in split.items()}

  def join(self, p: Arrays, query: Arrays, key: Arrays) -> dict[str, Any]:
    joined = {n: part.join(p.get(n, {}), query[n], key[n]) for n, part in self._named() if part.uses("features")}
    return {**p, **joined}

  def features(self, p, x, positions):
    return {n: part.features(p.get(n, {}), x, positions) for n, part in self._named() if part.uses("features")}

  def on_input(self, p, x, positions):
    return functools.reduce(lambda x, each: each[0].on_input(each[1], x, positions), self._each(p), x)

  def on_query_key(self, p, q, k, q_pos, k_pos):
    for part, mine in self._each(p):
      q, k = part.on_query_key(mine, q, k, q_pos, k_pos)
    return q, k

  def bias(self, p, distance):
    return sum(part.bias(mine, distance) for part, mine in self._each(p) if part.uses("bias"))

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    for part, mine in self._each(p):
      act = over_heads(part) if self.mixes_heads and not part.mixes_heads else part.on_scores
      scores = act(mine, scores, q, k, q_pos, k_pos)
    return scores

  def on_values(self, p, weights, q_pos, k_pos):
    return sum(part.on_values(mine, weights, q_pos, k_pos) for part, mine in self._each(p) if part.uses("on_values"))

  def _adding(self):
    return [(n, part) for n, part in self._named() if part.form != "none"]

  def separable(self, p, q_pos, k_pos):
    pairs = [part.separable(p.get(n, {}), q_pos, k_pos) for n, part in self._adding()]
    of_query, of_key = (jnp.concatenate(side, -1) for side in zip(*pairs, strict=True))
    return of_query, of_key

  def uses(self, hook: str) -> bool:
    if hook == "separable":  # a sum is a product only if all that is added is one
      return bool(self._adding()) and all(part.uses(hook) for _, part in self._adding())
    return any(part.uses(hook) for part in self.parts)

  @property
  def form(self) -> Form:
    forms: list[Form] = ["none", *(part.form for part in self.parts)]
    return max(forms, key=_FORMS.index)

  @property
  def length_dependent(self) -> bool:
    return any(part.length_dependent for part in self.parts)

  @property
  def max_context(self) -> int | None:
    limits = [part.max_context for part in self.parts if part.max_context is not None]
    # 0 stands for the trained length, which only a limit given in tokens could undercut.
    return (0 if 0 in limits else min(limits)) if limits else None

  def visibility(self, dims: Dims) -> tuple[int | None, int]:
    seen = [part.visibility(dims) for part in self.parts]
    return min((w for w, _ in seen if w is not None), default=None), max((s for _, s in seen), default=0)

  def check(self, dims: Dims, length: int) -> None:
    for part in self.parts:
      part.check(dims, length)

  def split(self) -> tuple[Encoding, Encoding]:
    pairs = [part.split() for part in self.parts]
    return Chain(tuple(a for a, _ in pairs)), Chain(tuple(b for _, b in pairs))

  def program(self) -> Encoding:
    return Chain(tuple(part.program() for part in self.parts))
