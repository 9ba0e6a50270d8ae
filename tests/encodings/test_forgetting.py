"""Forgetting attention against its definition in float64: the product of the gates between key and query."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.attention import attend, bias_matrix, token_features
from posx.encodings.base import Dims

DIMS = Dims(2, 4, 6, 16)


def definition(q, k, v, x, weight, bias, sign=1.0):
  """softmax(q k / sqrt(c) + log prod of f_l, l = j + 1 .. i) v, token by token, as in equations 5 to 8; [t h c] and x [t d]."""
  q, k, v, x, weight, bias = (np.asarray(a, np.float64) for a in (q, k, v, x, weight, bias))
  out = np.zeros_like(q)
  for h in range(q.shape[1]):
    f = 1 / (1 + np.exp(-sign * (x @ weight[h] + bias[h])))
    for i in range(len(q)):
      s = np.array([q[i, h] @ k[j, h] / np.sqrt(q.shape[2]) + np.log(np.prod(f[j + 1 : i + 1])) for j in range(i + 1)])
      w = np.exp(s - s.max())
      out[i, h] = w / w.sum() @ v[: i + 1, h]
  return out


def numbers(t=7, seed=0):
  rng = np.random.default_rng(seed)
  arrays = [rng.normal(size=(1, t, 2, 4)).astype(np.float32) for _ in range(3)]
  x = rng.normal(size=(1, t, 6)).astype(np.float32)
  return arrays, x, {"weight": rng.normal(size=(2, 6)).astype(np.float32), "bias": rng.normal(size=2).astype(np.float32)}


def attended(encoding, arrays, x, params, plan="dense", positions=None, segments=None):
  positions = np.arange(x.shape[1]) if positions is None else positions
  how = {"encoding": encoding, "params": params}
  features, _ = token_features(x, positions=positions, segments=segments, constants={}, **how)
  return attend(
    *map(jnp.asarray, arrays), q_positions=positions, k_positions=positions, q_segments=segments, k_segments=segments, plan=plan,
    block=(8, 8), q_features=features, k_features=features, dims=DIMS, **how,
  )  # fmt: skip


@pytest.mark.parametrize("plan", ["dense", "tiled"])
@pytest.mark.parametrize(("name", "sign"), [("forgetting", 1.0), ("cable", -1.0)])
def test_definition(name, sign, plan):
  """CABLE subtracts softplus(z): the logarithm of a gate sigmoid(-z)."""
  arrays, x, params = numbers()
  found = attended(encodings.make(name), arrays, x, params, plan)
  np.testing.assert_allclose(found[0], definition(*(a[0] for a in arrays), x[0], params["weight"], params["bias"], sign), atol=2e-6)


def test_constant_gates_are_alibi():
  """Gates of sigmoid(b) fade by -log f a token: 1/16 and 1/256, the slopes of two heads."""
  arrays, x, _ = numbers()
  slopes = np.array([1 / 16, 1 / 256])
  params = {"weight": np.zeros((2, 6), np.float32), "bias": (-np.log(np.expm1(slopes))).astype(np.float32)}
  at = np.arange(7)
  alibi = attend(*map(jnp.asarray, arrays), q_positions=at, k_positions=at, encoding=encodings.make("alibi"), params={})
  np.testing.assert_allclose(attended(encodings.make("forgetting"), arrays, x, params), alibi, atol=1e-6)


def test_order_comes_from_positions_and_documents_stay_apart():
  """Tokens of two documents, shuffled together in the array, are what each document's tokens are alone and in order."""
  arrays, x, params = numbers(9)
  encoding = encodings.make("forgetting")
  order = np.random.default_rng(5).permutation(9)
  positions, segments = np.concatenate([np.arange(4), np.arange(5)]), np.repeat([7, 2], [4, 5])
  mixed = attended(encoding, [a[:, order] for a in arrays], x[:, order], params, positions=positions[order], segments=segments[order])
  for part in (slice(0, 4), slice(4, 9)):
    alone = attended(encoding, [a[:, part] for a in arrays], x[:, part], params)
    np.testing.assert_allclose(mixed[:, np.argsort(order)][:, part], alone, atol=1e-6)


def test_gates_reach_the_input():
  """Gradients with respect to x, against differences in float64."""
  arrays, x, params = numbers(5)
  encoding = encodings.make("forgetting")
  loss = lambda x: (attended(encoding, arrays, x, params, "tiled") ** 2).sum()
  found = np.asarray(jax.grad(loss)(jnp.asarray(x)))[0]
  exact = lambda x: (definition(*(a[0] for a in arrays), x, params["weight"], params["bias"]) ** 2).sum()
  for i, d in ((0, 1), (2, 3), (4, 5)):
    step = np.zeros((5, 6))
    step[i, d] = 1e-4
    assert found[i, d] == pytest.approx((exact(x[0] + step) - exact(x[0] - step)) / 2e-4, abs=2e-5)


def test_refusals():
  arrays, _, params = numbers()
  how = {"q_positions": np.arange(7), "k_positions": np.arange(7)}
  with pytest.raises(ValueError, match=r"Forgetting needs .*q_features and k_features.*token_features"):
    attend(*map(jnp.asarray, arrays), encoding=encodings.make("forgetting"), params=params, **how)
  with pytest.raises(ValueError, match="Encoding declares no features; leave q_features and k_features out"):
    attend(*map(jnp.asarray, arrays), encoding=encodings.make("nope"), params={}, q_features={}, k_features={}, **how)
  with pytest.raises(ValueError, match="content-free encodings only"):
    bias_matrix(encodings.make("forgetting"), params, [0, 1], [0, 1], 2)
