"""Tiles, strips and rows against the textbook in float64, for every encoding; and that nothing of size t x u is ever made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.attention import attend, tiled
from posx.encodings.base import Dims, Encoding
from posx.encodings.combine import Chain

NAMES = list(encodings.CATALOGUE)
IN_LAYERS = [name for name in NAMES if name == "nope" or encodings.make(name).split()[1] != Encoding()]
"""Those that differ in attention; what acts on the input alone leaves it to NoPE."""
USUAL = ("rope", "kerple", "fire", "shaw", "cope", "transformer_xl", "forgetting", "dape")
"""At least one of every form; tests of the others are marked slow."""
BY_DISTANCE = [name for name in NAMES if encodings.make(name).form == "distance"]
TILED = [name for name in NAMES if encodings.make(name).form != "rows"]
BLOCK = (16, 8)
QUICK = {"xla_backend_optimization_level": 0}


def positions_of_rows(t, seed=0):
  """[2, t]: one row of random positions in no order, some of them twice; one of two documents after left padding."""
  rng = np.random.default_rng(seed)
  wild = rng.integers(0, 2 * t, t)
  packed = np.concatenate([np.zeros(5, int), np.arange(t // 2), np.arange(t - t // 2 - 5)])
  return np.stack([wild, packed])


def segments_of_rows(t):
  return np.stack([np.repeat([3, 1], [t // 3, t - t // 3]), np.repeat([0, 1, 2], [5, t // 2, t - t // 2 - 5])])


# Against the textbook.


@pytest.mark.parametrize("name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in IN_LAYERS])
def test_any_positions_and_segments_given_while_running(problem, name):
  """Unsorted, repeated, restarting positions of each row, several segments, a window and grouped heads, all at once."""
  p, encoding = problem(37, heads=4, kv_heads=2), encodings.make(name)
  params = p.params(encoding)
  how = {"traced": ("q_positions", "k_positions", "q_segments", "k_segments"), "window": 20}
  solver, exact = p.solver(encoding, "tiled", block=BLOCK, options=QUICK, **how), p.exact_solver(encoding, **how)
  # numbers that move the scores of all pairs have long sums as gradients, which cancel (DAPE's outer bias: altogether)
  sums = encoding.uses("features") or encoding.mixes_heads
  textbook = p.solver(encoding, "dense", options=QUICK, **how) if sums else None
  rows, documents = positions_of_rows(37), segments_of_rows(37)
  straight = np.stack([np.arange(37)] * 2)
  for q_pos, k_pos, seg in ((rows, rows, documents), (rows[::-1], rows, 0 * documents), (straight + 9, straight, documents)):
    moving = {"q_positions": q_pos, "k_positions": k_pos, "q_segments": seg, "k_segments": seg}
    given = [jnp.asarray(x) for x in p.arrays], params, {n: jnp.asarray(x, jnp.int32) for n, x in moving.items()}
    found = solver(*given)
    p.compare(found, exact(params, moving), 4e-6 if name == "fire" else 2e-6, textbook and textbook(*given))


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_bias_of_distance_alone(problem, name):
  """Strips (a triangle of 5 rows short of whole strips) and Toeplitz tiles, fewer queries than keys."""
  p, encoding = problem(37, 45), encodings.make(name)
  p.agree(encoding)
  p.agree(encoding, block=(16, 16))


@pytest.mark.parametrize(("name", "block"), [("nope", None), ("t5", (16, 16)), ("t5", None), ("bam", (16, 8))])
def test_window_in_both_directions(problem, name, block):
  """Not causal, with a window; queries begin within the keys and end beyond them."""
  p = problem(37, 29)
  p.agree(encodings.make(name), causal=False, window=9, block=block, q_positions=np.arange(37) + 7, k_positions=np.arange(29))


@pytest.mark.parametrize("block", [None, (8, 8)])
def test_not_causal(problem, block):
  p = problem(20, 29)
  p.agree(encodings.make("t5", causal=False), causal=False, block=block, q_positions=np.arange(20), k_positions=np.arange(29))


@pytest.mark.parametrize(("offset", "block"), [(-50, None), (-12, (16, 16)), (3, None), (60, (16, 16))])
def test_offsets_between_queries_and_keys(problem, offset, block):
  """Queries before all keys (they see nothing), among them, beyond them; a window that leaves keys behind."""
  p = problem(21, 33)
  p.agree(encodings.make("kerple"), window=25, block=block, q_positions=np.arange(21) + 100 + offset, k_positions=np.arange(33) + 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nope", "kerple", "fire", "shaw"])
def test_odd_length_as_it_is_compiled_for_use(problem, name):
  problem(509, heads=1, batch=1).agree(encodings.make(name), options={}, tolerance=4e-6 if name == "fire" else 2e-6)


def test_several_encodings_at_once(problem):
  """FIRE's gradients cancel: over eight draws float32 is off by 1.7e-6 here, at most 2.5e-6; the textbook's by 1.4e-6 and 2.4e-6."""
  chain = Chain((encodings.make("rope"), encodings.make("kerple"), encodings.make("shaw", clip=4), encodings.make("fire", width=4)))
  problem(23, heads=4, kv_heads=2).agree(chain, block=(8, 8), tolerance=3e-6)


def test_interpolated_positions(problem):
  pi = extensions.make("pi", factor=2.5)
  problem(23).agree(extensions.apply(pi, encodings.make("t5")), block=(8, 8))
  problem(23).agree(extensions.apply(pi, encodings.make("shaw", clip=4)), block=(8, 16))


def test_values_of_another_width(problem):
  p = problem(23)
  p.arrays[2] = p.arrays[2][..., :5]
  p.cotangent = p.cotangent[..., :5]
  for block in (None, (8, 8)):
    p.agree(encodings.make("kerple"), block=block)


@pytest.mark.parametrize("name", ["t5", "shaw", "cope"])
def test_bfloat16_is_within_its_own_rounding(problem, name):
  p, encoding = problem(37), encodings.make(name)
  params = p.params(encoding)
  found = p.solve(encoding, params, dtype=jnp.bfloat16, block=(16, 16))
  assert {x.dtype for x in jax.tree.leaves((found[0], found[1][:3]))} == {jnp.dtype(jnp.bfloat16)}
  assert {x.dtype for x in jax.tree.leaves(found[1][3])} == {jnp.dtype(jnp.float32)}
  rounded = problem(37)
  rounded.arrays = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32) for x in p.arrays]
  p.compare(found, rounded.exact(encoding, params), 0.02)


@pytest.mark.parametrize("name", ["kerple", "shaw"])
def test_batched_heads_and_rows_as_on_an_accelerator(problem, name, monkeypatch):
  """The same tiles mapped by vmap, one set of bounds for all rows of the batch."""
  whole = tiled.attention
  monkeypatch.setattr(tiled, "attention", lambda *args, **kwargs: whole(*args, **{**kwargs, "cpu": False}))
  p, rows, documents = problem(37, heads=4, kv_heads=2), positions_of_rows(37), segments_of_rows(37)
  how = {"q_positions": rows, "k_positions": rows, "q_segments": documents, "k_segments": documents}
  p.agree(encodings.make(name), block=BLOCK, traced=tuple(how) if name == "shaw" else (), **how)


@pytest.mark.parametrize("name", ["rope", *BY_DISTANCE])
def test_traced_positions_give_what_known_positions_give(problem, name):
  """The plan may differ (strips, Toeplitz tiles), the numbers may not."""
  p, encoding = problem(37, heads=1, batch=1), encodings.make(name)
  params = p.params(encoding)
  run = lambda q_pos, k_pos: attend(
    *map(jnp.asarray, p.arrays), q_positions=q_pos, k_positions=k_pos, encoding=encoding, params=params, plan="tiled", dims=p.dims
  )
  known = run(p.how["q_positions"], p.how["k_positions"])
  traced = jax.jit(run, compiler_options=QUICK)(jnp.arange(37), jnp.arange(37))
  np.testing.assert_allclose(known, traced, atol=3e-6)


# Memory.


def inner(jaxpr):
  """All equations, those inside scans, loops, conditionals and custom rules too."""
  for equation in jaxpr.eqns:
    yield equation
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
      if hasattr(value, "jaxpr") or hasattr(value, "eqns"):
        yield from inner(getattr(value, "jaxpr", value))


def shapes_of(problem, encoding, plan, traced, **how):
  """Shapes of all values made by the forward pass and the gradient."""
  p = problem(509, heads=1, batch=1)
  solver = p.solver(encoding, plan, traced=traced, **how)
  moving = {name: jnp.asarray(p.how[name], jnp.int32) for name in traced}
  made = jax.make_jaxpr(solver)([jnp.asarray(x) for x in p.arrays], p.params(encoding), moving)
  return {tuple(v.aval.shape) for equation in inner(made.jaxpr) for v in equation.outvars if hasattr(v.aval, "shape")}


def square(shape):
  return sum(n >= 509 for n in shape) >= 2


def test_the_walk_finds_the_textbooks_scores(problem):
  """The check below can fail: the dense plan does hold [t, u], in every encoding."""
  for name in ("nope", "alibi", "fire"):
    assert any(square(shape) for shape in shapes_of(problem, encodings.make(name), "dense", ()))


@pytest.mark.parametrize("traced", [(), ("q_positions", "k_positions")], ids=["known", "traced"])
@pytest.mark.parametrize("name", TILED)
def test_nothing_of_size_t_times_u_exists(problem, name, traced):
  small = shapes_of(problem, encodings.make(name), "tiled", traced, block=(32, 32))
  assert len(small) > 15 and not [shape for shape in small if square(shape) or np.prod(shape, dtype=float) >= 509 * 509]
  if not traced:  # the tiles of everyday use, whose hooks may hold several of them
    assert not [shape for shape in shapes_of(problem, encodings.make(name), "tiled", ()) if square(shape)]


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(TILED)))
def test_rows_hold_a_strip_of_queries_at_a_time(problem, name):
  found = shapes_of(problem, encodings.make(name), "tiled", (), block=(64, 64))
  assert not [shape for shape in found if square(shape)]


# Work.


def poisoned(problem, encoding, poison, traced=(), **how):
  """Outputs and gradients with the numbers as they were, and with NaN in the keys and values numbered `poison`."""
  p = problem(64, heads=1, batch=1)
  moving = {name: jnp.asarray({**p.how, **how}[name], jnp.int32) for name in traced}
  solver, params = p.solver(encoding, "tiled", traced=traced, options=QUICK, **how), p.params(encoding)
  clean = solver([jnp.asarray(x) for x in p.arrays], params, moving)
  for x in p.arrays[1:3]:
    x[:, poison] = np.nan
  return clean, solver([jnp.asarray(x) for x in p.arrays], params, moving)


@pytest.mark.parametrize("traced", [(), ("q_positions", "k_positions")], ids=["known", "traced"])
@pytest.mark.parametrize(
  ("how", "poison"),
  [
    ({"q_positions": np.arange(64) - 32}, slice(32, 64)),  # the future of every query
    ({"q_positions": np.arange(64) + 48, "window": 32}, slice(0, 16)),  # left behind by the window of every query
    ({"q_positions": np.arange(64) + 64, "causal": False, "window": 17}, slice(0, 48)),
    ({"q_segments": np.repeat([1, 2], 32), "k_segments": np.repeat([2, 3], 32)}, slice(32, 64)),  # a document of nobody
  ],
)
def test_hidden_tiles_are_never_computed(problem, how, poison, traced):
  """A NaN would spread from any tile that is computed, masked or not."""
  clean, found = poisoned(problem, encodings.make("kerple"), poison, block=(16, 16), traced=traced, **how)
  for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(found), strict=True):
    np.testing.assert_array_equal(a, b)


def test_future_strips_are_never_computed(problem):
  encoding = encodings.make("alibi")
  for how, poison in (
    ({"q_positions": np.arange(64) - 32}, slice(32, 64)),
    ({"q_positions": np.arange(64) + 48, "window": 32}, slice(0, 16)),
  ):
    clean, found = poisoned(problem, encoding, poison, **how)
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(found), strict=True):
      np.testing.assert_array_equal(a, b)


def test_a_visible_nan_shows(problem):
  """The exponential of the tiles drops NaN; the row's maximum carries it into the output."""
  for block, clean in ((None, 0), ((16, 16), 32)):  # 64 tokens are one strip, or four rows of tiles
    _, (out, _) = poisoned(problem, encodings.make("alibi"), slice(40, 41), block=block)
    nan = np.isnan(np.asarray(out[0])).all((1, 2))
    assert nan[40:].all() and not nan[:clean].any()


