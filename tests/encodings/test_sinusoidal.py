"""Sinusoidal positions against the definition in float64, other libraries, and what they claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import sinusoidal


def definition(positions, dim, base=10000.0, layout="interleaved", frequencies="paper"):
  """Vaswani et al. 2017, section 3.5, channel by channel."""
  out = np.zeros((len(positions), dim))
  pairs = dim // 2 if frequencies == "tensor2tensor" else (dim + 1) // 2
  for i in range(pairs):
    w = base ** (-i / (dim // 2 - 1)) if frequencies == "tensor2tensor" else base ** (-2 * i / dim)
    angle = np.asarray(positions, np.float64) * w
    sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, pairs + i)
    out[:, sine] = np.sin(angle)
    if cosine < dim and i < dim // 2:
      out[:, cosine] = np.cos(angle)
  return out


POSITIONS = np.array([0, 1, 2, 511, 2047, 2048, 4095, 32767, 131071])


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
@pytest.mark.parametrize("frequencies", ["paper", "tensor2tensor"])
@pytest.mark.parametrize("dim", [4, 6, 7, 64, 65])
def test_table_is_the_definition_far_out(dim, layout, frequencies):
  made = sinusoidal.table(POSITIONS, dim, layout=layout, frequencies=frequencies)
  assert made.dtype == jnp.float32
  np.testing.assert_allclose(made, definition(POSITIONS, dim, layout=layout, frequencies=frequencies), atol=3e-7)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_tiny_tables(dim):
  np.testing.assert_allclose(sinusoidal.table(POSITIONS, dim), definition(POSITIONS, dim), atol=3e-7)


def test_oracle(oracle):
  for case in oracle("E_sinusoidal_vaswani"):
    made = sinusoidal.table(case.arrays["positions"], case.params["dim"], layout=case.params["layout"])
    np.testing.assert_allclose(made, case.arrays["table_ref"], atol=3e-7, err_msg=case.id)


def test_row_of_integer_positions_is_not_an_integer():
  made = sinusoidal.table(jnp.arange(3), 6)
  np.testing.assert_allclose(made[1], [0.84147098, 0.5403023, 0.04639922, 0.99892298, 0.00215443, 0.99999768], atol=1e-7)


def test_fractions_and_traced_positions_agree_with_the_definition():
  fractions = np.array([0.25, 1.5, 100.75], np.float32)
  np.testing.assert_allclose(sinusoidal.table(fractions, 8), definition(fractions, 8), atol=1e-5)
  np.testing.assert_allclose(jax.jit(lambda p: sinusoidal.table(p, 8))(POSITIONS), definition(POSITIONS, 8), atol=3e-7)


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
def test_shifting_is_one_linear_map(layout):
  """PE(p + k) = M_k PE(p) with the same M_k for every p."""
  table = np.asarray(sinusoidal.table(np.arange(400), 16, base=100.0, layout=layout), np.float64)
  shift = 37
  solved, *_ = np.linalg.lstsq(table[:200], table[shift : 200 + shift], rcond=None)
  np.testing.assert_allclose(table[200:300] @ solved, table[200 + shift : 300 + shift], atol=1e-5)


def test_class_adds_the_table_in_every_dtype(bind, dims):
  made = bind(encodings.make("sinusoidal", layout="concat"), length=200000)
  x = jnp.ones((len(POSITIONS), dims.model_dim))
  expected = 1 + definition(POSITIONS, dims.model_dim, layout="concat")
  np.testing.assert_allclose(made.encoding.on_input(made.p(), x, jnp.asarray(POSITIONS)), expected, atol=5e-7)
  half = made.encoding.on_input(made.p(), x.astype(jnp.bfloat16), jnp.asarray(POSITIONS))
  assert half.dtype == jnp.bfloat16
  np.testing.assert_allclose(half.astype(jnp.float32), expected, atol=8e-3)


def test_program_is_shared_by_bases(dims):
  assert encodings.make("sinusoidal", base=100.0).program() == encodings.make("sinusoidal").program()


@pytest.mark.parametrize(
  ("fields", "match"),
  [({"layout": "half"}, "interleaved, concat"), ({"frequencies": "whisper"}, "paper, tensor2tensor"), ({"base": 1.0}, "base above 1")],
)
def test_refusals(fields, match):
  with pytest.raises(ValueError, match=match):
    encodings.sinusoidal.Sinusoidal(**fields)
  with pytest.raises(ValueError, match=match):
    sinusoidal.table(np.arange(3), 8, **fields)


def test_too_few_channels_for_tensor2tensor(dims):
  with pytest.raises(ValueError, match="at least 4 channels"):
    sinusoidal.table(np.arange(3), 3, frequencies="tensor2tensor")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_positions_in_half_precision_are_refused(dtype):
  with pytest.raises(ValueError, match="int32 or float32"):
    sinusoidal.table(jnp.arange(600, dtype=dtype), 8)
