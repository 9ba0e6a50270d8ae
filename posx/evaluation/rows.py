"""From losses to rows of the results table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from posx.evaluation import protocols
from posx.evaluation.protocols import Measure
from posx.evaluation.windows import Windows


def selections(losses: np.ndarray, windows: Windows, k: int) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
  """(protocol fields, losses [documents, targets]) of every protocol that these windows allow."""
  if windows.length % windows.stride == 0:
    yield {"protocol": "nonoverlapping", "stride": windows.length}, protocols.nonoverlapping(losses, windows)
  if windows.stride < windows.length:
    yield {"protocol": "sliding", "stride": windows.stride}, protocols.sliding(losses, windows)
  if k and k <= windows.length:
    yield {"protocol": "last_k", "k": k}, protocols.last_k(losses, windows, k)


def _exp(x: float) -> float:
  with np.errstate(over="ignore", invalid="ignore"):
    return float(np.exp(np.float64(x)))


def document_losses(losses: np.ndarray) -> list[float | None]:
  """The mean loss of each document, of losses [documents, targets]: what paired comparisons are made from; null where not finite."""
  each = np.asarray(losses, np.float64).mean(1) if losses.size else np.empty(0)
  return [float(x) if np.isfinite(x) else None for x in each]


def fields(measure: Measure, reference: Measure | None, bytes_per_token: float) -> dict[str, Any]:
  """The numbers of a row; what is not finite becomes null, with a note that says so."""
  finite = lambda x: x if x is not None and math.isfinite(x) else None
  row: dict[str, Any] = {
    "loss": finite(measure.loss),
    "perplexity": finite(measure.perplexity),
    "bits_per_byte": finite(measure.loss / math.log(2) / bytes_per_token),
    "stderr": finite(measure.stderr),
    "tokens": measure.tokens,
    "documents": measure.documents,
    "ratio_to_truncation": finite(_exp(measure.loss - reference.loss)) if reference else None,
  }
  if not math.isfinite(measure.loss):
    row["note"] = f"the loss is {measure.loss}"
  elif row["perplexity"] is None:
    row["note"] = "perplexity overflows"
  return row
