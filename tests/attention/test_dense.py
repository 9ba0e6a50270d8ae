"""The textbook plan, which is the oracle of the others, against a transcription in NumPy float64; and what may be seen by whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.attention import attend, bias_matrix
from posx.attention.visibility import visible
from posx.encodings.base import Dims, Encoding


def textbook(q, k, v, bias, seen):
  """softmax(q k^T / sqrt(c) + bias) v over what is seen, float64; q [b t h c], k and v [b u g c], bias [h t u], seen [b t u]."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  b, t, h, c = q.shape
  out = np.zeros((b, t, h, v.shape[-1]))
  for row in range(b):
    for head in range(h):
      group = head // (h // k.shape[2])
      for i in range(t):
        j = np.flatnonzero(seen[row, i])
        if len(j):
          s = k[row, j, group] @ q[row, i, head] / np.sqrt(c) + bias[head, i, j]
          w = np.exp(s - s.max())
          out[row, i, head] = w / w.sum() @ v[row, j, group]
  return out


def numbers(b, t, u, h, g, c=8, seed=0):
  rng = np.random.default_rng(seed)
  return tuple(rng.normal(size=s).astype(np.float32) for s in ((b, t, h, c), (b, u, g, c), (b, u, g, c)))


def seen_by_definition(q_pos, k_pos, causal, window, q_seg, k_seg):
  seen = np.zeros((len(q_pos), len(k_pos)), bool)
  for i, p in enumerate(q_pos):
    for j, r in enumerate(k_pos):
      here = (r <= p or not causal) and (window is None or abs(p - r) <= window - 1)
      seen[i, j] = here and (q_seg is None or q_seg[i] == k_seg[j])
  return seen


class Steps(Encoding):
  """Adds minus the distance, to every head; test only."""

  def bias(self, p, distance):
    return jnp.asarray(distance, jnp.float32)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("g", [1, 2, 4])
def test_against_numpy(causal, window, segmented, g):
  q, k, v = numbers(2, 7, 9, 4, g)
  q_pos, k_pos = np.array([2, 3, 4, 5, 6, 7, 8]), np.array([0, 1, 2, 8, 4, 5, 6, 7, 3])
  q_seg, k_seg = (np.array([1, 1, 1, 1, 2, 2, 2]), np.array([1, 1, 1, 2, 1, 1, 2, 2, 1])) if segmented else (None, None)
  slopes = np.array([0.25, 0.0625, 0.015625, 0.00390625])
  bias = -slopes[:, None, None] * np.abs(q_pos[:, None] - k_pos)
  seen = np.stack([seen_by_definition(q_pos, k_pos, causal, window, q_seg, k_seg)] * 2)
  out = attend(
    *map(jnp.asarray, (q, k, v)), q_positions=q_pos, k_positions=k_pos, encoding=encodings.make("alibi"), params={}, causal=causal,
    window=window, q_segments=q_seg, k_segments=k_seg, plan="dense",
  )  # fmt: skip
  np.testing.assert_allclose(out, textbook(q, k, v, bias, seen), atol=2e-6)


def test_rows_of_a_batch_have_their_own_positions():
  q, k, v = numbers(2, 5, 5, 2, 2)
  pos = np.array([[0, 1, 2, 3, 4], [9, 7, 7, 0, 3]])
  out = attend(*map(jnp.asarray, (q, k, v)), q_positions=pos, k_positions=pos, encoding=Steps(), params={}, plan="dense")
  for row in range(2):
    bias = np.broadcast_to(pos[row][:, None] - pos[row], (2, 5, 5))
    seen = seen_by_definition(pos[row], pos[row], True, None, None, None)[None]
    np.testing.assert_allclose(out[row : row + 1], textbook(q[row : row + 1], k[row : row + 1], v[row : row + 1], bias, seen), atol=2e-6)


@pytest.mark.parametrize("plan", ["dense", "tiled"])
def test_the_bias_comes_after_the_scale(plan):
  """c = 4, so the scale is 1/2: q = [10, 0, 0, 0], keys = rows of the identity, bias [0, 1, 2]: softmax([5, 1, 2])."""
  q = jnp.array([10.0, 0, 0, 0]).reshape(1, 1, 1, 4)
  k = jnp.eye(3, 4).reshape(1, 3, 1, 4)
  # positions so that the distances i - j are 0, 1, 2
  out = attend(q, k, k, q_positions=jnp.array([2]), k_positions=jnp.array([2, 1, 0]), encoding=Steps(), params={}, plan=plan, block=(8, 8))
  e = np.exp([5.0, 1, 2])
  np.testing.assert_allclose(out[0, 0, 0, :3], e / e.sum(), rtol=1e-6)


