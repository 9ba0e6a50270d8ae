"""Tiles that weigh nothing are left out, and nothing else is: the results are those with every tile, to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions
from posx.attention import attend, fading
from posx.encodings.combine import Chain
from posx.errors import UserError

BLOCK = (16, 16)
QUICK = {"xla_backend_optimization_level": 0}
FADING = {
  "alibi": encodings.make("alibi"),
  "rope and alibi": Chain((encodings.make("rope"), encodings.make("alibi"))),
  "forgetting": encodings.make("forgetting"),
  "cable": encodings.make("cable"),
  "power": encodings.make("kerple", kernel="power"),
  "interpolated alibi": extensions.apply(extensions.make("pi", factor=1.5), encodings.make("alibi")),
  "alibi with log n": extensions.apply(extensions.make("log_n"), encodings.make("alibi")),
  "alibi and t5": Chain((encodings.make("alibi"), encodings.make("t5"))),
}


@pytest.fixture
def every_tile(monkeypatch):
  """Turns it off: no tile is further away than this."""

  def turn_off():
    monkeypatch.setattr(fading, "NOTHING", -np.inf)

  return turn_off


@pytest.fixture
def skipped(monkeypatch):
  """List of how many key tiles every query tile of every head left out, filled while programs run."""
  found = []
  counted = fading._cut_off

  def cut_off(head, count):
    jax.debug.callback(lambda x: found.append(np.asarray(x)), count)
    return counted(head, count)

  monkeypatch.setattr(fading, "_cut_off", cut_off)
  return found


def steep(problem, encoding, u=400, **how):
  """A problem in which the bias falls quickly: slopes of half a logit a token, large trained slopes and gates."""
  p = problem(400, u, heads=8, **how)
  return p, jax.tree.map(lambda x: 3 * x, p.params(encoding))


@pytest.mark.parametrize(
  ("name", "layout"),
  [(name, "plain") for name in FADING]
  + [(name, layout) for name in ("alibi", "forgetting") for layout in ("window", "documents", "fewer queries", "grouped", "bfloat16")],
)
def test_the_same_to_the_last_bit(problem, every_tile, skipped, name, layout):
  encoding, u = FADING[name], 405 if layout == "fewer queries" else 400
  p, params = steep(problem, encoding, u, kv_heads=2 if layout == "grouped" else None)
  how = {"block": BLOCK, "dtype": jnp.bfloat16 if layout == "bfloat16" else jnp.float32}
  if layout == "window":
    how["window"] = 350
  if layout == "documents":
    segments = np.stack([np.repeat([0, 1], [300, 100]), np.repeat([0, 1, 0], [10, 40, 350])])
    how |= {"q_segments": segments, "k_segments": segments}
  found = p.solve(encoding, params, **how)
  jax.effects_barrier()
  assert sum(x.sum() for x in skipped) > 0
  skipped.clear()
  every_tile()
  whole = p.solve(encoding, params, **how)
  jax.effects_barrier()
  assert skipped and sum(x.sum() for x in skipped) == 0
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", FADING)
def test_equals_the_textbook(problem, name):
  p, params = steep(problem, FADING[name])
  textbook = p.solve(FADING[name], params, plan="dense")
  p.compare(p.solve(FADING[name], params, block=BLOCK), p.exact(FADING[name], params), 4e-6, textbook)


@pytest.mark.slow
@pytest.mark.parametrize("name", extensions.CATALOGUE)
def test_under_every_extension(problem, name):
  """What is a product, and may be extended so, by tiles and by a kernel's channels: both are the textbook."""
  served = 0
  for inner in (encodings.make("alibi"), Chain((encodings.make("rope"), encodings.make("alibi"))), encodings.make("forgetting")):
    try:
      encoding = extensions.apply(extensions.make(name), inner)
    except UserError:
      continue
    served += 1
    p, params = steep(problem, encoding, batch=1)

    def output(plan, block=None, *, p=p, params=params, encoding=encoding):
      how = {**p.how, "encoding": encoding, "params": params, "dims": p.dims, "plan": plan, "block": block}
      run = lambda q, k, v: attend(q, k, v, **how, **p.features(encoding, params, **p.how))
      return jax.jit(run, compiler_options=QUICK)(*p.arrays)

    expected = output("dense")
    np.testing.assert_allclose(output("tiled", BLOCK), expected, atol=2e-5)
    try:
      by_channels = output("fused")
    except ValueError as error:
      assert "plan='fused' does not serve this" in str(error)
    else:  # sums of gates near -1,000 are one float32 there
      np.testing.assert_allclose(by_channels, expected, atol=1e-3 if encoding.uses("features") else 2e-5)
  assert served or name not in ("pi", "window", "log_n", "ssmax", "llama4")


