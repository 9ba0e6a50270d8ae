"""RoPE against the definition in float64, other libraries, and small values worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.encodings import rope
from posx.encodings.base import Dims

FAR = np.array([0, 1, 2, 511, 2047, 2048, 4095, 32767, 131071, 1048575])


def rotated(x, positions, inv_freq, layout, gain=1.0):
  """Su et al. 2021, equation 34, pair by pair; x [t, c]."""
  out, n = np.array(x, np.float64), len(inv_freq)
  for i in range(n):
    a, b = (i, i + n) if layout == "half" else (2 * i, 2 * i + 1)
    angle = np.asarray(positions, np.float64) * inv_freq[i]
    out[:, a] = gain * (x[:, a] * np.cos(angle) - x[:, b] * np.sin(angle))
    out[:, b] = gain * (x[:, b] * np.cos(angle) + x[:, a] * np.sin(angle))
  return out


def frequencies(r, base=10000.0):
  return np.array([base ** (-2 * i / r) for i in range(r // 2)])


# Frequencies and angles.


def test_oracle_frequencies(oracle):
  for case in oracle("A_rope_default"):
    dim, base = case.kwargs["dim"], case.kwargs["theta"]
    if dim % 2:
      with pytest.raises(ValueError, match=f"even and at least 2, got {dim}"):
        rope.inverse_frequencies(dim, base)
      continue
    np.testing.assert_allclose(rope.inverse_frequencies(dim, base), case.arrays["inv_freq_ref"], rtol=1e-12, err_msg=case.id)
    np.testing.assert_allclose(rope.inverse_frequencies(dim, base), case.arrays["inv_freq_peer"], rtol=2e-6, err_msg=case.id)
    assert case.arrays["attention_scaling_ref"] == case.arrays["attention_scaling_peer"] == 1.0


@pytest.mark.parametrize("base", [1e4, 5e5])
def test_angles_are_exact_at_every_integer_position(base):
  inv_freq = rope.inverse_frequencies(128, base)
  tables = rope.angle_tables(inv_freq)
  for positions in (FAR, -FAR):
    angles = positions[:, None] * inv_freq
    for cos, sin in (rope.cos_sin(jnp.asarray(positions), inv_freq, tables), jax.jit(rope.cos_sin)(positions, inv_freq, tables)):
      np.testing.assert_allclose(cos, np.cos(angles), atol=2.5e-7)
      np.testing.assert_allclose(sin, np.sin(angles), atol=2.5e-7)


def test_positions_beyond_the_tables_still_turn():
  inv_freq = rope.inverse_frequencies(8)
  cos, _ = rope.cos_sin(jnp.array([1 << 20, (1 << 20) + 1]), inv_freq, rope.angle_tables(inv_freq))
  np.testing.assert_allclose(cos, np.cos(np.array([[1 << 20], [(1 << 20) + 1]]) * inv_freq), atol=0.1)
  longer = rope.angle_tables(inv_freq, 3_000_000)
  cos, _ = rope.cos_sin(jnp.array([2_999_999]), inv_freq, longer)
  np.testing.assert_allclose(cos[0], np.cos(2_999_999 * inv_freq), atol=2.5e-7)


def test_a_bfloat16_model_keeps_its_angles(bind):
  made = bind(encodings.make("rope"), Dims(1, 128, 128, 64))
  q = jnp.ones((len(FAR), 128), jnp.bfloat16)
  turned, _ = made.encoding.on_query_key(made.head(0), q, q, jnp.asarray(FAR), jnp.asarray(FAR))
  assert turned.dtype == jnp.bfloat16
  expected = rotated(np.ones((len(FAR), 128)), FAR, frequencies(128), "half")
  assert np.abs(np.asarray(turned, np.float64) - expected).max() <= 8e-3
  cos, _ = rope.cos_sin(jnp.array([512, 131071]), made.constants["inv_freq"], made.constants)
  assert np.abs(cos - np.cos(np.array([[512], [131071]]) * frequencies(128))).max() <= 5e-3


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_positions_in_half_precision_are_refused(dtype):
  with pytest.raises(ValueError, match="int32 or float32"):
    rope.rotate(jnp.ones((600, 1, 4)), jnp.cumsum(jnp.ones(600, dtype)) - 1, rope.inverse_frequencies(4))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32])
def test_narrow_and_unsigned_positions(dtype):
  x = np.ones((3, 1, 8), np.float32)
  positions = np.array([0, 5, 127], dtype)
  np.testing.assert_allclose(
    rope.rotate(x, positions, rope.inverse_frequencies(8))[:, 0], rotated(x[:, 0], positions, frequencies(8), "half"), atol=5e-7
  )


def test_no_matrix_product_in_the_angles():
  inv_freq = rope.inverse_frequencies(64)
  tables = rope.angle_tables(inv_freq)
  for program in (jax.make_jaxpr(rope.cos_sin)(FAR, inv_freq, tables), jax.make_jaxpr(rope.cos_sin)(FAR.astype(np.float32), inv_freq)):
    assert "dot_general" not in str(program) and "cos" in str(program)


# Rotation.


def test_oracle_rotation(oracle):
  for case in oracle("B_rotate_half_default"):
    a = case.arrays
    x = np.moveaxis(a["q"], 1, 2)
    made = rope.rotate(x, a["positions"], a["inv_freq_ref"], gain=case.params["attention_scaling"], layout=case.params["layout"])
    made = np.moveaxis(np.asarray(made, np.float64), 2, 1)
    np.testing.assert_allclose(made, a["q_ref"], atol=2e-6, rtol=2e-6, err_msg=case.id)
    assert (np.abs(made - a["q_peer"]) <= a["atol"] + 2e-6 * np.abs(a["q_peer"])).all(), case.id


@pytest.mark.parametrize(
  ("layout", "expected"),
  [("half", [-1.41335252, 1.87911807, -2.82885748, 4.05819114]), ("interleaved", [-1.27223251, -1.83886499, 2.8786681, 4.08818664])],
)
def test_layouts_by_hand(layout, expected):
  x = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 4)
  np.testing.assert_allclose(rope.rotate(x, np.array([3]), rope.inverse_frequencies(4), layout=layout)[0, 0], expected, atol=1e-6)


def test_partial_rotary_pairs_within_the_rotated_channels(bind):
  x = np.arange(1, 9, dtype=np.float32).reshape(1, 8)
  expected = [3.16043501, 1.79758384, -0.10793772, 4.09495938, 5, 6, 7, 8]
  np.testing.assert_allclose(rope.rotate(x[:, None], np.array([5]), rope.inverse_frequencies(4))[0, 0], expected, atol=1e-6)
  made = bind(encodings.make("rope", rotary_dim=4))
  turned, _ = made.encoding.on_query_key(made.head(0), jnp.asarray(x), jnp.asarray(x), jnp.array([5]), jnp.array([0]))
  np.testing.assert_allclose(turned[0], expected, atol=1e-6)


@pytest.mark.parametrize(("t", "h"), [(5, 3), (3, 5), (4, 4)])
def test_tokens_turn_and_heads_do_not(t, h):
  out = np.asarray(rope.rotate(np.ones((1, t, h, 8), np.float32), np.arange(t)[None], rope.inverse_frequencies(8)))
  np.testing.assert_array_equal(out[0, 0], np.ones((h, 8)))
  np.testing.assert_array_equal(out, np.broadcast_to(out[:, :, :1], out.shape))
  assert (np.abs(np.diff(out[0, :, 0, 0])) > 0.1).all()


def test_layouts_are_one_permutation_apart():
  x = np.random.default_rng(0).normal(size=(6, 2, 16)).astype(np.float32)
  evens_odds = np.r_[0:16:2, 1:16:2]
  inv_freq = rope.inverse_frequencies(16)
  half = rope.rotate(x[..., evens_odds], FAR[:6], inv_freq, layout="half")
  np.testing.assert_allclose(half, rope.rotate(x, FAR[:6], inv_freq, layout="interleaved")[..., evens_odds], atol=1e-6)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_class_is_the_definition(bind, layout):
  rng = np.random.default_rng(1)
  q, k = rng.normal(size=(2, 4, len(FAR), 8)).astype(np.float32)
  made = bind(encodings.make("rope", base=777.0, layout=layout), length=1 << 20)
  expected = [
    np.einsum("tc,uc->tu", rotated(q[h], FAR, frequencies(8, 777.0), layout), rotated(k[h], FAR, frequencies(8, 777.0), layout))
    / np.sqrt(8)
    for h in range(4)
  ]
  np.testing.assert_allclose(made.scores(q, k, FAR, FAR), expected, atol=5e-6)


def test_fractional_positions():
  x = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 4)
  out = rope.rotate(x, np.array([1.5], np.float32), rope.inverse_frequencies(4))
  np.testing.assert_allclose(out[0, 0], [-2.92174776, 1.93977725, 1.20970659, 4.02954888], atol=1e-6)


def test_programs_differ_in_constants_only(dims):
  a, b = encodings.make("rope", base=1e4), encodings.make("rope", base=5e5)
  assert a.program() == b.program() and hash(a.program()) == hash(b.program())
  shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), e.constants(dims, 64)) for e in (a, b)]
  assert shapes[0] == shapes[1]
  assert encodings.make("rope", layout="interleaved").program() != a.program()


@pytest.mark.parametrize("dim", [0, 1, 3, -2])
def test_odd_or_empty_rotary_dim(dim):
  with pytest.raises(ValueError, match=f"even and at least 2, got {dim}"):
    rope.inverse_frequencies(dim)


@pytest.mark.parametrize("base", [1.0, 0.0, -5.0, float("nan"), float("inf")])
def test_base(base):
  with pytest.raises(ValueError, match="finite base above 1"):
    rope.RoPE(base=base)


def test_sizes_that_do_not_fit(dims):
  with pytest.raises(ValueError, match="rotary_dim=10 exceeds head_dim=8"):
    encodings.make("rope", rotary_dim=10).check(dims, 8)
  with pytest.raises(ValueError, match="even and at least 2, got 7"):
    encodings.make("rope").check(Dims(1, 7, 7, 8), 8)
  with pytest.raises(ValueError, match="5 frequencies rotate 10 channels, but a head has 8"):
    rope.rotate(np.ones((1, 1, 8), np.float32), np.array([0]), rope.inverse_frequencies(10))
  for call in (
    lambda: rope.RoPE(layout="pairs"),
    lambda: rope.rotate(np.ones((1, 1, 8)), np.array([0]), rope.inverse_frequencies(8), layout="pairs"),
  ):
    with pytest.raises(ValueError, match="half, interleaved"):
      call()


def test_a_share_of_the_pairs_keeps_the_exponents_of_the_full_width():
  expected = 1e4 ** (-np.arange(16) / 16)
  expected[int(0.75 * 32 // 2) :] = 0
  np.testing.assert_allclose(rope.proportional_frequencies(32, 1e4, 0.75), expected, rtol=1e-12)


def test_a_share_of_the_pairs_turns_and_the_slowest_stand_still(bind):
  """p-RoPE in complex float64: the pairs (i, i + c/2) below int(p c/2) turn."""
  made = bind(encodings.make("rope", partial=0.5))
  rng, at = np.random.default_rng(0), np.array([0, 7, 100])
  x = rng.normal(size=(3, 8))
  w = np.array([1.0, 0.1, 0.0, 0.0])
  turned = (x[:, :4] + 1j * x[:, 4:]) * np.exp(1j * at[:, None] * w)
  found, _ = made.encoding.on_query_key(made.head(0), jnp.asarray(x, jnp.float32), jnp.zeros((3, 8)), jnp.asarray(at), jnp.asarray(at))
  np.testing.assert_allclose(found, np.concatenate([turned.real, turned.imag], 1), atol=2e-6)


@pytest.mark.parametrize(("partial", "other"), [(1.0, "rope"), (0.0, "nope")])
def test_limits_of_the_share(bind, partial, other):
  q = np.random.default_rng(1).normal(size=(4, 5, 8)).astype(np.float32)
  at = np.arange(5) * 11
  made, expected = bind(encodings.make("rope", partial=partial)), bind(encodings.make(other))
  np.testing.assert_allclose(made.scores(q, q, at, at), expected.scores(q, q, at, at), atol=1e-6)


def test_a_share_survives_an_extension_and_shares_the_program(dims):
  made = extensions.apply(extensions.make("ntk", factor=4.0), encodings.make("rope", partial=0.5))
  inv_freq, _ = made.frequencies(dims, 64)
  whole, _ = extensions.make("ntk", factor=4.0).frequencies64(8, 1e4, 64, 64)
  np.testing.assert_array_equal(inv_freq, [*whole[:2], 0, 0])
  assert made.program() == encodings.make("rope").program()


@pytest.mark.parametrize("partial", [-0.1, 1.5])
def test_what_is_no_share(partial):
  with pytest.raises(ValueError, match="0 <= partial <= 1"):
    encodings.make("rope", partial=partial)
