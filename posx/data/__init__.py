"""Text as tokens: `prepare` once, `load` at once, `batch` by step number, `segments` for evaluation. NumPy only."""

from posx.data.corpora import cache_folder, command, load, prepare
from posx.data.store import Corpus, describe, from_texts
from posx.data.windows import batch, positions_of, segments, windows_per_epoch

__all__ = [
  "Corpus",
  "batch",
  "cache_folder",
  "command",
  "describe",
  "from_texts",
  "load",
  "positions_of",
  "prepare",
  "segments",
  "windows_per_epoch",
]
