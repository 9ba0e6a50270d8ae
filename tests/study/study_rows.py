"""Rows made by hand for the tests of the study; the perplexities are those of a table by Chi et al. (arXiv:2205.09921, Table 3, ArXiv)."""

from __future__ import annotations

import math
from typing import Any

LENGTHS = (512, 1024, 2048)
PERPLEXITIES = {"alibi": (6.12, 5.82, 5.71), "t5": (6.03, 5.58, 5.21), "rope": (6.07, 7.49, 14.2)}


def row(encoding: str, length: int, perplexity: float | None, **fields: Any) -> dict[str, Any]:
  """A valid row; no perplexity means nan."""
  loss = None if perplexity is None else math.log(perplexity)
  made = {
    "run": encoding,
    "seed": 0,
    "encoding": encoding,
    "extension": "",
    "factor": None,
    "train_length": 512,
    "length": length,
    "protocol": "nonoverlapping",
    "stride": 0,
    "k": None,
    "bucket": None,
    "control": "",
    "perplexity": perplexity,
    "loss": loss,
    "bits_per_byte": None if loss is None else loss / math.log(2),
    "tokens": 8192,
    "documents": 16,
    "stderr": None if loss is None else 0.02,
    "ratio_to_truncation": None if perplexity is None else perplexity / 6.0,
    "target_hash": "c0ffee",
    "data": "sotu",
    "split": "test",
  }
  return {**made, **({"note": "nan in the logits"} if loss is None else {}), **fields}


def table() -> list[dict[str, Any]]:
  """Three encodings, RoPE under YaRN, and controls of ALiBi."""
  rows = [row(name, n, p) for name, ps in PERPLEXITIES.items() for n, p in zip(LENGTHS, ps, strict=True)]
  rows += [row("rope", n, p, extension="yarn", factor=n / 512) for n, p in ((1024, 6.2), (2048, 6.5))]
  rows += [row("alibi", n, 6.0, control=control) for control in ("window", "truncate") for n in LENGTHS]
  return rows


def buckets() -> list[dict[str, Any]]:
  """Losses by position of two encodings at 2048."""
  spans = ((0, 512), (512, 1024), (1024, 2048))
  values = {"alibi": (6.5, 5.5, 5.0), "rope": (6.5, 20.0, 60.0)}
  return [
    row(name, 2048, p, protocol="bucket", bucket=f"{a}-{b}") for name, ps in values.items() for (a, b), p in zip(spans, ps, strict=True)
  ]
