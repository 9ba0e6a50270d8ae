"""What a model makes of answers that are known: log-probability, rank and exact match under teacher forcing.

An answer is read with its own beginning before it. All of its tokens come first in rank exactly if greedy decoding would
give the whole answer, so exact match needs no decoding.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posx import positions as drawing
from posx.decoder import Decoder
from posx.errors import UserError
from posx.evaluation import rows
from posx.evaluation.protocols import measure
from posx.sizes import TOKENS_AT_ONCE


@dataclasses.dataclass(frozen=True)
class Scores:
  """Of every answer token.

  Attributes:
    losses: -log p, nats, float32 [windows, answer tokens].
    ranks: how many other tokens have at least as high a logit, int32; 0 is a right answer. A tie is no right answer.
  """

  losses: np.ndarray
  ranks: np.ndarray

  def fields(self) -> dict[str, Any]:
    """The numbers of a row; `perplexity` stays empty: these losses are of no text, and no table of perplexities may hold them."""
    result = measure(self.losses)
    right = self.ranks == 0
    return {
      **rows.fields(result, None, 1.0),
      "perplexity": None,
      "bits_per_byte": None,
      "accuracy": float(right.mean()),
      "exact": float(right.all(1).mean()),
      "rank": float(self.ranks.mean()),
      "document_losses": rows.document_losses(self.losses),
    }


def nothing(windows: int, tokens: int, note: str) -> dict[str, Any]:
  """The fields of a row without numbers, which says why."""
  numbers = dict.fromkeys(("loss", "perplexity", "bits_per_byte", "stderr", "ratio_to_truncation", "accuracy", "exact", "rank"))
  return {**numbers, "tokens": windows * tokens, "documents": windows, "note": note}


def positions(config: Any, windows: int, length: int) -> np.ndarray | None:
  """Positions [windows, length] where the run's evaluations draw them; None for 0, 1, 2, ...

  Raises:
    UserError: if the range that they are drawn from has fewer than `length`.
  """
  name = drawing.in_evaluation(config.positions)
  if name == drawing.CONSECUTIVE:
    return None
  if length > config.positions.range:
    raise UserError(f"{length} tokens cannot have different positions of positions.range={config.positions.range}; take shorter lengths")
  return np.stack([drawing.window(name, config.positions, length, "answers", config.seed, i) for i in range(windows)])


def final(model: Decoder, params: Any, tokens: Any, constants: Any, places: Any = None) -> jax.Array:
  """What the output matrix is multiplied by, [b t d]; logits of all tokens need not exist for it."""
  found: Any
  _, found = model.apply(
    params, tokens, constants=constants, positions=places, mutable=["intermediates"],
    capture_intermediates=lambda module, name: module.name == "norm",
  )  # fmt: skip
  return found["intermediates"]["norm"]["__call__"][0].reshape(*tokens.shape, -1)


@functools.partial(jax.jit, static_argnums=(0,))
def _scores(model: Decoder, params, tokens, targets, places, constants, positions=None):
  # under jit the logits of all other places are never computed
  x = final(model, params, tokens, constants, positions)[:, places]
  own = params["params"]
  out = own["embedding"].T if model.tied else own["output"]
  logits = jnp.matmul(x, out.astype(x.dtype), preferred_element_type=jnp.float32)
  picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)
  return jax.nn.logsumexp(logits, axis=-1) - picked[..., 0], jnp.sum(logits >= picked, axis=-1) - 1


def score(
  model: Decoder, params: Any, tokens: np.ndarray, targets: np.ndarray, places: np.ndarray, positions: np.ndarray | None = None
) -> Scores:
  """Scores the answers of windows that are laid out alike.

  Args:
    model: with the encoding, extended or not, to evaluate under.
    params: its parameters, {'params': ...}.
    tokens: int32 [n, t], inputs.
    targets: int32 [n, k], the answer.
    places: int32 [k], after which input each of them comes.
    positions: int32 [n, t]; None for 0, 1, 2, ... in each.

  Raises:
    ValueError: if the encoding cannot serve windows of this length.
  """
  n, t = tokens.shape
  reach = t if positions is None else max(t, model.reach)
  model.encoding.check(model.dims, reach)
  constants = jax.device_put(jax.tree.map(jnp.asarray, model.constants(reach)))
  program = dataclasses.replace(model, encoding=model.encoding.program())
  size = max(1, min(TOKENS_AT_ONCE // t, n))
  losses, ranks = np.empty(targets.shape, np.float32), np.empty(targets.shape, np.int32)
  for first in range(0, n, size):
    chosen = np.minimum(np.arange(first, first + size), n - 1)  # one shape, one executable
    drawn = {} if positions is None else {"positions": positions[chosen]}
    out = _scores(program, params, tokens[chosen], targets[chosen], places, constants, **drawn)
    real = min(size, n - first)
    losses[first : first + real], ranks[first : first + real] = (np.asarray(x)[:real] for x in out)
  if not math.isfinite(float(losses.sum(dtype=np.float64))):
    ranks[~np.isfinite(losses)] = model.vocab_size  # nan compares with nothing, and would count as right
  return Scores(losses, ranks)
