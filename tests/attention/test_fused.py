"""The plan of library kernels: equal to the textbook where it serves, and refused with the reason where it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.attention import attend, fused, token_features
from posx.encodings.base import Dims, Encoding
from posx.encodings.combine import Chain

B, T, H, C = 2, 72, 4, 24  # 1 / sqrt(24) has no short binary form
DIMS = Dims(H, C, H * C, T)
SEPARABLE = sorted(name for name, kind in encodings.CATALOGUE.items() if kind.separable is not Encoding.separable)


def setting(name, dtype=jnp.float32, groups=H, start=0):
  keys = jax.random.split(jax.random.key(3), 5)
  q, k, v = (jax.random.normal(key, (B, T, n, C), dtype) for key, n in zip(keys, (H, groups, groups), strict=False))
  chain = [encodings.make(part) for part in name.split(" + ")]
  encoding = Chain(tuple(chain)) if len(chain) > 1 else chain[0]
  params = encoding.init(keys[3], DIMS)
  positions = start + np.arange(T, dtype=np.int32)
  how = {"q_positions": positions, "k_positions": positions, "encoding": encoding, "dims": DIMS}
  x = jax.random.normal(keys[4], (B, T, DIMS.model_dim))
  return q, k, v, params, how, x


def run(q, k, v, params, how, x, plan, **more):
  how = {**how, "params": params, "plan": plan, **more}
  if how["encoding"].uses("features"):
    constants = how["encoding"].constants(DIMS, T)
    made, _ = token_features(x, positions=how["q_positions"], encoding=how["encoding"], params=params, constants=constants)
    how |= {"q_features": made, "k_features": made}
  return attend(q, k, v, **how)


def test_some_encodings_are_separable():
  assert {"alibi", "forgetting", "cable"} <= set(SEPARABLE)


@pytest.mark.parametrize("name", ["nope", "rope", *SEPARABLE, "rope + alibi", "alibi + forgetting"])
@pytest.mark.parametrize("groups", [H, 2])
def test_equals_the_textbook_with_gradients(name, groups):
  q, k, v, params, how, x = setting(name, groups=groups, start=5)
  weight = jax.random.normal(jax.random.key(9), (B, T, H, C))

  def of(plan):
    def loss(*args):
      out = run(*args[:4], how, args[4], plan)
      return (out * weight).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3, 4), has_aux=True))(q, k, v, params, x)
    return out, gradients

  ours, theirs = of("fused"), of("dense")
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    assert float(jnp.abs(a - b).max()) <= 3e-5 * max(1.0, float(jnp.abs(b).max()))


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_a_window_counts_the_query(name):
  q, k, v, params, how, x = setting(name)
  ours, theirs = (run(q, k, v, params, how, x, plan, window=7) for plan in ("fused", "dense"))
  np.testing.assert_allclose(ours, theirs, atol=3e-6)


@pytest.mark.parametrize("name", SEPARABLE)
def test_bias_in_bfloat16_channels_is_as_good_as_float32_far_out(name):
  """At positions of 30,000 a channel of 8 bits would be off by 64 tokens."""
  q, k, v, params, how, x = setting(name, jnp.bfloat16, start=30_000)
  ours = run(q, k, v, params, how, x, "fused").astype(jnp.float32)
  exact = run(*(a.astype(jnp.float32) for a in (q, k, v)), params, how, x, "dense")
  plain = run(q, k, v, {}, {**how, "encoding": Encoding()}, x, "fused").astype(jnp.float32)
  error, without = float(jnp.abs(ours - exact).max()), float(jnp.abs(plain - exact).max())
  assert error <= 0.02  # outputs of size 1 in bfloat16 are spaced by 0.008
  assert without > 5 * error


def test_pieces_add_up():
  x = jnp.asarray([30_001.0, -0.1234567, 3e-5, 65_537.0])
  pieces = [piece.astype(jnp.float32) for piece in fused._pieces(x, 3, jnp.bfloat16)]
  np.testing.assert_allclose(sum(pieces), x, rtol=2**-22)
  assert abs(float(pieces[0][0]) - 30_001) > 1


@pytest.mark.parametrize(
  ("name", "more", "reason"),
  [
    ("t5", {}, "T5 has a score hook that is no product"),
    ("alibi + t5", {}, "Chain has a score hook that is no product"),
    ("alibi", {"causal": False}, "for keys behind the query only"),
    ("alibi", {"dtype": jnp.float16}, "float16 ends at 65,504"),
    ("rope", {"q_segments": np.zeros(T, np.int32), "k_segments": np.zeros(T, np.int32)}, "documents are packed"),
    ("rope", {"k_positions": np.arange(1, T + 1)}, "not the same consecutive ones"),
    ("rope", {"q_positions": np.arange(T)[::-1], "k_positions": np.arange(T)[::-1]}, "not the same consecutive ones"),
  ],
)
def test_what_it_does_not_serve_is_refused_with_the_reason(name, more, reason):
  more = dict(more)
  q, k, v, params, how, x = setting(name, more.pop("dtype", jnp.float32))
  with pytest.raises(ValueError, match=f"plan='fused' does not serve this: .*{reason}.*; take plan='auto' or 'tiled'"):
    run(q, k, v, params, {**how, **more}, x, "fused")


def test_auto_takes_it_on_an_accelerator_only(monkeypatch):
  q, k, v, params, how, x = setting("alibi", jnp.bfloat16)
  taken = []
  monkeypatch.setattr(fused, "attention", lambda *args, **how: taken.append("fused") or args[0])
  run(q, k, v, params, how, x, "auto")
  assert taken == []
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  run(q, k, v, params, how, x, "auto")
  run(*(a.astype(jnp.float32) for a in (q, k, v)), params, how, x, "auto")
  assert taken == ["fused"]
