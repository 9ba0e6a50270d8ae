"""SelfExtend, ReRoPE, leaky ReRoPE and dual chunk attention against explicit distances in float64 and the authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings.base import Dims
from posx.errors import UserError


def self_extend(i, j, window, group):
  return i - j if i - j < window else i // group + window - window // group - j // group


def rerope(i, j, window):
  return min(i - j, window)


def leaky_rerope(i, j, window, factor):
  return i - j if i - j < window else window + (i - j - window) / factor


def dca(i, j, chunk, window, cap="code"):
  s = chunk - window
  if i // s == j // s:
    return i % s - j % s
  before, older = (chunk - 1, chunk - 1) if cap == "paper" else (chunk, min(2 * s - 1, chunk))
  return (min(s + i % s, before) if i // s - j // s == 1 else older) - j % s


RULES = {"self_extend": self_extend, "rerope": rerope, "leaky_rerope": leaky_rerope, "dca": dca}
CASES = {
  "self_extend": {"window": 8, "group": 4},
  "rerope": {"window": 8},
  "leaky_rerope": {"window": 8, "factor": 4.0},
  "dca": {"chunk": 13, "window": 4},
}


def rope_scores(q, k, distance):
  """q R(distance) k / sqrt(c) with an explicit distance per pair, half layout; one head."""
  n = q.shape[-1] // 2
  w = 1e4 ** (-np.arange(n) / n)
  a, b = q[:, :n] + 1j * q[:, n:], k[:, :n] + 1j * k[:, n:]
  return np.einsum("tn,un,tun->tu", a, np.conj(b), np.exp(1j * distance[..., None] * w)).real / np.sqrt(2 * n)


def distances(name, at, **fields):
  """[t, t] of what the rule makes of i and j, for past keys; 0 elsewhere."""
  rule = RULES[name]
  return np.array([[rule(int(i), int(j), **fields) if i >= j else 0 for j in at] for i in at], np.float64)


def test_self_extend_rows_by_hand():
  at = np.arange(10)
  np.testing.assert_array_equal(distances("self_extend", at, window=4, group=2)[9], [6, 6, 5, 5, 4, 4, 3, 2, 1, 0])


def test_oracle(oracle, bind):
  for case in oracle("F_self_extend"):
    a, window, group = case.arrays, case.params["window"], case.params["group"]
    t = case.params["length"]
    np.testing.assert_array_equal(distances("self_extend", np.arange(t), window=window, group=group), np.tril(a["distance_ref"]))
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
    expected = rope_scores(q[h], k[h], distances(name, at, **CASES[name]))
    np.testing.assert_allclose(scores[h][past], expected[past], atol=5e-6)


def test_dca_oracle(oracle, bind):
  """The authors' outputs, a token at a time and by whole prompts, and both sets of caps."""
  for case in oracle("F_dca"):
    a, t = case.arrays, case.params["length"]
    fields = {"chunk": case.params["chunk_size"], "window": case.params["local_window"]}
    past, at = np.tri(t, dtype=bool), np.arange(t)
    for cap, name in (("code", "distance_ref"), ("paper", "distance_paper")):
      np.testing.assert_array_equal(distances("dca", at, cap=cap, **fields)[past], a[name][past])
      made = bind(extensions.apply(extensions.make("dca", cap=cap, **fields), encodings.make("rope")), Dims(1, 16, 16, 16))
      scores = made.scores(a["q"], a["k"], at, at)
      np.testing.assert_allclose(scores[0][past], rope_scores(a["q"][0], a["k"][0], a[name])[past], atol=5e-6)
      if cap == "code":
        out = made.output(a["q"], a["k"], a["v"], at, at, True)
        np.testing.assert_allclose(out, a["output_author_decode"], atol=3e-5, err_msg=case.id)
        if "output_author_prefill" in a:
          np.testing.assert_allclose(out, a["output_author_prefill"], atol=0.03, err_msg=case.id)


def test_no_distance_of_dca_exceeds_its_cap():
  for cap, most in (("code", 13), ("paper", 12)):
    assert distances("dca", np.arange(60), cap=cap, **CASES["dca"]).max() == most


