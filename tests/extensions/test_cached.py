"""Decoding with a ring that keeps its first slots equals the full pass under extensions that hide keys or bend distances."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.attention.cache import EMPTY, Slots
from posx.decoder import Decoder
from posx.decoding import Decoding

pytestmark = pytest.mark.usefixtures("compiled_quickly")

LENGTH = 14
TOKENS = np.asarray(jax.random.randint(jax.random.key(0), (2, LENGTH), 0, 30))


def model_of(inner, name, **fields):
  encoding = extensions.apply(extensions.make(name, **fields), encodings.make(inner))
  model = Decoder(30, 2, 16, 4, num_kv_heads=2, train_length=8, encoding=encoding)
  return model, model.init(jax.random.key(1), TOKENS[:, :8])


def decoded(decoding, parts):
  first = np.cumsum([0, *parts])
  return jnp.concatenate([decoding.feed(TOKENS[:, a:b], last=False) for a, b in itertools.pairwise(first)], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("inner", "name", "fields", "capacity"),
  [
    ("rope", "sinks", {"sinks": 2, "window": 4}, 9),
    ("t5", "lm_infinite", {"sinks": 1, "window": 4, "ceiling": 6}, 8),
    ("alibi", "window", {"window": 4}, 6),
    ("rope", "dca", {"chunk": 6, "window": 2}, 0),
    ("rope", "leaky_rerope", {"window": 4, "factor": 2.0}, 0),
    ("t5", "stretch_buckets", {"factor": 2.0}, 0),
    ("nope", "ssmax", {}, 0),
  ],
  ids=lambda x: x if isinstance(x, str) else "",
)
def test_decoding_equals_the_full_pass(inner, name, fields, capacity):
  model, params = model_of(inner, name, **fields)
  full = model.apply(params, TOKENS)
  decoding = Decoding(model, params, batch=2, capacity=capacity or LENGTH, ring=capacity > 0)
  np.testing.assert_allclose(decoded(decoding, (3, 2, *[1] * (LENGTH - 5))), full, atol=2e-5)


def test_a_ring_keeps_its_first_slots_and_its_window():
  slots = Slots(9, ring=True, window=5, sinks=2)
  holds = np.full(9, -1)
  for used in range(0, 40, 2):
    holds[slots.take(used, 2)] = [used, used + 1]
    assert {0, 1} | set(range(max(0, used - 4), used + 2)) <= set(holds.tolist())
  with pytest.raises(ValueError, match="write at most 3 at a time, or give capacity=10"):
    slots.take(40, 4)
  with pytest.raises(ValueError, match="cannot hold a window of 5 and 2 first tokens; give at least 7"):
    Slots(6, ring=True, window=5, sinks=2)


def test_first_tokens_that_come_late_are_refused_by_a_ring():
  model, params = model_of("nope", "sinks", sinks=2, window=3)
  decoding = Decoding(model, params, batch=2, capacity=8, ring=True)
  with pytest.raises(ValueError, match="a ring keeps the first 2 tokens fed"):
    decoding.feed(TOKENS[:, :4], segments=np.array([[EMPTY, 0, 0, 0], [0, 0, 0, 0]]))
