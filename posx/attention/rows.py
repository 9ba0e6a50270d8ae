"""Attention with hooks that need a whole row of scores: one strip of queries against all keys at a time."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
from jax import lax

from posx.attention import dense
from posx.attention.pieces import pad, round_up
from posx.encodings.base import Encoding


def head(encoding, scale, causal, window, size, p, joined):
  del joined

  def one(q, k, v, where):
    t = q.shape[0]
    n = min(size, t)
    padded = round_up(t, n)

    @jax.checkpoint
    def strip(args):
      q, q_pos, q_segments = args
      seg = (None, None) if q_segments is None else (q_segments[None], where["k_segments"][None])
      return dense.attention(
        q[None, None], k[None, None], v[None, None], q_pos[None], where["k_pos"][None], _OneHead(encoding), {"p": p},
        scale=scale, causal=causal, window=window, q_segments=seg[0], k_segments=seg[1],
      )[0, 0]  # fmt: skip

    cut = lambda x, mode: None if x is None else pad(x, padded, mode=mode).reshape(-1, n, *x.shape[1:])
    out = lax.map(strip, (cut(q, "constant"), cut(where["q_pos"], "edge"), cut(where.get("q_segments"), "edge")))
    return out.reshape(padded, -1)[:t]

  return one


@dataclasses.dataclass(frozen=True)
class _OneHead(Encoding):
  """One head's prepared slice seen as an encoding whose parameters all heads share."""

  elementwise: ClassVar = False

  inner: Encoding

  def on_scores(self, p, scores, q, k, q_pos, k_pos):
    return self.inner.on_scores(p["p"], scores, q, k, q_pos, k_pos)

  def on_values(self, p, weights, q_pos, k_pos):
    return self.inner.on_values(p["p"], weights, q_pos, k_pos)

  def uses(self, hook: str) -> bool:
    return self.inner.uses(hook)