def test_leaky_rerope_by_itself_stays_within_the_trained_length(bind, dims):
  made = extensions.apply(extensions.make("leaky_rerope", window=16), encodings.make("rope"))
  assert made.length_dependent
  factor = made.constants(dims, 256)["fold"]["factor"]
  assert factor == 5.0 and leaky_rerope(256, 0, 16, float(factor)) == 64
  assert made.constants(dims, 64)["fold"]["factor"] == made.constants(dims, 10)["fold"]["factor"] == 1.0


@pytest.mark.parametrize(("factor", "other"), [(1e9, ("rerope", {"window": 8})), (None, None)])
def test_limits_of_leaky_rerope(bind, factor, other):
  """A large factor is ReRoPE; up to the trained length nothing changes."""
  q, at = np.random.default_rng(3).normal(size=(4, 20, 8)).astype(np.float32), np.arange(20)
  fields = {"window": 8} if factor is None else {"window": 8, "factor": factor}
  expected = encodings.make("rope")
  if other is not None:
    expected = extensions.apply(extensions.make(other[0], **other[1]), expected)
  made = bind(extensions.apply(extensions.make("leaky_rerope", **fields), encodings.make("rope")), length=20)
  past = np.tri(20, dtype=bool)
  np.testing.assert_allclose(made.scores(q, q, at, at)[:, past], bind(expected).scores(q, q, at, at)[:, past], atol=5e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("inner", ["rope", "pope", "alibi", "t5", "kerple", "sandwich", "transformer_xl"])
def test_within_the_window_nothing_changes(bind, name, inner):
  q = np.random.default_rng(1).normal(size=(4, 8, 8)).astype(np.float32)
  at = np.arange(8)  # within the window, and within one chunk
  trained = bind(encodings.make(inner))
  made = bind(extensions.apply(extensions.make(name, **CASES[name]), trained.encoding), params=trained.params)
  past = np.tri(8, dtype=bool)
  np.testing.assert_allclose(made.scores(q, q, at, at)[:, past], trained.scores(q, q, at, at)[:, past], atol=5e-6)


@pytest.mark.parametrize("name", CASES)
def test_biases_read_the_folded_distance(bind, name):
  trained = bind(encodings.make("t5"))
  made = bind(extensions.apply(extensions.make(name, **CASES[name]), trained.encoding), params=trained.params)
  at, zero = np.arange(40), np.zeros((4, 40, 8), np.float32)
  folded = distances(name, at, **CASES[name])
  folded = folded.astype(np.int32) if (folded == folded.round()).all() else folded
  for h in range(4):
    expected = trained.encoding.bias(trained.head(h), jnp.asarray(folded if folded.dtype.kind == "i" else folded.astype(np.float32)))
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
  assert made.constants(dims, 64)["fold"]["window"] == 30
  assert extensions.apply(extensions.make("rerope"), encodings.make("rope")).constants(dims, 64)["fold"]["window"] == 32
  dca = extensions.apply(extensions.make("dca"), encodings.make("rope")).constants(dims, 64)["fold"]
  assert dca["step"] == 64 * 3 // 4 - 64 // 16
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
    ("leaky_rerope", {"window": -1}, "window >= 0"),
    ("leaky_rerope", {"factor": 1.0}, "changes nothing"),
    ("leaky_rerope", {"factor": 0.5}, "above 1"),
    ("dca", {"chunk": 8, "window": 8}, "window < chunk"),
    ("dca", {"cap": "book"}, "code, paper"),
  ],
)
def test_refusals(name, fields, match):
  with pytest.raises(UserError, match=match):
    extensions.make(name, **fields)


def test_settings_that_only_the_trained_length_refuses():
  rope = encodings.make("rope")
  with pytest.raises(UserError, match="leaves no trained distances"):
    extensions.apply(extensions.make("leaky_rerope", window=64), rope).constants(Dims(1, 8, 8, 64), 128)
  with pytest.raises(UserError, match="or a trained length"):
    extensions.apply(extensions.make("dca"), rope).constants(Dims(1, 8, 8, 0), 128)


@pytest.mark.parametrize("other", ["nope", "learned", "sinusoidal", "shaw", "fire", "cope", "xpos"])
def test_encodings_it_has_no_meaning_for(other):
  with pytest.raises(UserError, match="self_extend extends relative encodings"):
    extensions.apply(extensions.make("self_extend"), encodings.make(other))
