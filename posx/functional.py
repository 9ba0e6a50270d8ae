"""What the decoder computes outside attention that JAX's own rules would make large: its SwiGLU and its loss; no Flax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from posx.sizes import LOGITS_AT_ONCE


@jax.custom_vjp
def swiglu(x):
  """silu(gate) y for x = [gate, y]. JAX's own rule keeps six arrays for the gradient, this one x."""
  gate, y = jnp.split(x, 2, axis=-1)
  return jax.nn.silu(gate) * y


def _swiglu_gradient(x, d):
  gate, y = jnp.split(x, 2, axis=-1)
  share = jax.nn.sigmoid(gate)
  return (jnp.concatenate([d * y * share * (1 + gate * (1 - share)), d * gate * share], axis=-1),)


swiglu.defvjp(lambda x: (swiglu(x), x), _swiglu_gradient)


def token_losses(x, out, targets):
  """-log softmax(x out)[target] for flat tokens, a chunk at a time so that all logits never exist at once."""
  n = x.shape[0]
  chunks = -(-n * out.shape[1] // LOGITS_AT_ONCE)
  size = -(-n // chunks)

  def chunk(x, targets):
    # cast here, so that the gradients of the chunks are summed in float32
    logits = jnp.matmul(x, out.astype(x.dtype), preferred_element_type=jnp.float32)
    picked = jnp.take_along_axis(logits, targets[:, None], axis=1, mode="clip")[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - picked

  if chunks == 1:
    return chunk(x, targets)
  pad = chunks * size - n
  x, targets = jnp.pad(x, ((0, pad), (0, 0))), jnp.pad(targets, (0, pad))
  cut = (x.reshape(chunks, size, -1), targets.reshape(chunks, size))
  return lax.map(lambda each: jax.checkpoint(chunk)(*each), cut).reshape(-1)[:n]
