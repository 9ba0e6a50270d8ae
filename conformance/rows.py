"""One line of the page: a method in posx and in a peer, both measured against the definition in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

ROUNDED = 1e-3
"""Float32 powers and sines of PyTorch: from one process to the next 2e-5 or 1.5e-4 from the definition. Another definition is off by 1."""


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What is compared with what, and how near it has to be.

  Attributes:
    method: name in the catalogue of encodings or extensions.
    compared: which numbers.
    peer: library and name of the other implementation.
    run: makes (posx's numbers, the peer's, those of the definition in float64).
    within: the most that posx may be away from the definition.
    close: the most that posx may be away from the peer; None where the two differ.
    apart: where they differ, by how much at least, so that a note that is no longer true is found.
    relative: whether differences are divided by the definition's number.
    note: in what they differ; begins with 'definition' or 'precision'.
  """

  method: str
  compared: str
  peer: str
  run: Callable[[], tuple[Any, Any, Any]]
  within: float = 2e-6
  close: float | None = 4e-6
  apart: float = 0.0
  relative: bool = False
  note: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
  """Largest differences: of posx from the definition, of the peer from it, of posx from the peer."""

  posx: float
  peer: float
  between: float


def difference(a: np.ndarray, b: np.ndarray, scale: np.ndarray | None = None) -> float:
  """The largest |a - b|, over |scale| where that is given and not 0; nan if any number is."""
  away = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
  if scale is not None:
    away = away / np.where(scale == 0, 1.0, np.abs(scale))
  return float(np.max(away))


def measure(comparison: Comparison) -> Result:
  """Runs one comparison; shapes must agree, and the definition must be finite."""
  ours, theirs, exact = (np.asarray(x, np.float64) for x in comparison.run())
  if not ours.shape == theirs.shape == exact.shape or ours.size == 0:
    raise ValueError(f"{comparison.method}, {comparison.peer}: shapes {ours.shape}, {theirs.shape}, {exact.shape}")
  if not np.isfinite(exact).all():
    raise ValueError(f"{comparison.method}, {comparison.peer}: the definition is not finite")
  scale = exact if comparison.relative else None
  return Result(difference(ours, exact, scale), difference(theirs, exact, scale), difference(ours, theirs, scale))


def failures(comparison: Comparison, result: Result) -> list[str]:
  """What does not hold of what the comparison claims."""
  found = []
  if not result.posx <= comparison.within:
    found.append(f"posx is {result.posx:.2g} from the definition, allowed {comparison.within:.2g}")
  if comparison.close is not None and not result.between <= comparison.close:
    found.append(f"posx is {result.between:.2g} from the peer, allowed {comparison.close:.2g}")
  if comparison.close is None and not (math.isnan(result.between) or result.between >= comparison.apart):
    found.append(f"the peer is only {result.between:.2g} away, but is said to differ by {comparison.apart:.2g} or more")
  return [f"{comparison.method}, {comparison.compared}, {comparison.peer}: {line}" for line in found]
