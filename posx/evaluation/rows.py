"""From losses to rows of the results table."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
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


def identity(
  workdir: Path, config: Any, train_length: int, extension: Any, length: int, corpus: Any, step: int, params: Any
) -> dict[str, Any]:
  """What a row says of the run, the extension and the text it is of; a factor that follows the length is given as it was there."""
  factor = getattr(extension, "factor", None)
  if extension is not None and factor == 0:
    factor = max(1.0, length / (extension.original_length or config.train.original_length or train_length))
  return {
    "run": workdir.resolve().name,
    "seed": config.seed,
    "encoding": config.encoding.name,
    "extension": type(extension).name if extension is not None else "",
    "factor": factor,
    "train_length": train_length,
    **({"original_length": config.train.original_length, "init_from": Path(config.train.init_from).name} if config.train.init_from else {}),
    "length": length,
    "data": corpus.dataset,
    "split": corpus.split,
    "step": step,
    "params": int(sum(np.size(x) for x in leaves(params))),
  }


def leaves(tree: Any) -> list[Any]:
  """The arrays of nested dictionaries."""
  return [leaf for value in tree.values() for leaf in leaves(value)] if isinstance(tree, Mapping) else [tree]


def digest(tree: Any) -> int:
  """Names the weights, so that losses of others are not taken for theirs."""
  total = 0
  for leaf in leaves(tree):
    total = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data, total)
  return total
