"""Shared by the tests of attention: a problem with random numbers, solved by a plan in float32 or by the textbook in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx.attention import attend, token_features
from posx.encodings.base import Dims

QUICK = {"xla_backend_optimization_level": 0}
"""Compiles twice as fast; the tests compile more than they compute."""


class Problem:
  """Queries, keys, values and the cotangent of the output; every number is a float32."""

  def __init__(self, t=37, u=None, *, heads=2, kv_heads=None, batch=2, channels=16, seed=0):
    u, g = u or t, kv_heads or heads
    rng = np.random.default_rng(seed)
    shapes = [(batch, t, heads, channels), (batch, u, g, channels), (batch, u, g, channels), (batch, t, heads, channels)]
    *self.arrays, self.cotangent = (rng.normal(size=s).astype(np.float32) for s in shapes)
    self.dims = Dims(heads, channels, heads * channels, 64)
    self.x = rng.normal(size=(batch, u + t, heads * channels)).astype(np.float32)
    self.how = {"q_positions": np.arange(t) + u - t, "k_positions": np.arange(u)}

  def params(self, encoding, seed=1):
    """Parameters moved off their start, where some encodings do nothing yet."""
    leaves, tree = jax.tree.flatten(encoding.init(jax.random.key(seed), self.dims))
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(tree, [np.asarray(x + 0.1 * np.abs(rng.normal(size=x.shape)), np.float32) for x in leaves])

  def solver(self, encoding, plan, *, traced=(), options=None, **how):
    """f(arrays, params, moving) -> (output, gradients); `moving` holds the settings named in `traced`."""
    how = {name: x for name, x in {**self.how, **how}.items() if name not in traced}

    def run(arrays, params, moving):
      given = self.features(encoding, params, **how, **moving)
      out = attend(*arrays, encoding=encoding, params=params, plan=plan, dims=self.dims, **how, **moving, **given)
      return (out.astype(jnp.promote_types(out.dtype, jnp.float32)) * self.cotangent).sum(), out

    run = jax.value_and_grad(run, (0, 1), has_aux=True)

    def both(arrays, params, moving):
      (_, out), (d_arrays, d_params) = run(arrays, params, moving)
      return out, (*d_arrays, d_params)

    return both if options is None else jax.jit(both, compiler_options=options)

  def features(self, encoding, params, *, q_positions, k_positions, q_segments=None, k_segments=None, **rest):
    """What an encoding makes of the layer's input: the tokens of the keys, then those of the queries, are one text."""
    del rest
    if not encoding.uses("features"):
      return {}
    both = lambda k, q: jnp.concatenate([jnp.broadcast_to(x, (len(self.x), x.shape[-1])) for x in (k, q)], -1)
    segments = None if k_segments is None else both(k_segments, q_segments)
    constants = jax.tree.map(jnp.asarray, encoding.constants(self.dims, 64))
    made, _ = token_features(
      self.x, positions=both(k_positions, q_positions), segments=segments, encoding=encoding, params=params, constants=constants
    )
    u = k_positions.shape[-1]
    return {"k_features": jax.tree.map(lambda x: x[:, :u], made), "q_features": jax.tree.map(lambda x: x[:, u:], made)}

  def solve(self, encoding, params, plan="tiled", *, dtype=jnp.float32, options=QUICK, traced=(), **how):
    moving = {name: jnp.asarray({**self.how, **how}[name], jnp.int32) for name in traced}
    return self.solver(encoding, plan, traced=traced, options=options, **how)([jnp.asarray(x, dtype) for x in self.arrays], params, moving)

  def exact(self, encoding, params, **how):
    """The textbook in float64, parameters too; what an encoding fixes as float32 (angles, tables) stays so."""
    return self.exact_solver(encoding, **how)(params, {})

  def exact_solver(self, encoding, *, traced=(), **how):
    """f(params, moving) -> (output, gradients), compiled once for all values of the settings named in `traced`."""
    with jax.enable_x64(True):
      solver = self.solver(encoding, "dense", traced=traced, options=QUICK, **how)

    def run(params, moving):
      with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (self.arrays, params))
        return jax.tree.map(np.asarray, solver(*wide, {n: jnp.asarray(x, jnp.int32) for n, x in moving.items()}))

    return run

  def agree(self, encoding, *, tolerance=2e-6, **how):
    """Asserts that the tiled plan gives the textbook's output and gradients."""
    params = self.params(encoding)
    plain = {name: x for name, x in how.items() if name not in ("block", "traced", "options", "dtype")}
    self.compare(self.solve(encoding, params, **how), self.exact(encoding, params, **plain), tolerance)

  @staticmethod
  def compare(found, expected, tolerance, textbook=None):
    """Largest difference over the largest entry, for every array; a gradient that is 0 by symmetry is held against 2.

    Where float32 itself cannot do better, `textbook` has what the dense plan makes of it: twice its error is allowed too.
    """
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    wrong = lambda a, b: np.abs(np.asarray(a, np.float64) - b).max() / max(np.abs(b).max(), 2.0)
    exact = [np.asarray(b, np.float64) for b in jax.tree.leaves(expected)]
    rounding = [0.0] * len(exact) if textbook is None else list(map(wrong, jax.tree.leaves(textbook), exact))
    for (path, a), b, own in zip(jax.tree_util.tree_leaves_with_path(found), exact, rounding, strict=True):
      where = (
        f"{jax.tree_util.keystr(path)}: relative error {wrong(a, b):.2e}, the textbook's {own:.2e}, largest entry {np.abs(b).max():.2e}"
      )
      assert wrong(a, b) <= max(tolerance, 2 * own), where


@pytest.fixture(scope="session")
def problem():
  """problem(t, u, ...) -> a Problem."""
  return Problem