# Gradients that nobody asked for.


def test_constants_cost_no_gradient_work(problem):
  """Sandwich has no parameters, so the backward pass gathers no gradient of its band of Toeplitz tiles."""

  def updates(name):
    p = problem(64, heads=1, batch=1)
    made = jax.make_jaxpr(p.solver(encodings.make(name), "tiled", block=(16, 16)))(p.arrays, p.params(encodings.make(name)), {})
    changed = [e.outvars[0].aval.shape for e in inner(made.jaxpr) if e.primitive.name == "dynamic_update_slice"]
    return [shape for shape in changed if shape == (16, 64)]  # 16 rows of four tiles

  assert updates("kerple") and not updates("sandwich")


class Recorder(Encoding):
  """Notes the tiles for which its score hook is called."""

  seen: list = []  # noqa: RUF012

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    self.seen.append((scores.shape, scores.dtype, q_pos.dtype))
    return scores + 0.0


def test_the_hook_sees_one_tile_of_float32_scores_at_int32_positions(problem):
  Recorder.seen.clear()
  problem(40).solve(Recorder(), {}, block=(16, 8), dtype=jnp.bfloat16)
  assert set(Recorder.seen) == {((16, 8), jnp.dtype(jnp.float32), jnp.dtype(jnp.int32))}


