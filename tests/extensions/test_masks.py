"""Windows, attention sinks and LM-Infinite against a cache played token by token, and the authors' kept keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.attention import attend
from posx.attention.visibility import narrowed, visible
from posx.encodings.base import Dims
from posx.encodings.combine import Chain
from posx.errors import UserError

T = 24


def streaming(t, sinks, recent):
  """[t, t] distances within the cache, -1 where a key was dropped: what a cache of sinks + recent earlier tokens holds."""
  distance = np.full((t, t), -1)
  for i in range(t):
    kept = list(range(i))
    if len(kept) > sinks + recent:
      kept = kept[:sinks] + kept[len(kept) - recent :]
    kept.append(i)
    distance[i, kept] = len(kept) - 1 - np.arange(len(kept))
  return distance


def lm_infinite(t, sinks, window, ceiling, far):
  distance = np.full((t, t), -1)
  for i in range(t):
    for j in range(i + 1):
      if i - j < window:
        distance[i, j] = i - j
      elif j < sinks:
        distance[i, j] = ceiling if far == "constant" else min(i - j, ceiling)
  return distance


CASES = [
  ("sinks", {"sinks": 3, "window": 5}, streaming(T, 3, 5)),
  ("sinks", {"sinks": 1, "window": 4, "query": "inside"}, streaming(T, 1, 3)),
  ("lm_infinite", {"sinks": 2, "window": 6, "ceiling": 9}, lm_infinite(T, 2, 6, 9, "constant")),
  ("lm_infinite", {"sinks": 2, "window": 6, "ceiling": 9, "far": "minimum"}, lm_infinite(T, 2, 6, 9, "minimum")),
]
IDS = ["sinks", "sinks-inside", "lm_infinite", "lm_infinite-minimum"]


def seen(encoding, dims, at):
  return np.asarray(visible(at, at, window=narrowed(None, encoding.visibility(dims))))


def made(name, fields, inner="rope"):
  return extensions.apply(extensions.make(name, **fields), encodings.make(inner))


@pytest.mark.parametrize(("name", "fields", "distance"), CASES, ids=IDS)
def test_what_is_seen_and_at_which_distance(bind, dims, name, fields, distance):
  rng, at = np.random.default_rng(0), np.arange(T)
  q, k = rng.normal(size=(2, 4, T, 8)).astype(np.float32)
  for inner in ("rope", "t5"):
    trained = bind(encodings.make(inner))
    extended = bind(made(name, fields, inner), params=trained.params)
    mask = seen(extended.encoding, dims, at)
    np.testing.assert_array_equal(mask, distance >= 0)
    found = np.asarray(extended.scores(q, k, at, at))
    for h in range(4):
      if inner == "rope":
        w = 1e4 ** (-np.arange(4) / 4)
        a, b = q[h, :, :4] + 1j * q[h, :, 4:], k[h, :, :4] + 1j * k[h, :, 4:]
        expected = np.einsum("tn,un,tun->tu", a, b.conj(), np.exp(1j * distance[..., None] * w)).real / np.sqrt(8)
      else:
        expected = q[h] @ k[h].T / np.sqrt(8) + np.asarray(trained.encoding.bias(trained.head(h), jnp.asarray(distance)))
      np.testing.assert_allclose(found[h][mask], expected[mask], atol=5e-6)


def test_streaming_oracle(oracle):
  """The keys that the authors' cache keeps after each token, and their ranks in it."""
  for case in oracle("F_streaming_llm"):
    t, sinks, recent = (case.params[n] for n in ("length", "n_sink", "n_recent"))
    np.testing.assert_array_equal(streaming(t, sinks, recent), case.arrays["distance_ref"], err_msg=case.id)
    encoding = made("sinks", {"sinks": sinks, "window": recent}) if sinks else made("window", {"window": recent + 1})
    mask = seen(encoding, Dims(1, 8, 8, 0), np.arange(t))
    np.testing.assert_array_equal(mask, case.arrays["mask_ref"], err_msg=case.id)
    np.testing.assert_array_equal(mask, case.arrays["kept_author"].astype(bool), err_msg=case.id)


@pytest.mark.parametrize("name", ["sinks", "lm_infinite", "window"])
def test_up_to_the_trained_length_nothing_changes(bind, dims, name):
  q, at = np.random.default_rng(1).normal(size=(4, 64, 8)).astype(np.float32), np.arange(64)
  extended = made(name, {})
  assert seen(extended, dims, at)[np.tri(64, dtype=bool)].all()
  assert not seen(extended, dims, np.arange(80))[np.tri(80, dtype=bool)].all()
  past = np.tri(64, dtype=bool)
  np.testing.assert_allclose(
    bind(extended).scores(q, q, at, at)[:, past], bind(encodings.make("rope")).scores(q, q, at, at)[:, past], atol=5e-6
  )


