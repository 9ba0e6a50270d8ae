"""Frequency extensions against the definitions in float64, other libraries, and values worked out by hand."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings.base import Dims
from posx.encodings.rope import RoPE
from posx.errors import UserError
from posx.extensions import by_parts


def base_frequencies(r, base=1e4):
  return np.array([base ** (-2 * i / r) for i in range(r // 2)])


def settings(params, *names):
  """The fields of posx for a peer's parameters."""
  renamed = {"original_max_position_embeddings": "original_length", "attention_factor": "gain"}
  return {renamed.get(n, n): float(params[n]) if n.startswith("beta") else params[n] for n in names if n in params}


# Against other libraries.


def compare(case, extension, tolerance):
  dim, base = case.kwargs["dim"], case.kwargs["theta"]
  inv_freq, gain = extension.frequencies64(dim, base, 0, 0)
  np.testing.assert_allclose(inv_freq, case.arrays["inv_freq_ref"], rtol=1e-12, err_msg=case.id)
  np.testing.assert_allclose(inv_freq, case.arrays["inv_freq_peer"], rtol=tolerance, err_msg=case.id)
  for name in ("attention_scaling_ref", "attention_scaling_peer"):
    np.testing.assert_allclose(gain, case.arrays[name], rtol=1e-12, err_msg=f"{case.id} {name}")
  single, public_gain = extension.frequencies(dim, base, 0)
  assert single.dtype == np.float32 and single.shape == (dim // 2,) and public_gain == gain
  np.testing.assert_allclose(single, inv_freq, rtol=1e-7)


def test_oracle_pi(oracle):
  for case in oracle("A_rope_linear"):
    factor = case.params["factor"]
    if factor == 1:
      with pytest.raises(UserError, match="changes nothing"):
        extensions.make("pi", factor=factor)
    elif case.kwargs["dim"] % 2:
      with pytest.raises(UserError, match=f"even and at least 2, got {case.kwargs['dim']}"):
        extensions.make("pi", factor=factor).frequencies64(case.kwargs["dim"], 1e4, 0, 0)
    else:
      compare(case, extensions.make("pi", factor=factor), 2e-6)


def test_oracle_llama3(oracle):
  for case in oracle("A_rope_llama3"):
    names = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    compare(case, extensions.make("llama3", **settings(case.params, *names)), 4e-6)


def test_oracle_yarn(oracle):
  names = (
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
  )
  for case in oracle("A_rope_yarn"):
    made = extensions.make("yarn", **settings(case.params, *names))
    compare(case, made, 2e-6)
    paper, _ = dataclasses.replace(made, ramp="rotations").frequencies64(case.kwargs["dim"], case.kwargs["theta"], 0, 0)
    np.testing.assert_allclose(paper, case.arrays["inv_freq_paper"], rtol=1e-12, err_msg=case.id)


# By hand.


@pytest.mark.parametrize(("length", "base"), [(1, 1e4), (2048, 1e4), (2049, 10010.0808), (4096, 31082.2367)])
def test_dynamic_ntk_base(length, base):
  made = extensions.make("dynamic_ntk", factor=2.0, original_length=2048)
  inv_freq, gain = made.frequencies(64, 1e4, length)
  np.testing.assert_allclose(inv_freq, base_frequencies(64, base), rtol=1e-6)
  assert gain == 1.0


@pytest.mark.parametrize("name", ["ntk", "dynamic_ntk"])
def test_ntk_needs_two_frequencies(name):
  with pytest.raises(UserError, match="at least 4"):
    extensions.make(name, factor=2.0, original_length=8).frequencies(2, 1e4, 16)


def test_ntk_keeps_the_fastest_and_divides_the_slowest():
  inv_freq, _ = extensions.make("ntk", factor=4.0).frequencies64(16, 1e4, 0, 0)
  plain = base_frequencies(16)
  np.testing.assert_allclose([inv_freq[0], inv_freq[-1]], [plain[0], plain[-1] / 4], rtol=1e-12)


def test_dynamic_ntk_score_with_fresh_keys(bind):
  extended = extensions.apply(extensions.make("dynamic_ntk", factor=2.0), RoPE())
  made = bind(extended, Dims(1, 8, 8, 8), length=16)
  score = made.scores(np.ones((1, 1, 8), np.float32), np.ones((1, 1, 8), np.float32), [15], [3])[0, 0, 0] * math.sqrt(8)
  np.testing.assert_allclose(score, 7.031112, rtol=1e-5)


def test_yarn_range():
  np.testing.assert_allclose(by_parts.yarn_range(64, 1e4, 4096, truncate=False), (10.47224, 22.51344), rtol=1e-6)
  assert by_parts.yarn_range(64, 1e4, 4096) == (10, 23)


def test_yarn_by_hand():
  inv_freq, gain = extensions.make("yarn", factor=4.0, original_length=256).frequencies(16, 1e4, 1024)
  np.testing.assert_allclose(inv_freq, [1, 0.25693506, 0.0625, 0.01383496, 0.0025, 0.00079057, 0.00025, 0.00007906], atol=5e-9, rtol=1e-4)
  np.testing.assert_allclose(gain, 1.13862944, rtol=1e-8)


def test_yarn_with_an_empty_range_is_finite():
  """low == high: every pair is slow."""
  inv_freq, _ = extensions.make("yarn", factor=4.0, original_length=4).frequencies(16, 1e4, 16)
  np.testing.assert_allclose(inv_freq[1:], base_frequencies(16)[1:] / 4, rtol=1e-6)
  assert np.isfinite(inv_freq).all()


def test_yarn_gain_multiplies_queries_and_keys(bind):
  extended = extensions.apply(extensions.make("yarn", factor=4.0, original_length=256), RoPE())
  made = bind(extended, Dims(1, 16, 16, 256), length=1024)
  ones = np.ones((1, 1, 16), np.float32)
  np.testing.assert_allclose(made.scores(ones, ones, [700], [700])[0, 0, 0] * 4, 20.7436318, rtol=1e-6)


def test_yarn_gain_leaves_channels_without_rotation_alone(bind):
  extended = extensions.apply(extensions.make("yarn", factor=4.0), RoPE(rotary_dim=4))
  made = bind(extended, Dims(1, 8, 8, 64), length=256)
  turned, _ = made.encoding.on_query_key(made.head(0), jnp.ones((1, 8)), jnp.ones((1, 8)), jnp.array([3]), jnp.array([3]))
  np.testing.assert_array_equal(turned[0, 4:], 1)


def test_explicit_gain_replaces_the_computed_one():
  assert extensions.make("yarn", factor=4.0, original_length=256, gain=0.9).frequencies(16, 1e4, 1024)[1] == 0.9


def test_deepseeks_gains(bind):
  """Gain m(s, a) / m(s, b) where both are given; all scores times m(s, b)^2, rotated or not."""
  m = lambda coefficient: 0.1 * coefficient * math.log(40) + 1
  made = extensions.make("yarn", factor=40.0, original_length=64, mscale=0.707, mscale_all_dim=0.5)
  np.testing.assert_allclose(made.frequencies(8, 1e4, 100)[1], m(0.707) / m(0.5), rtol=1e-12)
  run = bind(extensions.apply(made, RoPE(rotary_dim=4)), Dims(1, 8, 8, 64))
  e = np.eye(8, dtype=np.float32)[None]
  scores = np.asarray(run.scores(e, e, np.full(8, 7), np.full(8, 7)))[0] * math.sqrt(8)
  np.testing.assert_allclose(np.diag(scores), [m(0.707) ** 2] * 4 + [m(0.5) ** 2] * 4, rtol=1e-6)
  only_one = extensions.make("yarn", factor=40.0, original_length=64, mscale=0.707)
  np.testing.assert_allclose(only_one.frequencies(8, 1e4, 100)[1], m(1), rtol=1e-12)


def test_llama3_ratios_by_hand():
  inv_freq, gain = extensions.make("llama3", factor=8.0, original_length=8192).frequencies64(128, 5e5, 0, 0)
  ratio = inv_freq / base_frequencies(128, 5e5)
  np.testing.assert_allclose(ratio[[28, 29, 34, 35, 63]], [1, 0.82816841, 0.19021074, 0.125, 0.125], rtol=1e-7)
  assert gain == 1.0


def test_llama3_is_the_ramp_of_the_yarn_paper_without_gain():
  ours = extensions.make("llama3", factor=8.0, original_length=512).frequencies64(64, 1e4, 0, 0)
  parts = extensions.make("ntk_by_parts", factor=8.0, original_length=512, beta_fast=4.0, beta_slow=1.0, ramp="rotations").frequencies64(
    64, 1e4, 0, 0
  )
  np.testing.assert_allclose(ours[0], parts[0], rtol=1e-12)


def test_ntk_by_parts_is_yarn_without_gain():
  fields = {"factor": 8.0, "original_length": 512}
  parts, yarn = (extensions.make(n, **fields).frequencies64(64, 1e4, 0, 0) for n in ("ntk_by_parts", "yarn"))
  np.testing.assert_array_equal(parts[0], yarn[0])
  assert parts[1] == 1.0 and yarn[1] > 1.2


def test_longrope_lists_and_gain():
  fields = {"factor": 32.0, "original_length": 4096, "short_factors": (1.0, 2.0), "long_factors": (3.0, 5.0)}
  made = extensions.make("longrope", **fields)
  plain = base_frequencies(4)
  for length, divisors in ((4095, (1, 2)), (4096, (1, 2)), (4097, (3, 5))):
    inv_freq, gain = made.frequencies64(4, 1e4, length, 0)
    np.testing.assert_allclose(inv_freq, plain / divisors, rtol=1e-12)
    np.testing.assert_allclose(gain, 1.1902381, rtol=1e-7)
  assert made.length_dependent
  np.testing.assert_allclose(
    extensions.make("longrope", factor=2.0, original_length=8, long_factors=(2.0, 2.0)).frequencies64(4, 1e4, 8, 0)[0], plain
  )
  assert extensions.make("longrope", **(fields | {"gain": 1.5})).frequencies(4, 1e4, 9)[1] == 1.5


@pytest.mark.parametrize(("length", "which"), [(8, "short_factors"), (9, "long_factors")])
def test_longrope_checks_its_lists(length, which):
  made = extensions.make("longrope", factor=2.0, original_length=8, short_factors=(1.0,), long_factors=(1.0, 2.0, 3.0))
  with pytest.raises(UserError, match=rf"{which} must have rotary_dim / 2 = 2 numbers"):
    made.frequencies(4, 1e4, length)


def test_dynamic_yarn_is_yarn_by_the_length_in_play():
  dynamic = extensions.make("dynamic_yarn", original_length=256)
  for length in (512, 1000):
    fixed = extensions.make("yarn", original_length=256, factor=length / 256)
    np.testing.assert_array_equal(dynamic.frequencies(16, 1e4, length)[0], fixed.frequencies(16, 1e4, length)[0])
    assert dynamic.frequencies(16, 1e4, length)[1] == fixed.frequencies(16, 1e4, length)[1]
  np.testing.assert_allclose(dynamic.frequencies(16, 1e4, 100)[0], base_frequencies(16), rtol=1e-7)
  assert dynamic.length_dependent
  with pytest.raises(UserError, match="unknown field of dynamic_yarn 'factor'"):
    extensions.make("dynamic_yarn", factor=4.0)


def test_abf_takes_the_new_base():
  np.testing.assert_allclose(extensions.make("abf", base=1e6).frequencies64(16, 1e4, 0, 0)[0], base_frequencies(16, 1e6), rtol=1e-12)
  with pytest.raises(UserError, match="changes nothing"):
    extensions.apply(extensions.make("abf", base=1e4), RoPE(base=1e4))


def test_proportional_keeps_the_exponents_of_the_full_width():
  made = extensions.make("proportional", partial=0.3, factor=2.0)
  expected = base_frequencies(32) / 2
  expected[4:] = 0
  np.testing.assert_allclose(made.frequencies64(32, 1e4, 0, 0)[0], expected, rtol=1e-12)


def test_proportional_must_turn_fewer_pairs_than_the_encoding():
  with pytest.raises(UserError, match=r"changes nothing: the encoding turns 0\.5"):
    extensions.apply(extensions.make("proportional", partial=0.5), RoPE(partial=0.5))
  made = extensions.apply(extensions.make("proportional", partial=0.25), RoPE(partial=0.5))
  assert (made.frequencies(Dims(1, 16, 16, 64), 64)[0] > 0).sum() == 2


def test_interpolation_by_hand(bind):
  extended = extensions.apply(extensions.make("pi", factor=4.0), RoPE())
  made = bind(extended, Dims(1, 4, 4, 8), length=32)
  turned, _ = made.encoding.on_query_key(made.head(0), jnp.array([[1.0, 2, 3, 4]]), jnp.ones((1, 4)), jnp.array([6]), jnp.array([0]))
  np.testing.assert_allclose(turned[0], [-2.92174776, 1.93977725, 1.20970659, 4.02954888], atol=1e-6)


def test_the_encodings_base_survives(bind):
  extended = extensions.apply(extensions.make("pi", factor=4.0), RoPE(base=5e5))
  made = bind(extended, Dims(1, 4, 4, 8))
  assert float(np.float32(6) * made.constants["inv_freq"][1]) == pytest.approx(0.00212132, rel=1e-5)


def test_explicit_factor_wins_over_lengths():
  inv_freq, _ = extensions.make("yarn", factor=4.0, original_length=32768).frequencies64(128, 1e6, 40960, 0)
  np.testing.assert_allclose(inv_freq[-1], base_frequencies(128, 1e6)[-1] / 4, rtol=1e-12)


# The rules that all share.

FACTORS = ["pi", "ntk", "ntk_by_parts", "yarn", "llama3"]
SAMPLES = {
  "pi": {"factor": 4.0},
  "ntk": {"factor": 4.0},
  "dynamic_ntk": {"factor": 2.0},
  "ntk_by_parts": {"factor": 4.0},
  "yarn": {"factor": 4.0},
  "dynamic_yarn": {},
  "longrope": {"factor": 4.0, "long_factors": (1.0, 2.0, 3.0, 4.0)},
  "llama3": {"factor": 4.0},
  "abf": {"base": 1e6},
  "proportional": {"partial": 0.5},
}


def test_every_frequency_extension_is_sampled():
  frequency = {n for n, c in extensions.CATALOGUE.items() if hasattr(c, "frequencies64")}
  assert frequency == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
class TestExtension:
  def test_is_a_value(self, name):
    a, b = (extensions.make(name, **SAMPLES[name]) for _ in range(2))
    assert a == b and hash(a) == hash(b) and repr(a) == repr(b) and a.name == name

  def test_same_parameters_other_angles_one_program(self, name, dims):
    trained = encodings.make("rope")
    extended = extensions.apply(extensions.make(name, **SAMPLES[name]), trained)
    assert extended.init(jax.random.key(0), dims) == trained.init(jax.random.key(0), dims)
    assert extended != trained and extended.program() == trained.program()
    before, after = trained.constants(dims, 512), extended.constants(dims, 512)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(lambda x: (x.shape, x.dtype), after)
    assert not np.array_equal(before["inv_freq"], after["inv_freq"]) or before["gain"] != after["gain"]
    assert np.isfinite(after["inv_freq"]).all() and (after["inv_freq"] <= before["inv_freq"]).all()

  def test_length_dependence_is_as_claimed(self, name, dims):
    extended = extensions.apply(extensions.make(name, **SAMPLES[name]), encodings.make("rope"))
    short, long, again = (extended.constants(dims, n)["inv_freq"] for n in (64, 512, 64))
    np.testing.assert_array_equal(short, again)
    assert np.array_equal(short, long) != extended.length_dependent

  def test_other_encodings_are_refused(self, name):
    made = extensions.make(name, **SAMPLES[name])
    for other in ("nope", "alibi", "t5", "learned"):
      if name == "pi" and other != "nope":
        continue
      with pytest.raises(UserError, match=rf"{name} extends .*got "):
        extensions.apply(made, encodings.make(other))

  def test_twice_is_refused(self, name):
    once = extensions.apply(extensions.make(name, **SAMPLES[name]), encodings.make("rope"))
    with pytest.raises(UserError, match=f"already extended by {name}"):
      extensions.apply(extensions.make("ntk", factor=2.0), once)

  def test_exact_far_out(self, name, bind):
    extended = extensions.apply(extensions.make(name, **SAMPLES[name]), encodings.make("rope"))
    made = bind(extended, length=131072)
    inv_freq, gain = extended.frequencies(made.dims, 131072)
    q = np.random.default_rng(0).normal(size=(1, 8))
    turned, _ = made.encoding.on_query_key(
      made.head(0), jnp.asarray(q, jnp.float32), jnp.asarray(q, jnp.float32), jnp.array([131071]), jnp.array([0])
    )
    z = (q[0, :4] + 1j * q[0, 4:]) * np.exp(1j * 131071 * inv_freq) * gain
    np.testing.assert_allclose(turned[0], np.concatenate([z.real, z.imag]), atol=3e-6)


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize(("factor", "match"), [(1.0, "changes nothing"), (0.5, "above 1"), (-4.0, "above 1")])
def test_factors_that_do_not_extend(name, factor, match):
  with pytest.raises(UserError, match=match):
    extensions.make(name, factor=factor)
  with pytest.raises(UserError, match=match):
    extensions.CATALOGUE[name](factor=factor)


@pytest.mark.parametrize("name", FACTORS)
def test_factor_0_is_length_over_trained_length(name):
  automatic, fixed = extensions.make(name, original_length=64), extensions.make(name, original_length=64, factor=8.0)
  np.testing.assert_array_equal(automatic.frequencies(16, 1e4, 512)[0], fixed.frequencies(16, 1e4, 9)[0])
  np.testing.assert_allclose(automatic.frequencies(16, 1e4, 64)[0], base_frequencies(16), rtol=1e-7)
  assert automatic.length_dependent and not fixed.length_dependent
  with pytest.raises(UserError, match=f"{name} needs the trained length: give original_length"):
    extensions.make(name).frequencies(16, 1e4, 512)


@pytest.mark.parametrize(
  ("name", "fields", "match"),
  [
    ("yarm", {}, "did you mean 'yarn'"),
    ("yarn", {"factr": 4.0}, "did you mean 'factor'"),
    ("yarn", {"factor": "4"}, "expects float, got the text"),
    ("yarn", {"factor": float("nan")}, "finite"),
    ("yarn", {"original_length": -1}, "trained length in tokens"),
    ("yarn", {"beta_fast": 1.0}, "0 < beta_slow < beta_fast"),
    ("yarn", {"ramp": "linear"}, "index, rotations"),
    ("yarn", {"gain": -1.0}, "gain >= 0"),
    ("yarn", {"mscale": -1.0}, "mscale >= 0"),
    ("dynamic_ntk", {"factor": 0.5}, "above 1"),
    ("llama3", {"low_freq_factor": 8.0}, "low_freq_factor <= high_freq_factor"),
    ("longrope", {}, "needs long_factors"),
    ("longrope", {"long_factors": (1.0, 0.0)}, "must be positive"),
    ("longrope", {"long_factors": (2.0,), "gain": -1.0}, "gain >= 0"),
    ("longrope", {"long_factors": ("1",)}, "long_factors expects numbers"),
    ("abf", {"base": 1.0}, "finite base above 1"),
    ("proportional", {"partial": 0.0}, "0 < partial <= 1"),
    ("proportional", {"partial": 1.0}, "changes nothing"),
    ("proportional", {"factor": 0.5}, "above 1"),
  ],
)
def test_refusals(name, fields, match):
  with pytest.raises(UserError, match=match):
    extensions.make(name, **fields)


def test_refusal_names_what_would_fit():
  with pytest.raises(UserError, match=r"yarn extends rotary encodings \(RoPE, PoPE\), got ALiBi; for that there is: pi"):
    extensions.apply(extensions.make("yarn", factor=4.0), encodings.make("alibi"))


def test_layers_with_their_own_base_and_scaling(dims):
  """Local and global layers: the constants of each can be stacked, only one is scaled."""
  local = encodings.make("rope", base=1e4)
  world = extensions.apply(extensions.make("pi", factor=8.0), encodings.make("rope", base=1e6))
  stacked = jax.tree.map(lambda *x: np.stack(x), local.constants(dims, 64), world.constants(dims, 64))
  np.testing.assert_allclose(stacked["inv_freq"][0], base_frequencies(8), rtol=1e-6)
  np.testing.assert_allclose(stacked["inv_freq"][1], base_frequencies(8, 1e6) / 8, rtol=1e-6)
  assert local.program() == world.program()
