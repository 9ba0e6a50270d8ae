"""KERPLE's kernels against float64 and the authors' own numbers; parameters that stay valid."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings import kerple
from posx.encodings.base import Dims


def test_oracle(oracle, bind):
  for case in oracle("F_kerple"):
    arrays, log = case.arrays, case.params["kind"] == "log"
    # The authors' names: the outer factor r1 is p of the logarithm and a of the power.
    outer, inner = jnp.asarray(arrays["r1"]), jnp.asarray(arrays["r2"])
    params = {"p": outer, "a": inner} if log else {"a": outer, "p": inner}
    made = bind(kerple.KERPLE(kernel=case.params["kind"]), Dims(3, 8, 24, 10), params)
    bias = jnp.stack([made.encoding.bias(made.head(h), jnp.asarray(arrays["distance"])) for h in range(3)])
    np.testing.assert_allclose(bias, arrays["bias_ref"], atol=1e-6, rtol=2e-6, err_msg=case.id)
    past = arrays["causal"]
    np.testing.assert_allclose(bias[:, past], arrays["bias_author"][:, past], atol=1e-6, rtol=2e-6, err_msg=case.id)


def test_log_kernel_values():
  np.testing.assert_allclose(kerple.log_kernel(jnp.array([0, 1, 3, 7]), 1.0, 1.0), [0, -0.69314718, -1.38629436, -2.07944154], atol=1e-6)
  np.testing.assert_allclose(kerple.log_kernel(jnp.array([5]), 0.5, 3.0), [-3 * np.log(1 + 0.5 * 5)], rtol=1e-6)


def test_power_kernel_values_and_alibi():
  np.testing.assert_allclose(kerple.power_kernel(jnp.array([0, 1, 4, 9]), 2.0, 0.5), [0, -2, -4, -6], atol=1e-6)
  np.testing.assert_allclose(kerple.power_kernel(jnp.array([0, 3, 100]), 0.25, 1.0), [0, -0.75, -25], atol=1e-5)


@pytest.mark.parametrize("kernel", kerple.KERNELS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_huge_step_leaves_the_bias_negative_and_decreasing(bind, kernel, sign):
  made = bind(encodings.make("kerple", kernel=kernel))
  distance = jnp.arange(0, 131072, 997)

  def loss(params):
    return sum(made.encoding.bias(made.head(h, params), distance).sum() for h in range(4)) * 1e-3

  stepped = jax.tree.map(lambda x, g: x - sign * 1e3 * g, made.params, jax.grad(loss)(made.params))
  assert max(float(abs(v).max()) for v in jax.tree.leaves(stepped)) > 100
  for h in range(4):
    bias = np.asarray(made.encoding.bias(made.head(h, stepped), distance))
    assert np.isfinite(bias).all() and bias[0] == 0 and (np.diff(bias) < 0).all()


@pytest.mark.parametrize("kernel", kerple.KERNELS)
def test_a_parameter_beyond_its_bound_still_learns(bind, kernel):
  made = bind(encodings.make("kerple", kernel=kernel))
  params = {name: jnp.full(4, -5.0 if name == "a" else 7.0) for name in made.params}
  grad = jax.grad(lambda params: made.encoding.bias(made.head(0, params), jnp.arange(9)).sum())(params)
  assert all(float(abs(g[0])) > 0 for g in grad.values())


@pytest.mark.parametrize(
  ("kernel", "formula"),
  [
    (kerple.log_kernel, lambda a, p: (-p * np.log1p(a * np.arange(9.0))).sum()),
    (kerple.power_kernel, lambda a, p: (-a * np.arange(9.0) ** p).sum()),
    (kerple.weight_kernel, lambda a, p: np.exp(-a * np.arange(9.0) ** p).sum()),
    (functools.partial(kerple.three_parameter_log_kernel, e=1.3), lambda a, p: (-p * np.log1p(a * np.arange(9.0) ** 1.3)).sum()),
  ],
)
def test_gradient_is_that_of_the_formula(kernel, formula):
  grad = jax.grad(lambda a, p: kernel(jnp.arange(9), a, p).sum(), (0, 1))(0.5, 1.5)
  eps = 1e-6
  by_a = (formula(0.5 + eps, 1.5) - formula(0.5 - eps, 1.5)) / (2 * eps)
  by_p = (formula(0.5, 1.5 + eps) - formula(0.5, 1.5 - eps)) / (2 * eps)
  np.testing.assert_allclose(grad, [by_a, by_p], rtol=1e-4)


def test_three_parameter_log_values():
  d = np.array([0, 1, 3, 700])
  found = kerple.three_parameter_log_kernel(jnp.asarray(d), 0.5, 3.0, 1.5)
  np.testing.assert_allclose(found, -3.0 * np.log(1 + 0.5 * d.astype(np.float64) ** 1.5), rtol=1e-6)
  plain = kerple.log_kernel(jnp.asarray(d), 0.5, 3.0)
  np.testing.assert_allclose(kerple.three_parameter_log_kernel(jnp.asarray(d), 0.5, 3.0, 1.0), plain, rtol=1e-6)
  # d = 0 has a finite gradient in the exponent
  assert np.isfinite(jax.grad(lambda e: kerple.three_parameter_log_kernel(jnp.asarray(d), 0.5, 3.0, e).sum())(1.5))


@pytest.mark.parametrize("kernel", kerple.KERNELS)
def test_weights_multiply_the_product_and_not_the_bias(bind, kernel):
  """q.k exp(-weight_a d^weight_p) / sqrt(c) + bias, in float64."""
  made = bind(encodings.make("kerple", kernel=kernel, weight=True))
  rng, past = np.random.default_rng(0), np.tri(7, dtype=bool)
  q, k = rng.normal(size=(2, 4, 7, 8))
  at = np.array([0, 1, 2, 5, 9, 30, 31])
  d = np.where(past, at[:, None] - at[None, :], 0).astype(np.float64)
  scores = made.scores(q.astype(np.float32), k.astype(np.float32), at, at)
  for h in range(4):
    p = {n: np.float64(v[h]) for n, v in made.params.items()}
    bias = {
      "log": lambda p=p: -p["p"] * np.log(1 + p["a"] * d),
      "power": lambda p=p: -p["a"] * d ** p["p"],
      "three_parameter_log": lambda p=p: -p["p"] * np.log(1 + p["a"] * d ** p["e"]),
    }[kernel]()
    expected = q[h] @ k[h].T / np.sqrt(8) * np.exp(-p["weight_a"] * d ** p["weight_p"]) + bias
    np.testing.assert_allclose(scores[h][past], expected[past], rtol=2e-6, atol=2e-6)


def test_weights_make_the_hook_elementwise_and_leave_the_rest_alone(dims):
  plain, weighted = encodings.make("kerple"), encodings.make("kerple", weight=True)
  assert (plain.form, plain.content_free) == ("distance", True) and (weighted.form, weighted.content_free) == ("elementwise", False)
  first, second = (e.init(jax.random.key(3), dims) for e in (plain, weighted))
  assert set(second) - set(first) == {"weight_a", "weight_p"}
  for name in first:
    np.testing.assert_array_equal(first[name], second[name])


def test_initial_ranges_are_the_authors():
  params = encodings.make("kerple").init(jax.random.key(0), Dims(4096, 8, 8, 8))
  for name, top in (("a", 1), ("p", 2)):
    values = np.asarray(params[name])
    assert values.min() >= 0 and values.max() <= top and abs(values.mean() - top / 2) < 0.05


def test_refusals():
  with pytest.raises(ValueError, match="log, power, three_parameter_log"):
    kerple.KERPLE(kernel="exp")
