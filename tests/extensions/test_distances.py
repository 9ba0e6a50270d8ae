"""SelfExtend and ReRoPE against explicit distances in float64 and the authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings.base import Dims
from posx.errors import UserError


def folded_distance(i, j, window, group=0):
  """SelfExtend's (group > 0) or ReRoPE's distance."""
  if i - j < window:
    return i - j
  return i // group + window - window // group - j // group if group else window


def rope_scores(q, k, distance):
  """q R(distance) k / sqrt(c) with an explicit distance per pair, half layout; one head."""
  n = q.shape[-1] // 2
  w = 1e4 ** (-np.arange(n) / n)
  a, b = q[:, :n] + 1j * q[:, n:], k[:, :n] + 1j * k[:, n:]
  return np.einsum("tn,un,tun->tu", a, np.conj(b), np.exp(1j * distance[..., None] * w)).real / np.sqrt(2 * n)


def distances(at, window, group=0):
  return np.array([[folded_distance(int(i), int(j), window, group) for j in at] for i in at])


CASES = {"self_extend": {"window": 8, "group": 4}, "rerope": {"window": 8}}


def test_self_extend_rows_by_hand():
  at = np.arange(10)
  np.testing.assert_array_equal(distances(at, 4, 2)[9], [6, 6, 5, 5, 4, 4, 3, 2, 1, 0])


def test_oracle(oracle, bind):
  for case in oracle("F_self_extend"):
    a, window, group = case.arrays, case.params["window"], case.params["group"]
    t = case.params["length"]
    np.testing.assert_array_equal(np.tril(distances(np.arange(t), window, group)), np.tril(a["distance_ref"]))
    extended = extensions.apply(extensions.make("self_extend", window=window, group=group), encodings.make("rope"))
    scores = bind(extended, Dims(2, 16, 32, 16)).scores(a["q"], a["k"], np.arange(t), np.arange(t))
    weights = jax.nn.softmax(jnp.where(np.tri(t, dtype=bool), scores, -jnp.inf))
    np.testing.assert_allclose(weights, a["weights_author"], atol=2e-5, err_msg=case.id)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("start", [0, 100_003])
def test_definition(bind, name, start):
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 4, 30, 8)).astype(np.float32)
  at = start + np.arange(30)
  made = bind(extensions.apply(extensions.make(name, **CASES[name]), encodings.make("rope")), length=200_000)
  scores, past = np.asarray(made.scores(q, k, at, at)), np.tri(30, dtype=bool)
  for h in range(4):
    expected = rope_scores(q[h], k[h], distances(at, **CASES[name]))
    np.testing.assert_allclose(scores[h][past], expected[past], atol=5e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("inner", ["rope", "pope", "alibi", "t5", "kerple", "sandwich", "transformer_xl"])
def test_within_the_window_nothing_changes(bind, name, inner):
  q = np.random.default_rng(1).normal(size=(4, 8, 8)).astype(np.float32)
  at = 3 + np.arange(8)
  trained = bind(encodings.make(inner))
  made = bind(extensions.apply(extensions.make(name, **CASES[name]), trained.encoding), params=trained.params)
  past = np.tri(8, dtype=bool)
  np.testing.assert_allclose(made.scores(q, q, at, at)[:, past], trained.scores(q, q, at, at)[:, past], atol=5e-6)


@pytest.mark.parametrize("name", CASES)
def test_biases_read_the_folded_distance(bind, name):
  trained = bind(encodings.make("t5"))
  made = bind(extensions.apply(extensions.make(name, **CASES[name]), trained.encoding), params=trained.params)
  at, zero = np.arange(40), np.zeros((4, 40, 8), np.float32)
  folded = distances(at, **CASES[name])
  for h in range(4):
    expected = trained.encoding.bias(trained.head(h), jnp.asarray(folded))
    np.testing.assert_allclose(np.tril(made.scores(zero, zero, at, at)[h]), np.tril(expected), atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_tile_is_a_tile_of_the_row(bind, name):
  made = bind(extensions.apply(extensions.make(name, **CASES[name]), encodings.make("rope")))
  q = np.random.default_rng(2).normal(size=(4, 20, 8)).astype(np.float32)
  at = np.arange(20)
  whole = made.scores(q, q, at, at)
  np.testing.assert_allclose(made.scores(q[:, 12:], q[:, 3:9], at[12:], at[3:9]), whole[:, 12:, 3:9], atol=1e-6)
  assert made.encoding.form == "elementwise" and not made.encoding.content_free


def test_window_0_is_half_the_trained_length(dims):
  made = extensions.apply(extensions.make("self_extend", group=5), encodings.make("rope"))
  assert made.constants(dims, 64)["window"] == 30
  with pytest.raises(UserError, match="give window"):
    made.constants(Dims(1, 8, 8, 0), 64)


def test_programs_are_shared():
  made = [extensions.apply(extensions.make("self_extend", window=8 * n, group=n), encodings.make("rope")).program() for n in (2, 4)]
  assert made[0] == made[1]


@pytest.mark.parametrize(
  ("name", "fields", "match"),
  [
    ("self_extend", {"window": 7, "group": 3}, "multiple of group=3"),
    ("self_extend", {"group": 1}, "changes nothing"),
    ("self_extend", {"window": -4, "group": 4}, "multiple of group"),
    ("rerope", {"window": -1}, "window >= 0"),
  ],
)
def test_refusals(name, fields, match):
  with pytest.raises(UserError, match=match):
    extensions.make(name, **fields)


@pytest.mark.parametrize("other", ["nope", "learned", "sinusoidal", "shaw", "fire", "cope", "xpos"])
def test_encodings_it_has_no_meaning_for(other):
  with pytest.raises(UserError, match="self_extend extends relative encodings"):
    extensions.apply(extensions.make("self_extend"), encodings.make(other))
