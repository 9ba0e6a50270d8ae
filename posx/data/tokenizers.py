"""Text to tokens and back, without special tokens: a document is its text and nothing else.

No token marks the beginning or the end of a document. A marker would be one of the rarest tokens (about one in 40,000 bytes of
the default text), hardly trained, and the first thing every evaluated window sees; and every length would then score other
targets. Document borders are kept as offsets beside the tokens instead, padding as weight 0.

`bytes`          256 tokens, the UTF-8 bytes. Nothing to train, every text is representable, bits per byte need no conversion.
`sentencepiece`  byte pairs learned on the train split. Lossless: no normalisation, spaces and line breaks kept, bytes for
                 characters outside the vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from posx.errors import CorruptError, UserError

NAMES = ("bytes", "sentencepiece")

_MARK = "\u2581"  # what SentencePiece writes for a space
_TRAINING_BYTES = 64 << 20
_PIECE = 1000


class Tokenizer(Protocol):
  """What the store and the corpora ask of a tokenizer."""

  @property
  def vocab_size(self) -> int:
    """Number of token ids."""
    ...

  def encode(self, text: str) -> np.ndarray:
    """Token ids of a text; `decode` gives the text back."""
    ...

  def decode(self, tokens: Any) -> str:
    """The text of token ids; bytes cut in the middle of a character become U+FFFD."""
    ...

  def token_bytes(self) -> np.ndarray:
    """int32 [vocab_size]: how many UTF-8 bytes each token stands for."""
    ...


@dataclasses.dataclass(frozen=True)
class Bytes:
  """UTF-8 bytes as tokens 0 .. 255.

  Example:
    >>> Bytes().encode("é!").tolist()
    [195, 169, 33]
  """

  vocab_size: int = 256

  def encode(self, text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-8"), np.uint8)

  def decode(self, tokens: Any) -> str:
    return np.asarray(tokens).astype(np.uint8).tobytes().decode("utf-8", errors="replace")

  def token_bytes(self) -> np.ndarray:
    return np.ones(256, np.int32)


@dataclasses.dataclass(frozen=True)
class SentencePiece:
  """Byte pairs of a SentencePiece model file.

  Attributes:
    path: the model file.
    vocab_size: number of tokens.
    sha256: what the file's content must hash to; '' to trust it.
  """

  path: str
  vocab_size: int
  sha256: str = ""

  @functools.cached_property
  def _processor(self) -> Any:
    import sentencepiece

    content = Path(self.path).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if self.sha256 and found != self.sha256:
      raise CorruptError(f"tokenizer {self.path}: sha256 is {found}, expected {self.sha256}; prepare the data again")
    return sentencepiece.SentencePieceProcessor(model_proto=content)

  def encode(self, text: str) -> np.ndarray:
    # A literal U+2581 would come back as a space: spelt in bytes it survives, and its three bytes are counted.
    parts = text.split(_MARK)
    spelt = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in _MARK.encode("utf-8")]
    ids: list[int] = []
    for i, part in enumerate(parts):
      ids += (spelt if i else []) + self._processor.encode(part)
    return np.asarray(ids, np.int32)

  def decode(self, tokens: Any) -> str:
    return self._processor.decode(np.asarray(tokens).reshape(-1).astype(int).tolist())

  def token_bytes(self) -> np.ndarray:
    sp = self._processor
    sizes = [
      1 if sp.is_byte(i) else 0 if sp.is_control(i) or sp.is_unknown(i) else len(_plain(sp.id_to_piece(i))) for i in range(sp.vocab_size())
    ]
    return np.asarray(sizes, np.int32)


def _plain(piece: str) -> bytes:
  return piece.replace(_MARK, " ").encode("utf-8")


def check(name: str, vocab_size: int) -> None:
  """Refuses an unknown tokenizer or an impossible vocabulary, before any work.

  Raises:
    UserError: naming what is allowed.
  """
  if name not in NAMES:
    raise UserError(f"unknown data.tokenizer {name!r}; known: {', '.join(NAMES)}")
  if name == "sentencepiece" and not 300 <= vocab_size <= 1 << 20:
    raise UserError(f"data.vocab_size must lie in 300 .. 1048576 for sentencepiece (256 of them are bytes), got {vocab_size}")


def train(texts: Iterable[str], vocab_size: int, path: Path) -> SentencePiece:
  """Learns byte pairs on the texts (their first 64 MiB) and writes the model to `path`; the same texts give the same model.

  Raises:
    UserError: if the text has too few different pieces for `vocab_size`, or too many characters.
  """
  import sentencepiece

  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=_pieces(texts),
      model_writer=model,
      vocab_size=vocab_size,
      model_type="bpe",
      byte_fallback=True,
      normalization_rule_name="identity",
      remove_extra_whitespaces=False,
      add_dummy_prefix=False,
      user_defined_symbols=["\n"],  # else every line break is spelt as a byte
      bos_id=-1,
      eos_id=-1,
      pad_id=-1,
      character_coverage=0.9999,
      num_threads=1,
      minloglevel=4,
    )
  except RuntimeError as error:
    raise UserError(
      f"data.vocab_size={vocab_size} does not fit this text: {_reason(str(error))}; give a smaller one or more text"
    ) from error
  path.write_bytes(model.getvalue())
  trained = SentencePiece(str(path), vocab_size, hashlib.sha256(model.getvalue()).hexdigest())
  if trained._processor.vocab_size() != vocab_size:
    raise UserError(
      f"data.vocab_size={vocab_size} is too large: this text gives {trained._processor.vocab_size()} pieces; give at most that many"
    )
  return trained


def _pieces(texts: Iterable[str]) -> Iterator[str]:
  seen = 0
  for text in texts:
    for start in range(0, len(text), _PIECE):
      piece = text[start : start + _PIECE]
      seen += len(piece.encode("utf-8"))
      if seen > _TRAINING_BYTES:
        return
      if "\0" not in piece:  # the trainer refuses NUL; bytes spell it
        yield piece


def _reason(message: str) -> str:
  return message.split("] ")[-1].strip().rstrip(".") or "the trainer gave no reason"
