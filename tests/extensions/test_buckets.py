"""T5's buckets stretched, against exact fractions."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings import t5
from posx.encodings.base import Dims
from posx.errors import UserError


def bucket(d, side, furthest):
  """A bucket of the past, with fractions instead of logarithms."""
  e = side // 2
  if d < e:
    return max(d, 0)
  steps = [k for k in range(1, side - e) if Fraction(d, e) ** (side - e) >= Fraction(furthest, e) ** k]
  return e + len(steps)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("factor", [2.0, 16.0])
def test_far_buckets_reach_further(bind, factor, causal):
  trained = bind(encodings.make("t5", num_buckets=16, max_distance=40, causal=causal))
  made = bind(extensions.apply(extensions.make("stretch_buckets", factor=factor), trained.encoding), params=trained.params, length=2048)
  side = 16 if causal else 8
  d = np.array([0, 1, 3, 7, 8, 9, 20, 39, 40, 41, 100, 639, 640, 5000])
  expected = [bucket(int(x), side, int(40 * factor)) for x in d]
  for h in range(4):
    table = np.asarray(trained.params["table"][h])
    np.testing.assert_array_equal(made.encoding.bias(made.head(h), jnp.asarray(d)), table[expected])
    future = [0] * len(d[1:]) if causal else [side + b for b in expected[1:]]
    np.testing.assert_array_equal(made.encoding.bias(made.head(h), jnp.asarray(-d[1:])), table[future])


def test_up_to_the_trained_length_nothing_changes(bind):
  trained = bind(encodings.make("t5"))
  stretched = extensions.apply(extensions.make("stretch_buckets"), trained.encoding)
  d = jnp.arange(-3, 300)
  for length, same in ((10, True), (64, True), (128, False)):
    made = bind(stretched, params=trained.params, length=length)
    equal = np.array_equal(made.encoding.bias(made.head(1), d), trained.encoding.bias(trained.head(1), d))
    assert equal == same
  assert stretched.length_dependent and stretched.relative and stretched.form == "distance"


def test_near_distances_and_the_number_of_buckets_stay(bind, dims):
  stretched = extensions.apply(extensions.make("stretch_buckets", factor=64.0), encodings.make("t5"))
  past = stretched.constants(dims, 4096)["past"]
  np.testing.assert_array_equal(past[:16], np.arange(16))
  assert past.max() == 31 and len(past) == 128 * 64 + 1 and (np.diff(past) >= 0).all()


def test_a_fraction_mixes_its_neighbours(bind):
  trained = bind(encodings.make("t5"))
  made = bind(extensions.apply(extensions.make("stretch_buckets", factor=4.0), trained.encoding), params=trained.params)
  at = lambda d: made.encoding.bias(made.head(0), jnp.asarray(d))
  np.testing.assert_allclose(at(np.float32(100.25)), 0.75 * at(100) + 0.25 * at(101), atol=1e-6)


def test_programs_are_shared():
  made = [
    extensions.apply(extensions.make("stretch_buckets", factor=f), encodings.make("t5", max_distance=m)) for f, m in ((2.0, 64), (4.0, 128))
  ]
  assert made[0].program() == made[1].program()


def test_refusals():
  with pytest.raises(UserError, match="changes nothing"):
    extensions.make("stretch_buckets", factor=1.0)
  with pytest.raises(UserError, match="above 1"):
    extensions.make("stretch_buckets", factor=0.5)
  with pytest.raises(UserError, match="extends T5's bias, got ALiBi"):
    extensions.apply(extensions.make("stretch_buckets"), encodings.make("alibi"))
  with pytest.raises(UserError, match="give original_length, in tokens, or factor"):
    extensions.apply(extensions.make("stretch_buckets"), encodings.make("t5")).constants(Dims(1, 8, 8, 0), 64)
  assert t5.past_buckets(4, 8).tolist() == [bucket(d, 4, 8) for d in range(9)]