def test_every_weight_that_is_left_out_is_nothing(problem, skipped):
  """In float64, and most of the tiles that could be left out are."""
  encoding = encodings.make("alibi")
  p = problem(640, heads=8, batch=1)
  p.solve(encoding, {}, block=BLOCK)
  jax.effects_barrier()
  q, k, _ = (np.asarray(x[0], np.float64) for x in p.arrays)
  i, j = np.arange(640)[:, None], np.arange(640)[None]
  slopes = encodings.alibi.slopes64(8)
  possible, left_out = 0, 0
  for h, count in enumerate(skipped[:8]):
    scores = np.where(j <= i, q[:, h] @ k[:, h].T / 4 - slopes[h] * (i - j), -np.inf)
    high = scores.max(1, keepdims=True)
    nothing = (scores - high < -103.98).reshape(40, 16, 40, 16).all((1, 3))  # half of float32's smallest number
    before = np.tril(np.ones((40, 40), bool), -1)
    for a in range(40):
      assert nothing[a, : count[a]].all()
    possible, left_out = possible + (nothing & before).sum(), left_out + count.sum()
  assert possible > 300 and left_out > 0.8 * possible


def test_a_far_key_that_outweighs_the_bias(problem, skipped):
  """What matters is not the distance: a query that looks for the first key finds it, however steep the slope."""
  encoding = encodings.make("alibi")
  p = problem(800, heads=8, batch=1)
  q, k, v = p.arrays
  q[:, -1], k[:, 0] = 40, 20  # a score of 3,200
  out = p.solve(encoding, {}, block=BLOCK)[0]
  jax.effects_barrier()
  assert all(count[-1] == 0 for count in skipped) and any(count[-2] > 0 for count in skipped)
  np.testing.assert_allclose(out[:, -1], v[:, 0], rtol=1e-6)
  np.testing.assert_allclose(out, p.solve(encoding, {}, plan="dense")[0], atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_key_that_is_no_number_is_not_hidden(problem, skipped, bad):
  p = problem(400, heads=8, batch=1)
  p.solve(encodings.make("alibi"), {}, block=BLOCK)
  jax.effects_barrier()
  assert sum(x.sum() for x in skipped) > 0
  skipped.clear()
  p.arrays[1][:, 0] = bad
  out = p.solve(encodings.make("alibi"), {}, block=BLOCK)[0]
  jax.effects_barrier()
  assert not np.isfinite(out[:, -1]).any() and skipped and all((count == 0).all() for count in skipped)


def test_queries_whose_own_key_is_hidden_keep_their_tiles(problem, skipped):
  """The keys of the second half belong to another document: their queries see far keys alone, which weigh everything."""
  p = problem(400, heads=8, batch=1)
  how = {"q_segments": np.zeros(400, int), "k_segments": np.repeat([0, 1], [160, 240])}
  encoding = encodings.make("alibi")
  p.compare(p.solve(encoding, {}, block=BLOCK, **how), p.exact(encoding, {}, **how), 2e-6)
  jax.effects_barrier()
  assert skipped and all((count[10:] == 0).all() for count in skipped)


@pytest.mark.parametrize("how", [{"causal": False}, {"q_positions": np.arange(200) - 1}, {"k_positions": 2 * np.arange(200)}])
def test_other_positions_keep_every_tile(problem, skipped, how):
  """Not every query sees a key of its own there."""
  p = problem(200, heads=4, batch=1)
  p.solve(encodings.make("alibi"), {}, block=BLOCK, **how)
  jax.effects_barrier()
  assert not skipped


def test_a_bias_of_small_range_is_looked_at_only(problem, skipped):
  p, params = steep(problem, encodings.make("t5"))
  p.solve(encodings.make("t5"), params, block=BLOCK)
  jax.effects_barrier()
  assert skipped and not sum(x.sum() for x in skipped)
