"""DeBERTa's disentangled attention against equations written again in float64, and its buckets against logarithms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings import deberta
from posx.encodings.base import Dims
from posx.encodings.combine import Chain

FAR = np.array([0, 1, 5, 6, 7, 300, 511, 512, 513, 9000])


def delta(distance, k):
  """Equation 3, case by case."""
  return np.where(distance <= -k, 0, np.where(distance >= k, 2 * k - 1, distance + k))


def logarithmic(distance, side, most):
  """Buckets of DeBERTa-v2 by logarithms in float64."""
  mid, away = side // 2, np.abs(distance).astype(np.float64)
  # ceil of a number that is whole but for rounding: of distance `most - 1` alone, which has the last step.
  steps = np.ceil(np.round(np.log(np.maximum(away, mid) / mid) / np.log((most - 1) / mid) * (mid - 1), 9))
  return (np.sign(distance) * np.where(away <= mid, away, mid + steps)).astype(int)


def definition(q, k, q_pos, k_pos, params, side, told, order="code"):
  """[h t u] in float64, term by term."""
  q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
  distance = q_pos[:, None] - k_pos[None, :]
  terms = [np.einsum("htc,huc->htu", q, k)]
  if "key_rows" in params:
    rows = np.asarray(params["key_rows"], np.float64)[:, delta(told(distance), side)]
    terms.append(np.einsum("htc,htuc->htu", q, rows))
  if "query_rows" in params:
    rows = np.asarray(params["query_rows"], np.float64)[:, delta(told(distance if order == "code" else -distance), side)]
    terms.append(np.einsum("huc,htuc->htu", k, rows))
  return sum(terms) / np.sqrt(len(terms) * q.shape[2])


def random(made, t, u, seed=0):
  rng = np.random.default_rng(seed)
  q, k = rng.normal(size=(4, t, 8)).astype(np.float32), rng.normal(size=(4, u, 8)).astype(np.float32)
  return q, k, {name: rng.normal(size=x.shape).astype(np.float32) for name, x in made.params.items()}


FIELDS = [{}, {"p2c": False}, {"c2p": False}, {"order": "paper"}, {"clip": 6}, {"clip": 6, "order": "paper", "c2p": False}]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_definition(bind, fields):
  made = bind(encodings.make("deberta", **fields))
  q, k, params = random(made, len(FAR), 7)
  k_pos = np.array([3, 0, 8, 512, 511, 1025, 9513])
  exact = definition(q, k, FAR, k_pos, params, fields.get("clip", 512), lambda d: d, fields.get("order", "code"))
  np.testing.assert_allclose(made.scores(q, k, FAR, k_pos, params), exact, atol=5e-6)


@pytest.mark.parametrize("buckets, clip", [(256, 512), (8, 32)])
def test_definition_with_buckets(bind, buckets, clip):
  made = bind(encodings.make("deberta", buckets=buckets, clip=clip))
  q, k, params = random(made, len(FAR), len(FAR))
  assert params["key_rows"].shape == (4, 2 * buckets, 8)
  exact = definition(q, k, FAR, FAR[::-1], params, buckets, lambda d: logarithmic(d, buckets, clip))
  np.testing.assert_allclose(made.scores(q, k, FAR, FAR[::-1], params), exact, atol=5e-6)


@pytest.mark.parametrize("buckets, clip", [(256, 512), (8, 32), (4, 4), (32, 18), (64, 1024)])
def test_every_bucket(buckets, clip):
  distance = np.arange(-5000, 5001)
  found = np.asarray(deberta.bucket(jnp.asarray(distance), buckets=buckets, clip=clip))
  np.testing.assert_array_equal(found, np.clip(logarithmic(distance, buckets, clip), -buckets, buckets))


def test_of_the_distances_k_minus_1_and_k_one_side_tells_apart():
  assert deberta.index(jnp.array([-7, -6, -5, 0, 5, 6, 7]), 6).tolist() == [0, 0, 1, 6, 11, 11, 11]


def test_fractional_distances_mix_rows(bind):
  made = bind(encodings.make("deberta", clip=4))
  q, k, params = random(made, 3, 3)

  def at(q_pos):
    return np.asarray(made.scores(q, k, np.asarray(q_pos), np.zeros(3, np.asarray(q_pos).dtype), params))

  share = np.array([0.25, 0.5, 0.0])[:, None]
  between = at(np.array([0.25, 1.5, 2.0], np.float32))
  np.testing.assert_allclose(between, (1 - share) * at([0, 1, 2]) + share * at([1, 2, 3]), atol=2e-6)


def test_squeezed_positions_of_whole_steps_are_the_trained_ones(bind):
  trained = encodings.make("deberta", buckets=8, clip=32)
  squeezed = extensions.apply(extensions.make("pi", factor=4.0), trained)
  made = bind(trained)
  q, k, params = random(made, 9, 9)
  at = np.arange(9)
  np.testing.assert_allclose(bind(squeezed).scores(q, k, 4 * at, 4 * at, params), made.scores(q, k, at, at, params), atol=2e-6)


def test_other_channels_of_a_chain_are_left_out(bind):
  dims = Dims(4, 8, 32, 64)
  chain, alone = Chain((encodings.make("transformer_xl"), encodings.make("deberta", clip=4))), encodings.make("deberta", clip=4)
  made = bind(chain, dims)
  q, k, _ = random(bind(alone), 5, 5)
  zero = jax.tree.map(jnp.zeros_like, chain.parts[0].init(jax.random.key(0), dims))
  params = {**made.params, "0": zero}
  exact = bind(alone, dims).scores(q, k, np.arange(5), np.arange(5), params["1"])
  np.testing.assert_allclose(made.scores(q, k, np.arange(5), np.arange(5), params), exact, atol=2e-6)


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"clip": 0}, "clip, which must be at least 1, got 0"),
    ({"buckets": 7}, "even number of at least 4, or 0 for none, got 7"),
    ({"buckets": 256, "clip": 129}, "must exceed the 128 distances"),
    ({"c2p": False, "p2c": False}, "keep one of them, or use nope"),
    ({"order": "both"}, "code, paper"),
    ({"std": -1.0}, "std >= 0"),
  ],
)
def test_refusals(fields, message):
  with pytest.raises(ValueError, match=message):
    encodings.make("deberta", **fields)