@pytest.mark.parametrize("plan", ["dense", "tiled"])
def test_alibi_keeps_its_slope_far_out_in_bfloat16(plan):
  """slope 1/2 (head 0 of 8) at 4,096 keys: neighbours' weights have the ratio exp(-1/2), near and far."""
  u = 4096
  q = jnp.zeros((1, 1, 8, 4), jnp.bfloat16)
  eye = jnp.zeros((1, u, 8, 4), jnp.bfloat16)
  for far in (u - 1, 1000):
    # a window of two keys at distance d, d + 1: what remains of the weights is their ratio
    pair = np.array([far - 60, far - 61])
    v = eye.at[0, pair[0], :, 0].set(1).at[0, pair[1], :, 1].set(1)
    segments = np.zeros(u, np.int32)
    segments[pair] = 1
    out = attend(
      q, eye, v, q_positions=jnp.array([far + 3000]), k_positions=jnp.arange(u), q_segments=jnp.array([1]), k_segments=segments,
      encoding=encodings.make("alibi"), params={}, plan=plan, block=(8, 256),
    )  # fmt: skip
    near, next_ = np.asarray(out[0, 0, 0, :2], np.float64)
    assert next_ / near == pytest.approx(np.exp(-0.5), rel=0.01)
    assert near + next_ == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(("plan", "block"), [("dense", None), ("tiled", None), ("tiled", (8, 8))])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_query_that_sees_nothing_gives_0_and_finite_gradients(plan, block, dtype):
  q, k, v = (jnp.asarray(100 * x, dtype) for x in numbers(1, 9, 9, 2, 2))
  positions = {"q_positions": np.arange(9), "k_positions": np.arange(9) + 4}

  def loss(q, k, v, params):
    out = attend(q, k, v, **positions, encoding=encodings.make("kerple"), params=params, plan=plan, block=block)
    return (out.astype(jnp.float32) * 100).sum(), out

  params = {"a": jnp.array([0.5, 1.5]), "p": jnp.array([1.0, 0.1])}
  grads, out = jax.grad(loss, (0, 1, 2, 3), has_aux=True)(q, k, v, params)
  assert not np.asarray(out[:, :4], np.float32).any() and np.isfinite(np.asarray(out, np.float32)).all()
  assert np.asarray(out[:, 4:], np.float32).any((0, 2, 3)).all()
  assert all(np.isfinite(np.asarray(g, np.float32)).all() for g in jax.tree.leaves(grads))
  assert not np.asarray(grads[0][:, :4], np.float32).any()


def test_a_window_includes_the_query_itself():
  seen = np.asarray(visible(jnp.arange(8), jnp.arange(8), window=4))
  assert seen.sum(1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4]
  assert seen[7].tolist() == [False] * 4 + [True] * 4
  both = np.asarray(visible(jnp.arange(8), jnp.arange(8), causal=False, window=4))
  assert both.sum(1).tolist() == [4, 5, 6, 7, 7, 6, 5, 4]


@pytest.mark.parametrize(("plan", "block"), [("dense", None), ("tiled", None), ("tiled", (8, 8))])
def test_what_is_visible_is_what_is_averaged(plan, block):
  """Equal scores average the visible values; one-hot values show which they are, so counts follow from the output."""
  v = jnp.eye(8).reshape(1, 8, 1, 8)
  zero = jnp.zeros((1, 8, 1, 8))
  how = {"q_positions": np.arange(8), "k_positions": np.arange(8), "encoding": Encoding(), "params": {}, "plan": plan, "block": block}
  out = np.asarray(attend(zero, zero, v, window=4, **how))[0, :, 0]
  np.testing.assert_allclose(1 / out.max(1), [1, 2, 3, 4, 4, 4, 4, 4], rtol=1e-6)
  segments = np.array([1, 1, 1, 2, 2, 0, 0, 1])
  out = np.asarray(attend(zero, zero, v, q_segments=segments, k_segments=segments, **how))[0, :, 0]
  np.testing.assert_allclose(1 / out.max(1), [1, 2, 3, 1, 2, 1, 2, 4], rtol=1e-6)


@pytest.mark.parametrize("plan", ["dense", "tiled"])
def test_chunked_prefill_sees_what_came_before(plan):
  """3 keys cached, 2 new ones: the new queries see keys 0 .. 3 and 0 .. 4."""
  q, k, v = numbers(1, 5, 5, 2, 2)
  how = {"encoding": encodings.make("rope"), "params": {}, "plan": plan, "block": (8, 8)}
  whole = attend(*map(jnp.asarray, (q, k, v)), q_positions=np.arange(5), k_positions=np.arange(5), **how)
  new = attend(jnp.asarray(q[:, 3:]), jnp.asarray(k), jnp.asarray(v), q_positions=np.arange(3, 5), k_positions=np.arange(5), **how)
  np.testing.assert_allclose(new, whole[:, 3:], atol=2e-6)


def test_bias_matrix_is_the_definition():
  q_pos, k_pos = np.array([4, 0, 9]), np.array([4, 3, 2, 9])
  slopes = np.array([0.0625, 0.00390625, 0.25])
  expected = -slopes[:, None, None] * np.abs(q_pos[:, None] - k_pos)
  found = bias_matrix(encodings.make("alibi"), {}, q_pos, k_pos, 3)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  one = bias_matrix(encodings.make("alibi"), {}, [4], [0, 1, 2, 3, 4], 1)
  np.testing.assert_allclose(one[0, 0], np.array([-4, -3, -2, -1, 0]) / 256, rtol=1e-6)
  assert not bias_matrix(Encoding(), {}, [0, 1], [0, 1, 2], 2).any()


def test_bias_matrix_of_learned_biases():
  dims = Dims(2, 8, 16, 64)
  t5 = encodings.make("t5")
  params = t5.init(jax.random.key(0), dims)
  found = bias_matrix(t5, params, jnp.arange(20), jnp.arange(20), 2)
  np.testing.assert_array_equal(found[1, 19, 4], params["table"][1, 15])
  np.testing.assert_array_equal(found[0, 3, 9], params["table"][0, 0])  # causal: the future has distance 0


@pytest.mark.parametrize("name", ["shaw", "cope"])
def test_bias_matrix_refuses_what_depends_on_content(name):
  encoding = encodings.make(name)
  with pytest.raises(ValueError, match="content-free encodings only"):
    bias_matrix(encoding, encoding.init(jax.random.key(0), Dims(2, 8, 16, 64)), [0, 1], [0, 1], 2)
