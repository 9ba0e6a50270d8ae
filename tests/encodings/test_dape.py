"""DAPE against its definition in float64: a network over the heads, and over neighbouring keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.attention import attend
from posx.encodings.base import Dims
from posx.encodings.dape import DAPE

DIMS = Dims(2, 4, 8, 16)


def definition(q, k, v, params, bias, key_window, seen):
  """softmax(S + B + f([S; B])) v, pair by pair; [t h c], bias [h t u], seen [t u]; keys in the order of their positions."""
  q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
  inner, inner_bias, outer, outer_bias = (np.asarray(params[n], np.float64) for n in ("inner", "inner_bias", "outer", "outer_bias"))
  inner = inner.reshape(len(inner), -1, key_window)
  t, h, c = q.shape
  scores = np.einsum("thc,uhc->htu", q, k) / np.sqrt(c)
  near = range(-(key_window // 2), key_window // 2 + 1)
  out = np.zeros((t, h, c))
  for i in range(t):
    keys = np.flatnonzero(seen[i])
    both = {j: np.concatenate([scores[:, i, j], bias[:, i, j]]) for j in keys}

    def layer(x, weight, add, keys=keys):
      return {j: add + sum(weight[:, :, n] @ x[j + s] for n, s in enumerate(near) if j + s in x) for j in keys}

    hidden = {j: np.where(y > 0, y, 0.01 * y) for j, y in layer(both, inner, inner_bias).items()}
    added = layer(hidden, outer, outer_bias)
    for n in range(h):
      s = np.array([scores[n, i, j] + bias[n, i, j] + added[j][n] for j in keys])
      w = np.exp(s - s.max())
      out[i, n] = w / w.sum() @ v[keys, n]
  return out


def numbers(encoding, t=9):
  rng = np.random.default_rng(0)
  arrays = [rng.normal(size=(1, t, 2, 4)).astype(np.float32) for _ in range(3)]
  return arrays, jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), encoding.init(jax.random.key(0), DIMS))


def distances(t):
  return np.abs(np.arange(t)[:, None] - np.arange(t))


@pytest.mark.parametrize("plan", ["dense", "tiled"])
@pytest.mark.parametrize("key_window", [1, 3])
def test_definition(key_window, plan):
  """With ALiBi's slopes of two heads, 1/16 and 1/256, and a window of attention."""
  encoding = encodings.make("dape", prior="alibi", width=5, key_window=key_window)
  arrays, params = numbers(encoding)
  bias = -np.array([1 / 16, 1 / 256])[:, None, None] * distances(9)
  seen = np.tri(9, dtype=bool) & (distances(9) < 6)
  at = np.arange(9)
  how = {"encoding": encoding, "params": params, "plan": plan, "block": (4, 4), "window": 6}
  found = attend(*map(jnp.asarray, arrays), q_positions=at, k_positions=at, **how)
  np.testing.assert_allclose(found[0], definition(*(a[0] for a in arrays), params, bias, key_window, seen), atol=3e-6)


def test_kerple_is_the_prior_by_default():
  encoding = encodings.make("dape", width=3)
  arrays, params = numbers(encoding)
  a, p = (np.maximum(np.asarray(params[n], np.float64), 0.01)[:, None, None] for n in ("a", "p"))
  at = np.arange(9)
  found = attend(*map(jnp.asarray, arrays), q_positions=at, k_positions=at, encoding=encoding, params=params)
  expected = definition(*(x[0] for x in arrays), params, -p * np.log1p(a * distances(9)), 1, np.tri(9, dtype=bool))
  np.testing.assert_allclose(found[0], expected, atol=3e-6)


def test_neighbours_are_those_of_the_document():
  """Two documents at the same positions, shuffled together in the array, are attended as if each were alone."""
  encoding = encodings.make("dape", width=4, key_window=3)
  arrays, params = numbers(encoding)
  order = np.random.default_rng(3).permutation(9)
  positions, segments = np.concatenate([np.arange(4), np.arange(5)]), np.repeat([7, 2], [4, 5])
  run = lambda arrays, at, seg: attend(
    *map(jnp.asarray, arrays), q_positions=at, k_positions=at, q_segments=seg, k_segments=seg, encoding=encoding, params=params
  )
  mixed = run([x[:, order] for x in arrays], positions[order], segments[order])[:, np.argsort(order)]
  for part in (slice(0, 4), slice(4, 9)):
    np.testing.assert_allclose(mixed[:, part], run([x[:, part] for x in arrays], positions[part], None), atol=2e-6)


def test_refusals():
  with pytest.raises(ValueError, match=r"unknown prior of DAPE 't5'.*kerple, alibi, fire"):
    DAPE(prior="t5")  # pyright: ignore[reportArgumentType]
  for fields in ({"width": 0}, {"key_window": 0}, {"key_window": 2}):
    with pytest.raises(ValueError, match="width >= 1 and an odd key_window"):
      encodings.make("dape", **fields)
