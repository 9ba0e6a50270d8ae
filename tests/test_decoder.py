"""The decoder: counted by hand, causal, blind to padding and neighbours, the same in any order of lengths."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import config as configs
from posx import decoder as module
from posx import encodings, extensions, functional
from posx.decoder import Decoder, from_config
from posx.encodings.base import Encoding

NAMES = list(encodings.CATALOGUE)
USUAL = ("learned", "rope", "kerple", "fire", "shaw", "cope")
"""One for every place to act and every form; tests of the others are marked slow."""
VOCABULARY = 19


def quick(f):
  """A function compiled without expensive optimisations: the tests compile more than they compute."""
  return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})


def make(encoding=None, **changes):
  sizes = {
    "vocab_size": VOCABULARY,
    "num_layers": 2,
    "model_dim": 16,
    "num_heads": 2,
    "mlp_dim": 24,
    "train_length": 32,
    "encoding": encoding or Encoding(),
  }
  return Decoder(**{**sizes, **changes})


def tokens(b=2, t=12, seed=0):
  return np.random.default_rng(seed).integers(0, VOCABULARY, (b, t)).astype(np.int32)


def start(model, seed=0):
  """Parameters, moved off those starts where an encoding does nothing yet."""
  params = quick(model.init)(jax.random.key(seed), jnp.zeros((1, 4), jnp.int32))
  leaves, tree = jax.tree.flatten(params)
  rng = np.random.default_rng(seed)
  return jax.tree.unflatten(tree, [x + 0.1 * np.abs(rng.normal(size=x.shape)).astype(np.float32) for x in leaves])


def logits(model, params, x, **how):
  """Positions and segments stay known, so that the attention may choose its static plans."""
  return np.asarray(quick(lambda params, x: model.apply(params, x, **how))(params, x))


def count(params):
  return sum(x.size for x in jax.tree.leaves(params))


# Sizes.


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("mlp", ["gated", "gelu"])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(0, 0), (2, 0), (1, 6)])
def test_parameters_counted_by_hand(tied, mlp, kv_heads, head_dim):
  """Embedding, layers of two norms, qkv, out, mlp, a last norm, and the output unless tied; no biases anywhere."""
  model = make(num_heads=4, num_kv_heads=kv_heads, head_dim=head_dim, mlp=mlp, mlp_dim=0, tied=tied, num_layers=3)
  d, h, g, c = 16, 4, kv_heads or 4, head_dim or 4
  hidden = 64  # 4 d = 64 (gelu); 8/3 d = 42.7, up to a multiple of 32 (gated)
  layer = 2 * d + d * (h + 2 * g) * c + h * c * d + (2 if mlp == "gated" else 1) * d * hidden + hidden * d
  expected = VOCABULARY * d * (1 if tied else 2) + 3 * layer + d
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
  assert sum(np.prod(x.shape) for x in jax.tree.leaves(shapes)) == expected
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(shapes))


def test_hidden_widths():
  """8/3 d, rounded up to a multiple of 32; 4 d; or as given."""
  assert [make(model_dim=d, mlp_dim=0).hidden_dim for d in (12, 24, 48, 128, 768)] == [32, 64, 128, 352, 2048]
  assert make(model_dim=128, mlp_dim=0, mlp="gelu").hidden_dim == 512
  assert make(mlp_dim=40).hidden_dim == 40


@pytest.mark.parametrize(
  ("name", "own"),
  [("nope", 0), ("rope", 0), ("learned", 32 * 16), ("t5", 2 * 2 * 32), ("kerple", 2 * 2 * 2), ("shaw", 2 * 2 * 33 * 8)],
)
def test_an_encoding_adds_its_own_parameters_for_each_layer(name, own):
  """Of 2 layers and 2 heads of 8 channels; what acts on the input exists once."""
  init = lambda model: jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
  plain, with_it = init(make()), init(make(encodings.make(name)))
  assert sum(np.prod(x.shape) for x in jax.tree.leaves(with_it)) - sum(np.prod(x.shape) for x in jax.tree.leaves(plain)) == own
  shared = init(make(encodings.make(name), share_encoding=True))
  once = own if name == "learned" else own // 2
  assert sum(np.prod(x.shape) for x in jax.tree.leaves(shared)) - sum(np.prod(x.shape) for x in jax.tree.leaves(plain)) == once


def test_shapes_of_shared_and_separate_encodings():
  def init(**how):
    return jax.eval_shape(lambda: make(encodings.make("t5"), **how).init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))["params"]

  assert init()["layers"]["encoding"]["table"].shape == (2, 2, 32)
  shared = init(share_encoding=True)
  assert shared["encoding"]["table"].shape == (2, 32) and "encoding" not in shared["layers"]
  separate = jax.jit(make(encodings.make("t5")).init)(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]["layers"]["encoding"][
    "table"
  ]
  assert float(jnp.abs(separate[0] - separate[1]).max()) > 0.01  # layers start apart


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_heads": 3}, "num_heads=3 does not divide model_dim=16; change one of them or give head_dim"),
    ({"num_heads": 2, "num_kv_heads": 3}, "num_kv_heads=3 does not divide num_heads=2"),
    ({"mlp": "relu"}, "unknown mlp 'relu'; known: 'gated', 'gelu'"),
    ({"encoding": encodings.make("rope", rotary_dim=12)}, "rotary_dim=12 exceeds head_dim=8"),
    ({"plan": "fast"}, "unknown plan 'fast'"),
  ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
  model = make(**changes)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))


def test_a_head_may_be_wider_than_its_share():
  model = make(num_heads=3, head_dim=10)
  assert model.dims.head_dim == 10
  assert logits(model, start(model), tokens()).shape == (2, 12, VOCABULARY)


def test_from_config():
  config = configs.default("rope")
  config.model.update(num_layers=2, model_dim=32, num_heads=4, num_kv_heads=2, window=9, dtype="bfloat16", tied=False)
  config.train.length = 77
  model = from_config(config, 50)
  assert (model.vocab_size, model.num_layers, model.head_shape, model.window, model.train_length) == (50, 2, (4, 2, 8), 9, 77)
  assert (model.dtype, model.tied, model.encoding) == (jnp.bfloat16, False, encodings.make("rope"))
  config.model.window = 0
  assert from_config(config, 50, encodings.make("alibi")).window is None
  assert from_config(config, 50, encodings.make("alibi")).encoding == encodings.make("alibi")


# Losses.


@pytest.mark.parametrize("changes", [{}, {"tied": False, "mlp": "gelu"}, {"dtype": jnp.bfloat16, "num_heads": 4, "num_kv_heads": 2}])
def test_losses_are_the_logits_log_softmax(changes, monkeypatch):
  model = make(encodings.make("alibi"), **changes)
  params, x, targets = start(model), tokens(), tokens(seed=1)
  scores = logits(model, params, x)
  assert scores.dtype == np.float32 and scores.shape == (2, 12, VOCABULARY)
  wide = scores.astype(np.float64)
  expected = np.log(np.exp(wide).sum(-1)) - np.take_along_axis(wide, targets[..., None], -1)[..., 0]

  def losses_and_slope():
    losses = lambda params: model.apply(params, x, targets, method="token_losses")
    _, slope, found = quick(lambda params: (*jax.value_and_grad(lambda p: (losses(p) * jnp.arange(12)).sum())(params), losses(params)))(
      params
    )
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=5e-6)
    return slope

  whole = losses_and_slope()
  monkeypatch.setattr(functional, "LOGITS_AT_ONCE", 5 * VOCABULARY)  # 5 chunks of 5 tokens, the last one short
  for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(losses_and_slope()), strict=True):
    tolerance = 0.02 if model.dtype == jnp.bfloat16 else 2e-5  # each chunk's share of a gradient is rounded
    np.testing.assert_allclose(a, b, atol=tolerance * max(1, float(np.abs(a).max())))


@pytest.mark.parametrize(
  ("name", "changes"),
  [
    ("forgetting", {"num_layers": 3, "tied": False}),
    ("kerple", {"num_layers": 1, "window": 5}),
    pytest.param("learned", {}, marks=pytest.mark.slow),
    pytest.param("dape", {"share_encoding": True}, marks=pytest.mark.slow),
  ],
)
def test_the_last_losses_alone(name, changes):
  model = make(encodings.make(name), num_kv_heads=1, **changes)
  params, x, targets = start(model), tokens(), tokens(seed=1)
  whole, few = (quick(lambda params, n=n: model.apply(params, x, targets, scored=n, method="token_losses"))(params) for n in (0, 3))
  assert few.shape == (2, 3)
  np.testing.assert_allclose(few, whole[:, -3:], atol=2e-6)


def test_the_last_layer_asks_for_the_scored_tokens_only():
  """Tiles of scores: 64 queries in the layers before, 3 (8 with padding) in the last; no logits of the others."""
  model, x = make(encodings.make("alibi"), plan="tiled"), tokens(1, 64)
  params = start(model)
  text = str(jax.make_jaxpr(lambda params: model.apply(params, x, x, scored=3, method="token_losses"))(params))
  assert f"f32[3,{VOCABULARY}]" in text and f"f32[64,{VOCABULARY}]" not in text and "f32[3,24]" in text


@pytest.mark.parametrize(
  ("how", "message"),
  [
    (
      {"tokens": np.full((1, 4), VOCABULARY)},
      "tokens are numbers from 0 to 18, got 19 to 19; use the tokenizer that",
    ),
    ({"tokens": np.array([[0, -1]])}, "tokens are numbers from 0 to 18, got -1 to 0"),
    ({"targets": np.full((1, 4), 300)}, "targets are numbers from 0 to 18, got 300 to 300"),
    ({"targets": np.zeros((1, 4), np.int32), "scored": 5}, "scored=5 counts the last tokens whose losses are asked for: 1 to 4"),
    ({"scored": 2}, "with targets and without a cache"),
  ],
)
def test_arguments_that_do_not_fit_are_refused(how, message):
  with pytest.raises(ValueError, match=message):
    make().apply({}, **{"tokens": np.zeros((1, 4), np.int32), **how})


def test_traced_positions_do_not_tell_the_length():
  """Dynamic NTK would take the number of tokens for the length in play."""
  model = make(extensions.apply(extensions.make("dynamic_ntk"), encodings.make("rope")))
  x = tokens(1, 4)
  init = lambda at, **how: model.init(jax.random.key(0), x, positions=at, **how)
  with pytest.raises(ValueError, match=r"depends on the length in play, which traced positions do not tell; pass"):
    jax.eval_shape(init, jnp.arange(4))
  jax.eval_shape(lambda at: init(at, constants=model.constants(100)), jnp.arange(96, 100))


def test_logits_of_the_whole_sequence_never_exist(monkeypatch):
  monkeypatch.setattr(functional, "LOGITS_AT_ONCE", 5 * VOCABULARY)
  model, x = make(), tokens()
  params = start(model)
  loss = lambda params: model.apply(params, x, x, method="token_losses").sum()
  text = str(jax.make_jaxpr(jax.value_and_grad(loss))(params))
  assert f"f32[24,{VOCABULARY}]" not in text and f"f32[5,{VOCABULARY}]" in text
  whole = str(jax.make_jaxpr(lambda params: model.apply(params, x))(params))
  assert f"f32[24,{VOCABULARY}]" in whole


def test_bfloat16_is_near_float32():
  exact, rough = make(encodings.make("rope")), make(encodings.make("rope"), dtype=jnp.bfloat16)
  params = start(exact)
  a, b = logits(exact, params, tokens()), logits(rough, params, tokens())
  assert 1e-5 < np.abs(a - b).max() < 0.05 * np.abs(a).max()


# The same weights under another encoding.


def test_the_same_parameters_serve_another_encoding():
  model = make(encodings.make("rope"))
  params = start(model)
  for other in (
    encodings.make("alibi"),
    encodings.make("nope"),
    extensions.apply(extensions.make("pi", factor=4.0), encodings.make("rope")),
  ):
    found = logits(dataclasses.replace(model, encoding=other), params, tokens())
    assert np.abs(found - logits(model, params, tokens())).max() > 1e-4


LISTS = {"short_factors": (1.0, 1.5, 2.0, 2.5), "long_factors": (1.0, 2.0, 3.0, 4.0)}
FREQUENCIES = [
  ("pi", {"factor": 4.0}), ("ntk", {"factor": 4.0}), ("dynamic_ntk", {}), ("ntk_by_parts", {"factor": 4.0}), ("yarn", {"factor": 4.0}),
  ("dynamic_yarn", {}), ("longrope", {"factor": 4.0, **LISTS}), ("llama3", {"factor": 4.0}),
  ("abf", {"base": 5e4}), ("proportional", {"partial": 0.5}),
]  # fmt: skip


def test_every_frequency_extension_of_rope_runs_in_one_executable():
  """Given as an argument, the constants give what the extended encoding gives, and nothing is compiled again."""
  rope = encodings.make("rope")
  model = make(rope)
  params, x = start(model), tokens(1, 40)
  run = quick(lambda params, x, constants: model.apply(params, x, constants=constants))
  plain = np.asarray(run(params, x, jax.tree.map(jnp.asarray, model.constants(40))))
  accepted = {n for n, cls in extensions.CATALOGUE.items() if cls.accepts(rope)}
  assert {n for n, _ in FREQUENCIES} <= accepted
  for name, fields in FREQUENCIES:
    extended = dataclasses.replace(model, encoding=extensions.apply(extensions.make(name, **fields), rope))
    found = run(params, x, jax.tree.map(jnp.asarray, extended.constants(40)))
    assert np.abs(found - plain).max() > 1e-5, name
    if name in ("yarn", "dynamic_ntk", "longrope"):
      np.testing.assert_allclose(found, logits(extended, params, x), atol=2e-6, err_msg=name)
    assert extended.encoding.program() == rope.program()
  assert run._cache_size() == 1


# Invariants.


@pytest.mark.parametrize("name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
def test_the_future_and_the_neighbours_do_not_matter(name):
  """A later token changes no earlier logit; a row padded on the left, or packed behind another document, is as it is alone."""
  model = make(encodings.make(name))
  params, x = start(model), tokens(1, 12)
  run = quick(lambda x, positions, segments: model.apply(params, x, positions=positions, segments=segments))
  at, one = np.arange(12, dtype=np.int32), np.ones((1, 12), np.int32)

  changed = x.copy()
  changed[0, 7] = (x[0, 7] + 1) % VOCABULARY
  before, after = np.asarray(run(x, at, one)), np.asarray(run(changed, at, one))
  np.testing.assert_array_equal(before[:, :7], after[:, :7])
  assert np.abs(before[:, 7:] - after[:, 7:]).max(-1).min() > 0

  alone = np.asarray(run(x, at, one))[:, :8]
  for positions, segments in (([0] * 4 + list(range(8)), [0] * 4 + [1] * 8), (list(range(4)) + list(range(8)), [1] * 4 + [2] * 8)):
    for junk in (tokens(1, 4, seed=1), tokens(1, 4, seed=2)):
      row = np.concatenate([junk, x[:, :8]], axis=1)
      found = run(row, np.asarray(positions, np.int32), np.asarray([segments], np.int32))
      np.testing.assert_allclose(found[:, 4:], alone, atol=1e-5)


def test_known_positions_give_what_traced_ones_give():
  model = make(encodings.make("rope"), num_kv_heads=1)
  params, x = start(model), tokens(2, 20)
  traced = quick(lambda x, at: model.apply(params, x, positions=at))(x, np.arange(20, dtype=np.int32))
  for positions in (None, np.arange(20), jnp.arange(20), np.stack([np.arange(20)] * 2)):
    np.testing.assert_allclose(logits(model, params, x, positions=positions), traced, atol=3e-6)


@pytest.mark.parametrize("name", ["rope", "fire"])
def test_short_long_short_is_bitwise_the_same(name):
  encoding = encodings.make(name)
  if name == "rope":
    encoding = extensions.apply(extensions.make("dynamic_ntk"), encoding)
  model = make(encoding)
  params = start(model)
  run = jax.jit(model.apply)
  first, _, third = (np.asarray(run(params, tokens(1, t))) for t in (8, 70, 8))
  np.testing.assert_array_equal(first, third)
  np.testing.assert_array_equal(first, np.asarray(jax.jit(make(encoding).apply)(params, tokens(1, 8))))


def test_one_layer_without_positions_sees_a_set():
  """Without an encoding a causal layer knows a token's past as a multiset: the last logit of one layer is blind to the order
  of the tokens before it. Two layers are not: the mask gives each of those tokens another past."""
  x = tokens(1, 9)
  shuffled = np.concatenate([x[:, [5, 2, 7, 0, 3, 1, 6, 4]], x[:, 8:]], axis=1)
  for layers, encoding, blind in ((1, Encoding(), True), (2, Encoding(), False), (1, encodings.make("rope"), False)):
    model = make(encoding, num_layers=layers)
    params = start(model)
    a, b = logits(model, params, x)[:, -1], logits(model, params, shuffled)[:, -1]
    assert (np.abs(a - b).max() < 1e-5) == blind, (layers, encoding)


def test_without_positions_and_mask_the_outputs_are_permuted_with_the_tokens():
  """NoPE at equal positions: everyone sees everyone, and a permutation of tokens permutes the logits."""
  model = make(num_layers=2)
  params, x = start(model), tokens(1, 9)
  order = np.array([5, 2, 7, 0, 3, 8, 1, 6, 4])
  same = np.zeros(9, np.int32)
  np.testing.assert_allclose(
    logits(model, params, x, positions=same)[:, order], logits(model, params, x[:, order], positions=same), atol=1e-5
  )


def test_a_learned_table_refuses_what_lies_beyond_it_by_name():
  model = make(encodings.make("learned"))
  params = start(model)
  assert logits(model, params, tokens(1, 32)).shape == (1, 32, VOCABULARY)
  message = "a learned table of 32 rows cannot serve 33 positions; apply an extension: 'truncate'"
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(model.apply, params, tokens(1, 33))
  with pytest.raises(ValueError, match="cannot serve 33 positions"):
    model.apply(params, tokens(1, 4), positions=np.arange(29, 33))
  stretched = dataclasses.replace(model, encoding=extensions.apply(extensions.make("interpolate"), model.encoding))
  assert np.isfinite(logits(stretched, params, tokens(1, 64))).all()


def test_a_window_limits_what_a_layer_sees():
  """Window W, L layers: a token reaches at most L (W - 1) tokens ahead."""
  model = make(encodings.make("alibi"), window=4)
  params, x = start(model), tokens(1, 16)
  changed = x.copy()
  changed[0, 2] = (x[0, 2] + 1) % VOCABULARY
  moved = np.abs(logits(model, params, x) - logits(model, params, changed)).max((0, 2)) > 0
  assert moved.tolist() == [False] * 2 + [True] * (2 * 3 + 1) + [False] * 7


def test_a_few_layers_without_a_loop_are_the_loop(monkeypatch):
  model, x = make(num_layers=3), tokens()
  params = model.init(jax.random.key(1), x)
  slope = lambda: quick(jax.value_and_grad(lambda p: model.apply(p, x[:, :-1], x[:, 1:]).sum()))(params)
  loops = lambda: str(jax.make_jaxpr(lambda p: model.apply(p, x))(params)).count("unroll=3")
  unrolled = slope()
  assert loops() == 1
  monkeypatch.setattr(module, "UNROLLED_LAYERS", 2)
  jax.clear_caches()
  assert loops() == 0
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), unrolled, slope())
