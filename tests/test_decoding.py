"""Decoding equals the full forward pass: in chunks, a token at a time, padded, packed, in a ring, under extensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.attention.cache import EMPTY
from posx.decoder import Decoder
from posx.decoding import Decoding

pytestmark = pytest.mark.usefixtures("compiled_quickly")

TRAINED, LENGTH = 8, 12
TOKENS = np.asarray(jax.random.randint(jax.random.key(0), (2, LENGTH), 0, 30))


def model_of(encoding, *, layers=2, window=None):
  model = Decoder(30, layers, 16, 4, num_kv_heads=2, train_length=TRAINED, encoding=encoding, window=window)
  params = model.init(jax.random.key(1), TOKENS[:, :TRAINED])
  # away from initial values, where some tables are still constant
  noise = iter(jax.random.split(jax.random.key(2), len(jax.tree.leaves(params))))
  return model, jax.tree.map(lambda x: x + 0.2 * jax.random.normal(next(noise), x.shape), params)


def decoded(decoding, parts):
  logits, first = [], 0
  for size in parts:
    logits.append(decoding.feed(TOKENS[:, first : first + size], last=False))
    first += size
  return jnp.concatenate(logits, axis=1)


def serves(encoding, length=LENGTH):
  try:
    encoding.check(model_of(encoding)[0].dims, length)
  except ValueError:
    return TRAINED
  return length


@pytest.mark.slow
@pytest.mark.parametrize("name", list(encodings.CATALOGUE))
def test_decoding_equals_the_full_pass_for_every_encoding(name):
  encoding = encodings.make(name)
  n = serves(encoding)  # a learned table ends at its rows
  model, params = model_of(encoding)
  full = model.apply(params, TOKENS[:, :n])
  out = decoded(Decoding(model, params, batch=2, capacity=n), (*[4] * (n // 4 - 1), 1, 1, 1, 1))
  np.testing.assert_allclose(out, full, atol=2e-5)


PAIRS = [
  ("rope", "pi", {"factor": 2.0}),
  ("rope", "ntk", {}),
  ("rope", "dynamic_ntk", {"factor": 2.0}),
  ("rope", "yarn", {"factor": 2.0}),
  ("rope", "dynamic_yarn", {}),
  ("rope", "self_extend", {"window": 4, "group": 2}),
  ("t5", "pi", {"factor": 2.0}),
  ("learned", "interpolate", {}),
  ("alibi", "log_n", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "extension", "fields"), PAIRS, ids=["-".join(p[:2]) for p in PAIRS])
def test_decoding_equals_the_full_pass_under_extensions(name, extension, fields):
  encoding = extensions.apply(extensions.make(extension, **fields), encodings.make(name))
  model, params = model_of(encoding)
  full = model.apply(params, TOKENS, constants=model.constants(LENGTH))
  out = decoded(Decoding(model, params, batch=2, capacity=LENGTH, total=LENGTH), (5, *[1] * (LENGTH - 5)))
  np.testing.assert_allclose(out, full, atol=2e-5)


def test_without_a_total_one_layer_turns_its_keys_by_the_tables_of_the_length_reached():
  encoding = extensions.apply(extensions.make("dynamic_ntk", factor=2.0), encodings.make("rope"))
  model, params = model_of(encoding, layers=1)
  decoding = Decoding(model, params, batch=2, capacity=LENGTH)
  decoding.feed(TOKENS[:, :7])
  for i in range(7, LENGTH):
    out = decoding.feed(TOKENS[:, i : i + 1])
    full = model.apply(params, TOKENS[:, : i + 1], constants=model.constants(i + 1))
    np.testing.assert_allclose(out[:, 0], full[:, -1], atol=2e-5)


@pytest.mark.parametrize("name", ["rope", "alibi", "nope", "forgetting"])
def test_a_ring_of_slots_equals_windowed_attention_over_everything(name):
  model, params = model_of(encodings.make(name), window=4)
  full = model.apply(params, TOKENS)
  out = decoded(Decoding(model, params, batch=2, capacity=6, ring=True), (3, 2, *[1] * (LENGTH - 5)))
  np.testing.assert_allclose(out, full, atol=2e-5)


def test_left_padding_and_unused_slots_change_nothing():
  model, params = model_of(encodings.make("t5"))
  full = model.apply(params, TOKENS[:1, :6])
  decoding = Decoding(model, params, batch=1, capacity=10)
  decoding.cache.keys, decoding.cache.values = decoding.cache.keys + 1e3, decoding.cache.values + 1e3
  padded = np.concatenate([[[7, 7]], TOKENS[:1, :5]], axis=1)
  segments = np.array([[EMPTY, EMPTY, 0, 0, 0, 0, 0]])
  first = decoding.feed(padded, segments=segments, last=False)
  assert decoding.next.tolist() == [5]
  second = decoding.feed(TOKENS[:1, 5:6])
  np.testing.assert_allclose(jnp.concatenate([first[:, 2:], second], axis=1), full, atol=2e-5)


def test_gates_of_padding_are_not_counted():
  """Padding between the tokens of a document, in a chunk and at the end of one, leaves the sums of its gates alone."""
  model, params = model_of(encodings.make("forgetting"))
  full = model.apply(params, TOKENS[:1, :6])
  decoding = Decoding(model, params, batch=1, capacity=9)
  first = decoding.feed(np.insert(TOKENS[:1, :4], [2, 4], 7, axis=1), segments=np.array([[0, 0, EMPTY, 0, 0, EMPTY]]), last=False)
  second = decoding.feed(np.insert(TOKENS[:1, 4:6], 1, 7, axis=1), segments=np.array([[0, EMPTY, 0]]), last=False)
  np.testing.assert_allclose(jnp.concatenate([first[:, [0, 1, 3, 4]], second[:, [0, 2]]], axis=1), full, atol=2e-5)


def test_packed_documents_do_not_see_each_other():
  model, params = model_of(encodings.make("rope"))
  decoding = Decoding(model, params, batch=1, capacity=8)
  row = np.concatenate([TOKENS[:1, :3], TOKENS[1:, :4]], axis=1)
  out = decoding.feed(row, positions=np.array([[0, 1, 2, 0, 1, 2, 3]]), segments=np.array([[0, 0, 0, 1, 1, 1, 1]]), last=False)
  np.testing.assert_allclose(out[:, 3:], model.apply(params, TOKENS[1:, :4]), atol=2e-5)


def test_what_does_not_fit_is_refused_before_anything_is_read():
  model, params = model_of(encodings.make("rope"))
  decoding = Decoding(model, params, batch=2, capacity=4)
  decoding.feed(TOKENS[:, :4])
  with pytest.raises(ValueError, match="the cache holds 4 tokens, 4 are taken and 1 more do not fit"):
    decoding.feed(TOKENS[:, 4:5])
  assert decoding.used == 4
  with pytest.raises(ValueError, match="tokens are numbers from 0 to 29, got 30 to 30; use the tokenizer"):
    decoding.feed(np.array([[30], [30]]))
  with pytest.raises(ValueError, match=f"a learned table of {TRAINED} rows cannot serve 9"):
    Decoding(*model_of(encodings.make("learned")), batch=2, capacity=9)
  with pytest.raises(ValueError, match="a ring cache forgets tokens"):
    Decoding(model, params, batch=2, capacity=4, ring=True)
  with pytest.raises(ValueError, match="give total="):
    Decoding(*model_of(extensions.apply(extensions.make("interpolate"), encodings.make("learned"))), batch=2, capacity=9)
