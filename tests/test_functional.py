"""SwiGLU and the loss in chunks, by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from posx import functional

VOCABULARY = 19


def test_the_gradient_of_swiglu_is_its_own():
  x = jax.random.normal(jax.random.key(0), (5, 14)) * 4
  plain = lambda x: x[:, :7] / (1 + jnp.exp(-x[:, :7])) * x[:, 7:]
  slope = lambda f: jax.grad(lambda x: (f(x) ** 2).sum())(x)
  np.testing.assert_allclose(slope(functional.swiglu), slope(plain), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(functional.swiglu(x), plain(x), rtol=1e-5, atol=1e-6)


def test_gradients_of_chunks_are_summed_in_float32(monkeypatch):
  """600 chunks of one token each add 1/19 - 1 to the gradient of the target's column; in bfloat16 the sum would stop near 256."""
  monkeypatch.setattr(functional, "LOGITS_AT_ONCE", VOCABULARY)
  x, targets = jnp.ones((600, 4), jnp.bfloat16), jnp.zeros(600, jnp.int32)
  slope = jax.jit(jax.grad(lambda out: functional.token_losses(x, out, targets).sum()))(jnp.zeros((4, VOCABULARY), jnp.float32))
  expected = 600 * (1 / VOCABULARY - np.eye(1, VOCABULARY))
  np.testing.assert_allclose(slope, np.broadcast_to(expected, slope.shape), rtol=0.01)
