"""Sizes that the model, its evaluation and estimates of both must agree on; no JAX."""

from __future__ import annotations

LOGITS_AT_ONCE = 1 << 23
"""Losses are computed for so many tokens at a time that tokens x vocabulary stays below this."""

TOKENS_AT_ONCE = 16384
"""Windows are evaluated together up to so many tokens; longer windows run one at a time, on each device."""

UNROLLED_LAYERS = 4
"""Up to so many layers are a program without a loop over them, which would stack what the gradient needs, fill the stacks and copy
them: an eighth of a small model's training step. Deeper models would take too long to compile."""


def hidden_dim(mlp: str, model_dim: int) -> int:
  """The hidden width of an MLP that is not told one: 8/3 d up to a multiple of 32 (gated), or 4 d ('gelu').

  Example:
    >>> hidden_dim("gated", 96), hidden_dim("gelu", 96)
    (256, 384)
  """
  return 4 * model_dim if mlp == "gelu" else -(-8 * model_dim // 96) * 32
