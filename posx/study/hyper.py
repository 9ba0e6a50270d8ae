"""Small algebra of overrides for sweep files in the `get_hyper(hyper)` spelling."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from posx.errors import UserError

Overrides = dict[str, Any]


def sweep(name: str, values: Iterable[Any]) -> list[Overrides]:
  """One override for each value.

  Example:
    >>> sweep("seed", [0, 1])
    [{'seed': 0}, {'seed': 1}]
  """
  return [{name: value} for value in values]


def fixed(name: str, value: Any) -> list[Overrides]:
  """The same override for all, to be used in a `product`."""
  return [{name: value}]


def product(sweeps: Sequence[Sequence[Overrides]]) -> list[Overrides]:
  """All combinations, the last sweep running fastest.

  Example:
    >>> product([sweep("a", [1, 2]), sweep("b", [3, 4])])
    [{'a': 1, 'b': 3}, {'a': 1, 'b': 4}, {'a': 2, 'b': 3}, {'a': 2, 'b': 4}]
  """
  return [_join(parts) for parts in itertools.product(*sweeps)]


def zipit(sweeps: Sequence[Sequence[Overrides]]) -> list[Overrides]:
  """The first of each, then the second of each, and so on; a sweep of one goes with all.

  Example:
    >>> zipit([sweep("a", [1, 2]), sweep("b", [3, 4])])
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]
  """
  longest = max(map(len, sweeps), default=0)
  if any(len(s) not in (1, longest) for s in sweeps):
    raise UserError(f"hyper.zipit got sweeps of {', '.join(str(len(s)) for s in sweeps)} values; they must be equally long (or 1)")
  return [_join(parts) for parts in zip(*(s if len(s) == longest else s * longest for s in map(list, sweeps)), strict=True)]


def chainit(sweeps: Sequence[Sequence[Overrides]]) -> list[Overrides]:
  """One sweep after the other.

  Example:
    >>> chainit([sweep("a", [1]), sweep("b", [3, 4])])
    [{'a': 1}, {'b': 3}, {'b': 4}]
  """
  return list(itertools.chain(*sweeps))


def _join(parts: Iterable[Overrides]) -> Overrides:
  joined: Overrides = {}
  for part in parts:
    twice = joined.keys() & part.keys()
    if twice:
      raise UserError(f"hyper combines two sweeps over {', '.join(sorted(twice))}; each field may be set once")
    joined.update(part)
  return joined
