"""T5's buckets against exact integers and other libraries."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import t5


def exactly(distance, num_buckets, max_distance, causal):
  """Raffel et al. 2020 with fractions instead of logarithms."""
  side = num_buckets if causal else num_buckets // 2
  offset = side if not causal and distance < 0 else 0
  n = max(distance, 0) if causal else abs(distance)
  e = side // 2
  if n < e:
    return offset + n
  k = 0
  while k < side - e and Fraction(n, e) ** (side - e) >= Fraction(max_distance, e) ** (k + 1):
    k += 1
  return offset + min(e + k, side - 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (64, 256), (12, 100), (4, 5), (32, 33)])
def test_buckets_are_exact(buckets, furthest, causal):
  distance = np.arange(-furthest - 9, furthest + 10)
  expected = [exactly(int(d), buckets, furthest, causal) for d in distance]
  np.testing.assert_array_equal(t5.bucket(jnp.asarray(distance), num_buckets=buckets, max_distance=furthest, causal=causal), expected)


def test_oracle(oracle):
  for case in oracle("D_t5_buckets"):
    p = case.params
    made = t5.bucket(
      -jnp.asarray(case.arrays["relative_position"]),
      num_buckets=p["num_buckets"],
      max_distance=p["max_distance"],
      causal=not p["bidirectional"],
    )
    for name in ("bucket_ref", "bucket_t5"):
      np.testing.assert_array_equal(made, case.arrays[name], err_msg=f"{case.id} {name}")


def test_published_values():
  distance = jnp.array([15, 16, 31, 63, 90, 127, 128, 131071, -5])
  np.testing.assert_array_equal(t5.bucket(distance), [15, 16, 21, 26, 29, 31, 31, 31, 0])
  np.testing.assert_array_equal(t5.bucket(jnp.array([8, 31, 64, -8, -31]), causal=False), [8, 11, 14, 24, 27])


def test_decoding_with_four_cached():
  np.testing.assert_array_equal(t5.bucket(4 - jnp.arange(5)), [4, 3, 2, 1, 0])


def test_bias_reads_the_heads_own_row(bind, dims):
  made = bind(encodings.make("t5"))
  distance = np.array([[0, 5], [200, 17]])
  for h in range(dims.num_heads):
    expected = np.asarray(made.params["table"])[h][[[0, 5], [31, 16]]]
    np.testing.assert_array_equal(made.encoding.bias(made.head(h), jnp.asarray(distance)), expected)


@pytest.mark.parametrize("causal", [True, False])
def test_fractional_distances_mix_their_neighbours(bind, causal):
  made = bind(encodings.make("t5", causal=causal))

  def bias(d):
    return made.encoding.bias(made.head(0), jnp.asarray(d))

  whole = np.array([-3, -1, 0, 2, 40])
  np.testing.assert_allclose(bias(whole.astype(np.float32)), bias(whole))
  np.testing.assert_allclose(bias(whole + np.float32(0.25)), 0.75 * bias(whole) + 0.25 * bias(whole + 1), atol=1e-6)


def test_gradient_counts_the_pairs_of_a_bucket(bind):
  made = bind(encodings.make("t5"))
  distance = jnp.array([0, 1, 1, 500, 600])
  grad = jax.grad(lambda table: made.encoding.bias({"table": table}, distance).sum())(made.params["table"][0])
  expected = np.zeros(32)
  expected[[0, 1, 31]] = 1, 2, 2
  np.testing.assert_array_equal(grad, expected)


@pytest.mark.parametrize(
  ("fields", "match"),
  [
    ({"num_buckets": 1}, "at least 2 buckets"),
    ({"num_buckets": 5, "causal": False}, "even number"),
    ({"max_distance": 16}, "must exceed the 16"),
  ],
)
def test_refusals(fields, match):
  with pytest.raises(ValueError, match=match):
    encodings.make("t5", **fields)
  with pytest.raises(ValueError, match=match):
    t5.bucket(jnp.arange(3), **fields)
