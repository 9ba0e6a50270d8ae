"""One measurement from the rows of several seeds: averaged in loss, with errors over seeds and over documents."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from posx.study import results, statistics
from posx.study.results import Row

_LARGEST_LOSS = 700.0  # exp of more overflows


@dataclasses.dataclass(frozen=True)
class Point:
  """One measurement of a curve: over all its targets, averaged over seeds.

  Attributes:
    loss: nats per token, None where there is no number (then `note` says why).
    stderr: standard error of `loss`, over seeds if there are several, else over documents.
    over_documents: standard error of `loss` over documents, whatever the number of seeds.
    bits: bits per byte.
    ratio: perplexity relative to the truncation control; below 1 the longer context helps.
    tokens: number of targets.
    seeds: number of runs averaged.
    targets: names the targets; '' if the averaged runs do not have the same ones.
    losses: the loss of each document by seed, for paired comparisons; empty where it is not known.
  """

  loss: float | None
  stderr: float | None
  bits: float | None
  ratio: float | None
  tokens: int
  documents: int
  seeds: int
  note: str = ""
  over_documents: float | None = None
  targets: str = ""
  losses: statistics.Losses = dataclasses.field(default_factory=dict)

  @property
  def perplexity(self) -> float | None:
    """exp of the average loss, never an average of perplexities."""
    if self.loss is None:
      return None
    return math.exp(self.loss) if self.loss < _LARGEST_LOSS else math.inf


def average(rows: Sequence[Row]) -> Point:
  """One point from the rows of several seeds: losses are averaged, perplexity follows from the average.

  A seed without a loss makes the point one without a loss: the average of the others would hide it.
  """
  first, n = rows[0], len(rows)
  losses = [row["loss"] for row in rows]
  targets = first["target_hash"] if len(results.values(rows, "target_hash")) == 1 else ""
  notes = list(dict.fromkeys(row.get("note") or "" for row in rows if row["loss"] is None))
  if notes:
    return Point(None, None, None, None, first["tokens"], first["documents"], n, "; ".join(notes), targets=targets)
  mean = math.fsum(losses) / n
  each = _by_document(rows) if targets else {}
  over_documents = statistics.over_documents(statistics.documents(each)) if each else (first["stderr"] if n == 1 else None)
  ratios = [row["ratio_to_truncation"] for row in rows]
  ratio = math.exp(math.fsum(map(math.log, ratios)) / n) if all(ratios) else None
  bits = [row["bits_per_byte"] for row in rows]
  return Point(
    mean,
    statistics.over_seeds(losses) if n > 1 else over_documents,
    None if None in bits else math.fsum(bits) / n,
    ratio,
    first["tokens"],
    first["documents"],
    n,
    over_documents=over_documents,
    targets=targets,
    losses=each,
  )


def _by_document(rows: Sequence[Row]) -> dict[int, list[float]]:
  """seed -> the loss of each document, if that is known of all rows."""
  each = {row["seed"]: row.get("document_losses") or [] for row in rows}
  known = len(each) == len(rows) and all(found and None not in found for found in each.values())
  return each if known and len({len(found) for found in each.values()}) == 1 else {}
