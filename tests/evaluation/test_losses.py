"""Losses of windows: equal to the model applied window by window, whatever the batching; extensions share executables."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings, extensions, runtime
from posx.decoder import Decoder
from posx.evaluation import losses as module
from posx.evaluation import nonoverlapping, place, sliding
from posx.evaluation.losses import window_losses
from posx.evaluation.protocols import measure


def small(encoding):
  return Decoder(vocab_size=11, num_layers=1, model_dim=16, num_heads=2, train_length=8, encoding=encoding)


@pytest.fixture(scope="module")
def tokens():
  return np.random.default_rng(0).integers(0, 11, (3, 21)).astype(np.int32)


@pytest.fixture(scope="module")
def params():
  return jax.jit(small(encodings.make("rope")).init)(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))


def test_equal_to_applying_the_model_window_by_window(tokens, params, monkeypatch):
  """Batches of 1, 2, 7 and all 15 windows; the last batch may be short."""
  model, windows = small(encodings.make("rope")), place(20, 8, 3)
  apply, expected = jax.jit(model.apply), np.zeros((3, len(windows.starts), 8))
  for d in range(3):
    for w, s in enumerate(windows.starts):
      logits = np.asarray(apply(params, tokens[d : d + 1, s : s + 8]), np.float64)[0]
      expected[d, w] = np.log(np.exp(logits).sum(1)) - logits[np.arange(8), tokens[d, s + 1 : s + 9]]
  for at_once in (1, 16, 60, 10_000):
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", at_once)
    done = []
    found = window_losses(model, params, tokens, windows, done.append)
    assert found.dtype == np.float32 and sum(done) == found.size
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_extensions_that_differ_in_numbers_share_an_executable(tokens, params):
  windows = place(20, 20, 20)
  rope = encodings.make("rope")
  variants = [rope, *(extensions.apply(extensions.make(n, factor=f), rope) for n, f in (("pi", 2.5), ("ntk", 2.5), ("yarn", 2.5)))]
  variants.append(extensions.apply(extensions.make("dynamic_ntk"), rope))
  jax.clear_caches()
  counter = runtime.count_compilations()
  results = [window_losses(small(e), params, tokens, windows) for e in variants]
  assert counter.programs == 1  # nothing small beside it either
  for encoding, found in zip(variants, results, strict=True):
    model = small(encoding)
    expected = jax.jit(lambda m=model: m.apply(params, tokens[:, :-1], tokens[:, 1:], method="token_losses"))()
    np.testing.assert_allclose(found[:, 0], expected, atol=2e-6)
  assert all(np.abs(a - results[0]).max() > 1e-5 for a in results[1:])


def test_the_last_targets_alone(tokens, params):
  """What is not asked for is nan; what is, is as it was, for every stride."""
  model = small(encodings.make("rope"))
  for windows, needed in ((place(20, 16, 16, 5), 5), (place(20, 8, 2, 4), 2)):
    assert windows.needed == needed
    whole = window_losses(model, params, tokens, windows)
    few = window_losses(model, params, tokens, windows, scored=needed)
    assert np.isnan(few[..., :-needed]).all()
    np.testing.assert_allclose(few[..., -needed:], whole[..., -needed:], atol=2e-6)
    np.testing.assert_allclose(sliding(few, windows), sliding(whole, windows), atol=2e-6)
  assert place(20, 8, 8).needed == 8


def test_a_length_without_positions_is_refused_before_anything_runs(tokens, params):
  with pytest.raises(ValueError, match=r"learned table of 8 rows cannot serve 20 positions.*'truncate'.*'interpolate'"):
    window_losses(small(encodings.make("learned")), params, tokens, place(20, 20, 20))


class Counter(Decoder):
  """Predicts the number after the current one, with great confidence; test only."""

  def token_losses(self, tokens, targets, **kwargs):
    logits = 50.0 * jax.nn.one_hot((tokens + 1) % self.vocab_size, self.vocab_size)
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]


def test_a_model_that_counts():
  """Perplexity 1 on 0, 1, 2, ...; huge on 5, 5, 5."""
  model = Counter(vocab_size=101, num_layers=1, model_dim=16, num_heads=2)
  windows = place(40, 8, 8)
  counting = window_losses(model, {}, np.arange(41, dtype=np.int32)[None], windows)
  assert measure(nonoverlapping(counting, windows)).perplexity == pytest.approx(1)
  stuck = window_losses(model, {}, np.full((1, 41), 5, np.int32), windows)
  assert measure(nonoverlapping(stuck, windows)).perplexity > 1e20


def test_a_window_of_attention_changes_long_windows_only(tokens, params):
  model = small(encodings.make("rope"))
  narrow = dataclasses.replace(model, window=8)
  np.testing.assert_array_equal(
    window_losses(model, params, tokens, place(20, 8, 8)), window_losses(narrow, params, tokens, place(20, 8, 8))
  )
  full, limited = (window_losses(m, params, tokens, place(20, 20, 20)) for m in (model, narrow))
  np.testing.assert_allclose(full[..., :8], limited[..., :8], atol=2e-6)
  assert (np.abs(full - limited)[..., 8:] > 1e-6).any()
