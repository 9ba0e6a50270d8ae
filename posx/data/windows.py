"""Which tokens a training step sees, as a pure function of (corpus, seed, step): nothing to save, nothing to restore.

Windows are numbered through all epochs, step s of batch size b takes numbers s b .. s b + b - 1. Every epoch holds each of its
windows once, in an order of its own that is computed, not stored, and cuts the documents at other places than the epoch before.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from posx.data import synthetic
from posx.data.shuffle import key, mix, permute
from posx.data.store import Corpus
from posx.errors import UserError

Packing = Literal["documents", "packed"]


def positions_of(segments: np.ndarray) -> np.ndarray:
  """Positions that restart at 0 in every segment; 0 on padding (segment 0).

  Example:
    >>> positions_of(np.array([1, 1, 1, 2, 2, 0, 0])).tolist()
    [0, 1, 2, 0, 1, 0, 0]
  """
  segments = np.asarray(segments)
  places = np.broadcast_to(np.arange(segments.shape[-1], dtype=np.int32), segments.shape)
  starts = np.ones(segments.shape, bool)
  starts[..., 1:] = segments[..., 1:] != segments[..., :-1]
  return np.where(segments > 0, places - np.maximum.accumulate(np.where(starts, places, 0), axis=-1), 0).astype(np.int32)


def batch(
  corpus: Corpus,
  *,
  seed: int,
  step: int,
  batch_size: int,
  length: int,
  packing: Packing = "documents",
  shard: tuple[int, int] = (0, 1),
) -> dict[str, np.ndarray]:
  """The batch of one training step; the same arguments give the same arrays in every process.

  'documents': every window lies inside one document; documents of fewer than length + 1 tokens are left out. A document
  of n tokens gives floor((n - 1) / length) windows an epoch, side by side, starting at a random place.

  'packed': all documents in random order, one after the other, cut into windows: several documents in a window, told apart
  by `segments`. Every token appears once an epoch. The first and the last window of an epoch may end in padding.

  Args:
    corpus: from `load` or `from_texts`.
    seed: names the order.
    step: from 0.
    batch_size: b, rows of the whole batch.
    length: t, tokens of a window.
    packing: 'documents' or 'packed'.
    shard: (index, count) gives this process its rows, b / count of them; together they are the whole batch.

  Returns:
    'tokens' int32 [b, t]; 'targets' int32 [b, t], the next token; 'weights' float32 [b, t], 0 where there is none to learn
    (padding, and the last token of a document: nothing is learned from one document to the next). 'packed' adds
    'segments' int32 [b, t], 1, 2, ... and 0 on padding, and 'positions' int32 [b, t], from 0 in each segment.

  Raises:
    UserError: for arguments out of range, or if no document is long enough.
  """
  numbers = _numbers(step, batch_size, length, shard)
  if packing not in _READERS:
    raise UserError(f"unknown data.packing {packing!r}; known: {', '.join(_READERS)}")
  if isinstance(corpus, synthetic.TaskCorpus):
    synthetic.check_packing(packing)
    return corpus.task.rows(numbers, seed=seed, split=corpus.split, length=length, full=False)
  count, reader = _READERS[packing]
  windows = count(corpus, length)
  parts = []
  for epoch in np.unique(numbers // windows).tolist():
    index = numbers[numbers // windows == epoch] % windows
    order = permute(index, windows, key("windows", packing, seed, epoch))
    parts.append(reader(corpus, order, length, key("cuts", packing, seed, epoch)))
  return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def windows_per_epoch(corpus: Corpus, *, length: int, packing: Packing = "documents") -> int:
  """How many windows an epoch has."""
  return _READERS[packing][0](corpus, length)


def _numbers(step: int, batch_size: int, length: int, shard: tuple[int, int]) -> np.ndarray:
  index, count = shard
  if length < 1 or batch_size < 1 or step < 0:
    raise UserError(f"a batch needs length >= 1, batch_size >= 1 and step >= 0, got {length}, {batch_size} and {step}")
  if count < 1 or not 0 <= index < count or batch_size % count:
    raise UserError(f"shard {index} of {count}: the index must lie in 0 .. count - 1 and count must divide batch_size={batch_size}")
  rows = batch_size // count
  return np.arange(rows, dtype=np.int64) + (step * batch_size + index * rows)


# Windows inside documents.


def _eligible(corpus: Corpus, length: int) -> tuple[np.ndarray, np.ndarray]:
  """(documents that hold a window, number of windows up to and including each)."""
  if ("documents", length) not in corpus.memo:
    documents = np.flatnonzero(corpus.lengths > length)
    if not len(documents):
      raise UserError(
        f"no document of split {corpus.split!r} holds a window of {length} tokens and its last target: the longest of "
        f"{corpus.num_documents} has {int(corpus.lengths.max(initial=0))} tokens; take a shorter length or data.packing=packed"
      )
    corpus.memo["documents", length] = documents, np.cumsum((corpus.lengths[documents] - 1) // length)
  return corpus.memo["documents", length]


def _count_documents(corpus: Corpus, length: int) -> int:
  return int(_eligible(corpus, length)[1][-1])


def _read_documents(corpus: Corpus, order: np.ndarray, length: int, cuts: int) -> dict[str, np.ndarray]:
  documents, ends = _eligible(corpus, length)
  slot = np.searchsorted(ends, order, side="right")
  document = documents[slot]
  room = corpus.lengths[document] - 1
  shift = (mix(document, cuts) % (room % length + 1).astype(np.uint64)).astype(np.int64)
  place = order - (ends[slot] - room // length)
  rows = (corpus.offsets[document] + shift + place * length)[:, None] + np.arange(length + 1)
  tokens = np.asarray(corpus.tokens[rows], np.int32)
  return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": np.ones((len(order), length), np.float32)}


# Windows over several documents.


def _count_packed(corpus: Corpus, length: int) -> int:
  if not corpus.num_tokens:
    raise UserError(f"split {corpus.split!r} of data set {corpus.dataset!r} has no tokens")
  return -(-corpus.num_tokens // length)


def _stream(corpus: Corpus, cuts: int) -> tuple[np.ndarray, np.ndarray]:
  """(documents in this epoch's order, tokens up to and including each); kept for the two epochs last used."""
  kept = corpus.memo.get("streams", {})
  if cuts not in kept:
    documents = permute(np.arange(corpus.num_documents), corpus.num_documents, cuts)
    corpus.memo["streams"] = kept = {**dict(list(kept.items())[-1:]), cuts: (documents, np.cumsum(corpus.lengths[documents]))}
  return kept[cuts]


def _read_packed(corpus: Corpus, order: np.ndarray, length: int, cuts: int) -> dict[str, np.ndarray]:
  documents, ends = _stream(corpus, cuts)
  # All windows but the first are moved forward by what the last one would lack at most, so that epochs cut differently.
  shift = cuts % (_count_packed(corpus, length) * length - corpus.num_tokens + 1)
  start = np.where(order == 0, 0, order * length - shift)
  stop = np.minimum((order + 1) * length - shift, corpus.num_tokens)
  place = start[:, None] + np.arange(length)
  real = place < stop[:, None]
  place = np.where(real, place, 0)
  slot = np.searchsorted(ends, place, side="right")
  at = corpus.offsets[documents[slot]] + place - (ends[slot] - corpus.lengths[documents[slot]])
  follows = real & (place + 1 < ends[slot])
  segments = np.where(real, slot - slot[:, :1] + 1, 0).astype(np.int32)
  return {
    "tokens": np.where(real, corpus.tokens[at], 0).astype(np.int32),
    "targets": np.where(follows, corpus.tokens[np.where(follows, at + 1, 0)], 0).astype(np.int32),
    "weights": follows.astype(np.float32),
    "positions": positions_of(segments),
    "segments": segments,
  }


_READERS: dict[str, Any] = {"documents": (_count_documents, _read_documents), "packed": (_count_packed, _read_packed)}


# Evaluation.


def segments(corpus: Corpus, *, length: int, documents: int) -> tuple[np.ndarray, list[str]]:
  """The first length + 1 tokens of the longest documents, for evaluation: never shuffled, never repeated.

  Documents are ranked by size (ties by place in the corpus), so every length that enough documents reach sees the same ones.

  Args:
    corpus: from `load` or `from_texts`.
    length: t, tokens of a window; one more token is the last target.
    documents: n, how many; 0 for all that are long enough.

  Returns:
    (int32 [n, t + 1], names of the documents).

  Raises:
    UserError: if fewer documents are long enough; says how many are, and how long the longest is.
  """
  if length < 1 or documents < 0:
    raise UserError(f"segments need length >= 1 and documents >= 0, got {length} and {documents}")
  ranked = np.argsort(-corpus.lengths, kind="stable")
  enough = int((corpus.lengths > length).sum())
  if enough < max(documents, 1):
    raise UserError(
      f"split {corpus.split!r} has {enough} documents of at least {length + 1} tokens (a window of {length} and its last target) and "
      f"{max(documents, 1)} are asked for; the longest has {int(corpus.lengths.max(initial=0))} tokens; "
      "take a shorter length or fewer documents"
    )
  chosen = ranked[: documents or enough]
  rows = corpus.offsets[chosen][:, None] + np.arange(length + 1)
  return np.asarray(corpus.tokens[rows], np.int32), [str(corpus.names[i]) for i in chosen.tolist()]
