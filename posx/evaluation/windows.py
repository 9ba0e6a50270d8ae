"""Where windows lie in a document, and which window scores which token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from posx.errors import UserError


@dataclasses.dataclass(frozen=True)
class Windows:
  """Windows of `length` input tokens over a document of `total` + 1 tokens, all ending on the same grid from the end.

  Target i is the token at place i + 1; it is predicted from the tokens before it that lie in the window.

  Attributes:
    total: number of targets that the document has, N - 1 for N tokens.
    length: input tokens of a window (less where the document is shorter).
    stride: targets by which windows are apart.
    targets: how many of the last targets are scored.
    starts: the first token of each window, the last window first.
  """

  total: int
  length: int
  stride: int
  targets: int
  starts: tuple[int, ...]

  def scored(self) -> tuple[np.ndarray, np.ndarray]:
    """(window, position in it) of every scored target, in document order: each target once, with the longest context."""
    targets = np.arange(self.total - self.targets, self.total)
    starts = np.asarray(self.starts)
    # the earliest window that holds a target gives it the most context
    ends = starts + self.length
    window = np.searchsorted(-ends, -(targets + 1), side="right") - 1
    return window, targets - starts[window]

  @property
  def needed(self) -> int:
    """How many of the last targets of a window `scored` takes losses from, in the window that gives most."""
    return self.length - int(self.scored()[1].min())

  def every(self, n: int) -> tuple[Windows, np.ndarray]:
    """The coarser windows of stride n x stride, and their numbers among these."""
    coarse = place(self.total, self.length, self.stride * n, self.targets)
    return coarse, np.asarray([self.starts.index(start) for start in coarse.starts])

  def cut(self, tokens: np.ndarray) -> np.ndarray:
    """The targets [documents, windows, length] of tokens [documents, total + 1], laid out as their losses are."""
    return np.stack([tokens[:, s + 1 : s + self.length + 1] for s in self.starts], axis=1)


def fitting(targets: int, lengths: Sequence[int]) -> int:
  """The targets that windows of these lengths can score: as many as given, or as the shortest has where that exceeds the longest.

  Example:
    >>> fitting(4096, (512, 8192)), fitting(4096, (512, 1024))
    (4096, 512)
  """
  return targets if targets <= max(lengths) else min(lengths)


def place(total: int, length: int, stride: int, targets: int = 0) -> Windows:
  """Lays windows from the end of the document backwards until the last `targets` targets have their full context.

  A target belongs to the last `stride` tokens of a window, so at least length - stride tokens come before it (or all that
  the document has). All lengths end at the same token, so the last targets are the same ones at every length.

  Args:
    total: number of targets of the document, N - 1 for N tokens.
    length: input tokens of a window; longer than the document means one window.
    stride: how far windows are apart; `length` for windows that do not overlap.
    targets: how many of the last targets are scored; 0 for all.

  Raises:
    UserError: if there is no target (perplexity of one token is undefined, not 1), or the stride would skip some.
  """
  if total < 1:
    raise UserError(f"a document of {total + 1} token has nothing to predict; perplexity needs at least 2 tokens")
  if length < 1 or not 1 <= stride <= length:
    raise UserError(f"windows of {length} tokens need a stride of 1 to {length}, got {stride}: a longer one would skip targets")
  if not 0 <= targets <= total:
    raise UserError(f"{targets} targets are asked for, but the document has {total}; give 1 to {total}, or 0 for all")
  targets = targets or total
  length = min(length, total)
  stride = min(stride, length)
  starts, start = [], total - length
  while True:
    starts.append(max(start, 0))
    if start <= 0 or start + length - stride <= total - targets:
      break
    start -= stride
  return Windows(total, length, stride, targets, tuple(starts))