def test_paper_and_code_of_lm_infinite_agree_where_the_window_is_the_ceiling():
  np.testing.assert_array_equal(lm_infinite(T, 3, 7, 7, "constant"), lm_infinite(T, 3, 7, 7, "minimum"))
  assert (lm_infinite(T, 3, 7, 12, "constant") != lm_infinite(T, 3, 7, 12, "minimum")).any()


@pytest.mark.parametrize("inner", ["nope", "cope", "learned"])
def test_a_window_on_any_encoding_is_the_callers_window(dims, inner):
  trained = encodings.make(inner)
  encoding = extensions.apply(extensions.make("window", window=5), trained).split()[1]
  q = np.random.default_rng(2).normal(size=(1, 12, 4, 8)).astype(np.float32)
  at = np.arange(12)
  params = trained.split()[1].init(jax.random.key(0), dims)
  shared = {"q_positions": at, "k_positions": at, "params": params, "dims": dims, "plan": "dense"}
  expected = attend(q, q, q, encoding=trained.split()[1], window=5, **shared)
  np.testing.assert_array_equal(attend(q, q, q, encoding=encoding, **shared), expected)
  np.testing.assert_array_equal(attend(q, q, q, encoding=encoding, window=99, **shared), expected)


def test_first_tokens_stay_visible_beside_the_callers_window(dims):
  encoding = made("sinks", {"sinks": 2, "window": 9}, "nope")
  v = np.eye(12, 8, dtype=np.float32)[None, :, None, :].repeat(4, 2)
  q, at = np.zeros((1, 12, 4, 8), np.float32), np.arange(12)
  out = attend(q, q, v, q_positions=at, k_positions=at, encoding=encoding, params={}, dims=dims, window=3, plan="dense")
  np.testing.assert_allclose(out[0, 7, 0], [0.2, 0.2, 0, 0, 0, 0.2, 0.2, 0.2], atol=1e-6)


def test_what_is_seen_survives_other_extensions_chains_and_programs(dims):
  inner = extensions.apply(extensions.make("yarn", factor=4.0), encodings.make("rope"))
  yarn = extensions.apply(extensions.make("sinks", sinks=2, window=5), inner)
  assert yarn.visibility(dims) == yarn.program().visibility(dims) == (6, 2)
  assert extensions.apply(extensions.make("log_n"), yarn).visibility(dims) == (6, 2)
  chain = Chain((encodings.make("learned"), encodings.make("rope")))
  windowed = extensions.apply(extensions.make("window", window=7), chain)
  assert windowed.split()[1].visibility(dims) == windowed.visibility(dims) == (7, 0)
  parts = extensions.apply(extensions.make("lm_infinite", sinks=3, window=8), chain)
  assert parts.visibility(dims) == parts.split()[1].visibility(dims) == (8, 3)


@pytest.mark.parametrize(
  ("name", "fields", "match"),
  [
    ("window", {"window": -1}, "window >= 0"),
    ("sinks", {"sinks": 0}, "at least 1 first token"),
    ("sinks", {"window": -1}, "window >= 0"),
    ("sinks", {"query": "within"}, "beside, inside"),
    ("lm_infinite", {"sinks": 0}, "at least 1 first token"),
    ("lm_infinite", {"window": 9, "ceiling": 8}, "window <= ceiling"),
    ("lm_infinite", {"far": "never"}, "constant, minimum"),
  ],
)
def test_refused_settings(name, fields, match):
  with pytest.raises(UserError, match=match):
    extensions.make(name, **fields)


def test_refused_pairs():
  once = made("window", {"window": 4})
  with pytest.raises(UserError, match="hidden by an extension already, got Windowed"):
    extensions.apply(extensions.make("window"), once)
  with pytest.raises(UserError, match="hidden by an extension already, got Sharpened"):
    extensions.apply(extensions.make("window"), extensions.apply(extensions.make("log_n"), made("sinks", {})))
  for name in ("learned", "sinusoidal", "fire", "cope", "xpos"):
    with pytest.raises(UserError, match="sinks extends NoPE, and relative encodings"):
      made("sinks", {}, name)
  with pytest.raises(UserError, match="give window, in tokens, or a trained length"):
    made("window", {}).visibility(Dims(1, 8, 8, 0))
