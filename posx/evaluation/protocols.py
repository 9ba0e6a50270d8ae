"""Length protocols as pure functions of losses per token.

The same weights look better or worse with length depending on the protocol: non-overlapping windows score tokens that
have hardly any context, more of them at short lengths; sliding windows do not. So every number names its protocol, and
all of them come from one array of losses.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools

import numpy as np

from posx.errors import UserError
from posx.evaluation.windows import Windows


@dataclasses.dataclass(frozen=True)
class Measure:
  """A loss over tokens, with what it stands on.

  Attributes:
    loss: nats per token, a token-weighted mean.
    stderr: standard error of `loss` over documents; None with one document.
    tokens: number of targets.
    documents: number of documents.
  """

  loss: float
  stderr: float | None
  tokens: int
  documents: int

  @property
  def perplexity(self) -> float:
    with np.errstate(over="ignore"):
      return float(np.exp(np.float64(self.loss)))


def measure(losses: np.ndarray) -> Measure:
  """Summarises losses [documents, targets]; every document has as many targets, so means of means are token-weighted."""
  each = np.asarray(losses, np.float64).mean(1)
  n = len(each)
  stderr = float(each.std(ddof=1) / np.sqrt(n)) if n > 1 else None
  return Measure(float(each.mean()), stderr, int(losses.size), n)


def sliding(losses: np.ndarray, windows: Windows) -> np.ndarray:
  """Losses [documents, targets], each target scored once, by the window that gives it the most context.

  Args:
    losses: float32 [documents, windows, length], of `posx.evaluation.losses`.
    windows: where the windows lie.
  """
  window, position = windows.scored()
  return losses[:, window, position]


def nonoverlapping(losses: np.ndarray, windows: Windows) -> np.ndarray:
  """Losses [documents, targets] of windows side by side; needs a stride that divides the length.

  Raises:
    UserError: if windows side by side are not among those computed.
  """
  if windows.length % windows.stride:
    raise UserError(
      f"stride {windows.stride} does not divide length {windows.length}: windows side by side were not computed; give a stride that does"
    )
  coarse, index = windows.every(windows.length // windows.stride)
  return sliding(losses[:, index], coarse)


def last_k(losses: np.ndarray, windows: Windows, k: int) -> np.ndarray:
  """Losses [documents, k] of the document's last k targets, from the window that ends there: the same tokens at every length.

  Raises:
    UserError: if the window is shorter than k.
  """
  if not 1 <= k <= windows.length:
    raise UserError(f"last_k={k} must be from 1 to the window's {windows.length} tokens")
  return losses[:, 0, windows.length - k :]


def buckets(losses: np.ndarray, windows: Windows) -> dict[tuple[int, int], np.ndarray]:
  """Losses by position in windows side by side: {(first, last + 1): [documents, losses]}, edges 0, 64, 128, 256, ...

  Every computed window counts as a whole, so buckets hold more targets than the other protocols.
  """
  step = windows.length // windows.stride if windows.length % windows.stride == 0 else 1
  chosen = losses[:, ::step]
  edges = [0, *(e for e in (64 << n for n in range(32)) if e < windows.length), windows.length]
  return {(a, b): chosen[:, :, a:b].reshape(len(losses), -1) for a, b in itertools.pairwise(edges)}


def target_hash(scored: np.ndarray) -> str:
  """Names the scored tokens: rows with the same hash speak of the same targets."""
  return hashlib.sha256(np.ascontiguousarray(scored, "<i4").tobytes()).hexdigest()[:12]
