"""AdamW with a linear warm-up, a cosine that ends at the last step, and weight decay chosen by the name of a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from posx.checkpoint import path_text
from posx.config import ConfigDict

DECAYED = ("kernel", "embedding", "output")
"""Names of the parameters that decay, as in GPT-2's public re-trainings: matrices and the token embedding. Norm scales and
biases do not, nor does anything an encoding learns: a decayed slope or bias table would be pulled towards no position."""


def learning_rate(step: ArrayLike, train: ConfigDict) -> jax.Array:
  """Learning rate of update `step` (0 is the first): linear up to the peak, then a cosine down to the final one.

  The last warm-up step has the peak, the last step exactly `final_learning_rate`.

  Args:
    step: updates done before.
    train: the section `train` of a configuration.
  """
  peak, final = train.learning_rate, train.final_learning_rate
  step = jnp.asarray(step, jnp.float32)
  start = max(train.warmup_steps - 1, 0)
  way = train.steps - 1 - start
  progress = jnp.clip((step - start) / way, 0.0, 1.0) if way else jnp.ones_like(step)
  cosine = final + 0.5 * (peak - final) * (1.0 + jnp.cos(jnp.pi * progress))
  return jnp.where(step < train.warmup_steps, peak * (step + 1) / max(train.warmup_steps, 1), cosine)


def of_encoding(path: Sequence[str]) -> bool:
  """Whether the parameter at this path was made by the encoding."""
  return any("encoding" in part for part in path)


def decays(path: Sequence[str]) -> bool:
  """Whether the parameter at this path decays."""
  return path[-1] in DECAYED and not of_encoding(path)


def by_path(test: Any, params: Any) -> Any:
  """A tree like `params` of test(path), e.g. of `decays`."""
  return jax.tree_util.tree_map_with_path(lambda path, _: test(path_text(path).split("/")), params)


def make(train: ConfigDict) -> optax.GradientTransformation:
  """The optimiser of a configuration: clip by the global norm, Adam, decoupled decay, the schedule."""
  adamw = optax.adamw(
    lambda step: learning_rate(step, train),
    train.b1,
    train.b2,
    weight_decay=train.weight_decay,
    mask=lambda params: by_path(decays, params),
  )
  return optax.chain(optax.clip_by_global_norm(train.clip_norm), adamw) if train.clip_norm else adamw