# Under JAX's transformations and modes.


@pytest.mark.parametrize("block", [None, (8, 8)])
def test_inside_a_checked_shard_map(block):
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  q, k, v, d = (
    jax.random.normal(key, (2, 40, heads, 16)) for key, heads in zip(jax.random.split(jax.random.key(0), 4), (4, 2, 2, 4), strict=True)
  )
  how = {"encoding": encodings.make("kerple"), "q_positions": np.arange(40), "k_positions": np.arange(40)}
  params = how["encoding"].init(jax.random.key(1), Dims(4, 16, 64, 40))
  plain = lambda q, k, v: attend(q, k, v, params=params, plan="tiled", block=block, **how)
  spec = jax.sharding.PartitionSpec("data")
  mapped = jax.shard_map(plain, mesh=mesh, in_specs=spec, out_specs=spec)
  f = lambda f: jax.jit(jax.value_and_grad(lambda *x: (f(*x) * d).sum(), (0, 1, 2)))(q, k, v)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), f(mapped), f(plain))


@pytest.mark.parametrize("block", [None, (8, 8)])
def test_products_with_second_derivatives(block):
  """Forward over reverse; the weights are made from bits, which have no derivative of their own."""
  q = jax.random.normal(jax.random.key(0), (1, 20, 1, 8))
  how = {"encoding": encodings.make("nope"), "params": {}, "q_positions": np.arange(20), "k_positions": np.arange(20)}

  def product(plan, block=None):
    f = lambda q: (attend(q, q + 1, jnp.sin(q), plan=plan, block=block, **how) ** 2).sum()
    return jax.jit(lambda q: jax.jvp(jax.grad(f), (q,), (jnp.ones_like(q),))[1])(q)

  expected = product("dense")
  assert jnp.abs(expected).max() > 0.1
  np.testing.assert_allclose(product("tiled", block), expected, atol=2e-5)


@pytest.mark.parametrize("block", [None, (8, 8)])
@pytest.mark.parametrize("name", ["kerple", "shaw"])
def test_where_numbers_are_64_bits_wide(name, block):
  with jax.enable_x64(True):
    encoding, dims = encodings.make(name), Dims(2, 8, 16, 20)
    wide = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)
    params = wide(encoding.init(jax.random.key(0), dims))
    q = wide(jax.random.normal(jax.random.key(1), (1, 20, 2, 8)))
    where = {"q_positions": np.arange(20), "k_positions": np.arange(20), "encoding": encoding}

    def gradients(plan, block=None):
      f = lambda q, params: (attend(q, q, q, params=params, plan=plan, block=block, **where) ** 2).sum()
      return jax.jit(jax.grad(f, (0, 1)))(q, params)

    found = gradients("tiled", block)
    assert all(x.dtype == jnp.float64 for x in jax.tree.leaves(found))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, gradients("dense"))
