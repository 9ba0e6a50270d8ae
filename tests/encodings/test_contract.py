"""The contract, over the whole catalogue: every encoding is measured against what it claims."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings.base import Encoding

NAMES = list(encodings.CATALOGUE)
HOOKS = ("on_input", "on_query_key", "bias", "on_scores", "on_values")

# Numbers of one layer (or of the input) for 4 heads of 8 channels, 32 model channels, trained on 64; counted by hand from
# the shapes in each docstring.
PARAMETERS = {
  "nope": 0,
  "sinusoidal": 0,
  "learned": 64 * 32,
  "shaw": 2 * 33 * 8,
  "t5": 4 * 32,
  "rope": 0,
  "alibi": 0,
  "kerple": 2 * 4,
  "transformer_xl": 4 * 8 + 4 * 8 + 4 * 8 * 32,
  "xpos": 0,
  "pope": 4 * 8,
  "sandwich": 0,
  "fire": 1 + 1 + 32 + 32 + 4 * 32 + 4,
  "cope": 64 * 8,
  "bam": 4,
}


@pytest.fixture
def trained(bind):
  """An encoding whose parameters have moved from where they start, some of which is 0."""

  def made(name, **kwargs):
    bound = bind(encodings.make(name), **kwargs)
    leaves, tree = jax.tree.flatten(bound.params)
    keys = jax.random.split(jax.random.key(7), max(len(leaves), 1))
    bound.params = jax.tree.unflatten(tree, [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=False)])
    return bound

  return made


def acts_on_scores(encoding):
  return any(encoding.uses(hook) for hook in ("on_query_key", "bias", "on_scores"))


def sample(dtype=np.float32, t=6, u=6, seed=0):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.normal(size=(4, t, 8)), dtype), jnp.asarray(rng.normal(size=(4, u, 8)), dtype)


def test_every_entry_has_its_own_files():
  root = pathlib.Path(encodings.__file__).parent
  for name in NAMES:
    assert (root / f"{name}.py").is_file(), f"{name} has no file of its own"
    assert (pathlib.Path(__file__).parent / f"test_{name}.py").is_file(), f"{name} has no test file of its own"
  assert set(PARAMETERS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
class TestEncoding:
  def test_is_a_value(self, name):
    made = encodings.make(name)
    assert made == encodings.make(name) and hash(made) == hash(encodings.make(name))
    assert dataclasses.replace(made) == made
    assert repr(made).startswith(type(made).__name__ + "(")
    assert jax.jit(lambda e: jnp.zeros(()), static_argnums=0)(made) == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
      made.anything = 1

  def test_parameters(self, name, bind):
    made = bind(encodings.make(name))
    leaves = jax.tree.leaves(made.params)
    assert sum(x.size for x in leaves) == PARAMETERS[name]
    assert all(x.dtype == jnp.float32 and np.isfinite(x).all() for x in leaves)
    again = made.encoding.init(jax.random.key(0), made.dims)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), made.params, again))
    mine, _ = made.encoding.heads(made.p())
    assert all(x.shape[0] == made.dims.num_heads for x in jax.tree.leaves(mine))

  def test_constants_come_from_the_host_in_float32_or_int32(self, name, dims):
    for x in jax.tree.leaves(encodings.make(name).constants(dims, 64)):
      assert isinstance(x, np.ndarray | np.generic) and x.dtype in (np.float32, np.int32)

  @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
  def test_shapes_and_dtypes(self, name, bind, dtype):
    made = bind(encodings.make(name))
    q, k = sample(dtype, t=3, u=5)
    q_pos, k_pos = jnp.array([2, 3, 4]), jnp.arange(5)
    for h in (0, 3):
      p = made.head(h)
      turned_q, turned_k = made.encoding.on_query_key(p, q[h], k[h], q_pos, k_pos)
      assert turned_q.dtype == turned_k.dtype == dtype
      assert turned_q.shape[0] == 3 and turned_k.shape[0] == 5 and turned_q.shape[1] == turned_k.shape[1] >= 8
      scores = made.encoding.on_scores(p, jnp.zeros((3, 5), jnp.float32), turned_q, turned_k, q_pos, k_pos)
      assert scores.shape == (3, 5) and scores.dtype == jnp.float32
      if made.encoding.uses("bias"):
        bias = made.encoding.bias(p, jnp.arange(-2, 4).reshape(2, 3))
        assert bias.shape == (2, 3) and bias.dtype == jnp.float32
      if made.encoding.uses("on_values"):
        added = made.encoding.on_values(p, jnp.ones((3, 5), jnp.float32), q_pos, k_pos)
        assert added.shape == (3, 8) and added.dtype == jnp.float32
    x = jnp.ones((3, 32), dtype)
    assert made.encoding.on_input(made.p(), x, q_pos).dtype == dtype

  @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
  def test_finite_far_out(self, name, trained, dtype):
    encoding, length = encodings.make(name), 131072
    made = trained(name, length=length)
    q, k = sample(dtype, t=2, u=6)
    q_pos, k_pos = jnp.array([length - 2, length - 1]), jnp.array([0, 1, 1000, 65535, length - 2, length - 1])
    try:
      encoding.check(made.dims, length)
    except ValueError as error:
      assert "truncate" in str(error), "a refusal must name the cure"
      with pytest.raises(ValueError, match="no row"):
        encoding.on_input(made.p(), jnp.ones((2, 32), dtype), q_pos)
    else:
      assert np.isfinite(np.asarray(made.scores(q, k, q_pos, k_pos))).all()
      assert np.isfinite(np.asarray(encoding.on_input(made.p(), jnp.ones((2, 32), dtype), q_pos), np.float32)).all()

  @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
  def test_gradients_are_finite_and_reach_every_parameter(self, name, trained, dtype):
    made = trained(name)
    q, k = sample(dtype)
    at = np.arange(6) * 9

    def loss(params, q, k):
      o = made.output(q, k, k, at, at, True, params)
      x = made.encoding.on_input(made.p(params), jnp.ones((6, 32)), jnp.asarray(at))
      # A constant added to all scores leaves the output alone, so the scores are asked too.
      scores = jnp.where(np.tri(6, dtype=bool), made.scores(q, k, at, at, params), 0.0)
      return (o.astype(jnp.float32) ** 3).sum() + (x**3).sum() + (scores**2).mean()

    grads = jax.grad(loss, (0, 1, 2))(made.params, q, k)
    for path, g in jax.tree_util.tree_leaves_with_path(grads):
      assert np.isfinite(np.asarray(g, np.float32)).all(), path
      assert float(jnp.abs(g.astype(jnp.float32)).max()) > 1e-5, path

  def test_relative_claim(self, name, trained):
    made = trained(name, length=131072)
    if acts_on_scores(made.encoding):
      q, k = sample()
      at = np.array([0, 1, 3, 8, 20, 41])
      here, there = made.scores(q, k, at, at), made.scores(q, k, at + 100_000, at + 100_000)
      past = np.tri(6, dtype=bool)
      same = np.abs(here - there)[:, past].max() < 2e-5 * (1 + float(jnp.abs(here[:, past]).max()))
      assert same == made.encoding.relative
    elif made.encoding.uses("on_input"):
      x = jnp.zeros((2, 32))
      moved = made.encoding.on_input(made.p(), x, jnp.array([0, 1])) - made.encoding.on_input(made.p(), x, jnp.array([20, 21]))
      assert (float(jnp.abs(moved).max()) < 1e-6) == made.encoding.relative

  def test_norm_claim(self, name, trained):
    made = trained(name)
    q, k = sample()
    at = jnp.array([0, 1, 3, 8, 20, 41])
    turned = made.encoding.on_query_key(made.head(0), q[0], k[0], at, at)
    kept = all(
      bool((abs(jnp.linalg.norm(a, axis=-1) - jnp.linalg.norm(b, axis=-1)) < 1e-5).all()) for a, b in zip(turned, (q[0], k[0]), strict=True)
    )
    assert kept == made.encoding.norm_preserving

  def test_form_claims(self, name, trained):
    """Elementwise: hook(tile) == hook(row)[tile]. Content free: the addition does not know q and k."""
    made = trained(name)
    q, k = sample(t=9, u=9)
    at = jnp.arange(9) * 3
    p = made.head(1)
    turned_q, turned_k = made.encoding.on_query_key(p, q[1], k[1], at, at)
    scores = jnp.einsum("tc,uc->tu", turned_q, turned_k) * 8**-0.5
    hook = made.encoding.on_scores
    whole = hook(p, scores, turned_q, turned_k, at, at)
    for rows, columns in ((slice(4, 9), slice(0, 4)), (slice(3, 6), slice(3, 6)), (slice(8, 9), slice(0, 2))):
      tile = hook(p, scores[rows, columns], turned_q[rows], turned_k[columns], at[rows], at[columns])
      if made.encoding.elementwise:
        np.testing.assert_allclose(tile, whole[rows, columns], atol=2e-6)
    if not made.encoding.elementwise:
      assert float(jnp.abs(hook(p, scores[:, :4], turned_q, turned_k[:4], at, at[:4])[4:] - whole[4:, :4]).max()) > 1e-4
    other = hook(p, scores, turned_q[::-1] + 1, turned_k[::-1] - 1, at, at)
    assert bool((jnp.abs(other - whole) < 1e-6).all()) == made.encoding.content_free
    if made.encoding.form == "none":
      assert whole is scores

  def test_knows_order(self, name, trained):
    """The same content elsewhere is another input: what NoPE cannot tell without a mask."""
    made = trained(name)
    if made.encoding.uses("on_input"):
      out = made.encoding.on_input(made.p(), jnp.ones((2, 32)), jnp.array([3, 4]))
      knows = float(jnp.abs(out[0] - out[1]).max()) > 1e-6
    else:
      q, k = sample(t=1, u=3)
      near, far = (made.scores(q, k, np.array([12]), at) for at in (np.array([9, 10, 11]), np.array([2, 1, 0])))
      knows = float(jnp.abs(near - far).max()) > 1e-6
    assert knows == any(made.encoding.uses(hook) for hook in HOOKS)

  def test_short_long_short_is_bitwise_the_same(self, name, bind):
    encoding = encodings.make(name)
    q, k = sample()
    at = np.arange(6)
    run = jax.jit(lambda constants, params, q, k: bind_scores(encoding, bind, constants, params, q, k, at))
    made = bind(encoding)
    results = [np.asarray(run(jax.tree.map(jnp.asarray, encoding.constants(made.dims, n)), made.params, q, k)) for n in (16, 64, 16)]
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_allclose(results[0], made.scores(q, k, at, at), atol=1e-5)

  def test_splits_into_input_and_layers(self, name):
    made = encodings.make(name)
    first, rest = made.split()
    assert not rest.uses("on_input")
    assert [h for h in HOOKS if made.uses(h)] == [h for h in HOOKS if first.uses(h) or rest.uses(h)]

  def test_program_is_an_encoding_of_the_same_form(self, name):
    made = encodings.make(name)
    program = made.program()
    assert isinstance(program, Encoding) and program.form == made.form and program.program() == program


def bind_scores(encoding, bind, constants, params, q, k, at):
  made = bind(encoding, params=params)
  made.constants = constants
  return made.scores(q, k, at, at)
