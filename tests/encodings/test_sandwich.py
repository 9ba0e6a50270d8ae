"""Sandwich against the definition in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import sandwich, sinusoidal
from posx.encodings.base import Dims

DISTANCE = np.array([-7, -1, 0, 1, 2, 300, 2048, 131071])


def definition(distance, heads, dim, base, first):
  """Chi et al. 2022: (1 / (8h/H)) sum_i cos(d / base^(2i/dim))."""
  total = sum(np.cos(np.asarray(distance, np.float64) / base ** (2 * i / dim)) for i in range(first, first + dim // 2))
  return np.stack([total / (8 * h / heads) for h in range(1, heads + 1)])


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("heads", "dim", "base"), [(8, 128, 1e4), (3, 16, 500.0), (1, 2, 1e4)])
def test_definition(bind, heads, dim, base, first):
  expected = definition(DISTANCE, heads, dim, base, first)
  np.testing.assert_allclose(sandwich.bias(DISTANCE, heads, dim, base=base, first=first), expected, rtol=1e-6, atol=1e-5)
  made = bind(encodings.make("sandwich", dim=dim, base=base, first=first), Dims(heads, 8, 8 * heads, 64))
  bias = [made.encoding.bias(made.head(h), jnp.asarray(DISTANCE)) for h in range(heads)]
  np.testing.assert_allclose(bias, expected, rtol=1e-6, atol=1e-5)


def test_first_0_is_the_product_of_sinusoidal_vectors():
  table = np.asarray(sinusoidal.table(np.arange(40), 64), np.float64)
  distance = np.arange(40)[:, None] - np.arange(40)
  np.testing.assert_allclose(sandwich.bias(distance, 8, 64, first=0)[7], (table @ table.T) / 8, atol=1e-5)


def test_keeps_the_shape_of_the_distances():
  assert sandwich.bias(np.zeros((2, 3), np.int32), 5).shape == (5, 2, 3)


@pytest.mark.parametrize(
  ("fields", "match"), [({"dim": 3}, "even and at least 2"), ({"first": 2}, "first=1 .* or 0"), ({"base": 1.0}, "base above 1")]
)
def test_refusals(fields, match):
  with pytest.raises(ValueError, match=match):
    sandwich.Sandwich(**fields)
