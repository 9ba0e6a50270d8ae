"""DeBERTa's disentangled attention: besides their product, query and key each meet a trained vector of their distance."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from posx.encodings.base import Arrays, Dims, Encoding
from posx.encodings.shaw import meet, mixed
from posx.errors import UserError, unknown

ORDERS = ("code", "paper")


def index(distance: Int[Array, "*tu"], clip: int) -> Int[Array, "*tu"]:
  """Row of a table, delta(i, j): 0 if i - j <= -k, 2k - 1 if i - j >= k, else i - j + k.

  Args:
    distance: i - j, query position minus key position, int32.
    clip: k; distances -k .. k - 1 are told apart, so there are 2k rows.

  Example:
    >>> index(jnp.array([-5, -1, 0, 1, 2, 5]), 2)
    Array([0, 1, 2, 3, 3, 3], dtype=int32)

  Reference:
    He et al., 2021, equation 3. arXiv:2006.03654
  """
  return jnp.clip(distance, -clip, clip - 1) + clip


def _check(clip: int, buckets: int) -> None:
  if clip < 1:
    raise UserError(f"DeBERTa tells apart distances up to clip, which must be at least 1, got {clip}")
  if buckets and (buckets < 4 or buckets % 2):
    raise UserError(f"DeBERTa's buckets of one direction must be an even number of at least 4, or 0 for none, got {buckets}")
  if buckets and clip <= buckets // 2 + 1:
    raise UserError(f"clip must exceed the {buckets // 2} distances that have buckets of their own by 2 or more, got {clip}")


def past_buckets(buckets: int, clip: int) -> np.ndarray:
  """Bucket of each distance 0 .. clip, int32; exact, because integers decide the boundaries.

  d up to m = buckets / 2; beyond it m + ceil((m - 1) log(d / m) / log((clip - 1) / m)), at most `buckets`, which `clip` has and all after
  it. Bucket m + n ends at the largest d with d^(m-1) m^n <= (clip - 1)^n m^(m-1).
  """
  m, last = buckets // 2, clip - 1
  made, n = [], 0
  for d in range(clip + 1):
    while d > m and d ** (m - 1) * m**n > last**n * m ** (m - 1):
      n += 1
    made.append(min(min(d, m) + n, buckets))
  return np.asarray(made, np.int32)


def bucket(distance: Int[Array, "*tu"], *, buckets: int = 256, clip: int = 512) -> Int[Array, "*tu"]:
  """Distance of DeBERTa-v2: exact when near, on a logarithmic scale further out, with the sign of the distance.

  Args:
    distance: i - j, int32.
    buckets: rows of one direction; half of them for distances that are told apart one by one.
    clip: the distance from which on all share the last bucket.

  Returns:
    int32 in -buckets .. buckets, for `index` with k = buckets.

  Raises:
    UserError: for sizes that leave nothing for the logarithmic part.

  Example:
    >>> bucket(jnp.array([0, 1, 128, 129, 511, 512, 9999, -511])).tolist()
    [0, 1, 128, 129, 255, 256, 256, -255]

  Reference:
    He et al., github.com/microsoft/DeBERTa, `make_log_bucket_position`, which rounds logarithms
  """
  _check(clip, buckets)
  past = jnp.asarray(past_buckets(buckets, clip))
  return jnp.sign(distance) * past[jnp.minimum(jnp.abs(distance), clip)]


@dataclasses.dataclass(frozen=True)
class DeBERTa(Encoding):
  """Content meets position and position meets content, each with a table of its own.

  A_ij = (q_i k_j + q_i Kr[delta(i, j)] + k_j Qr[delta(i, j)]) / sqrt(3 c), delta(i, j) = clip(i - j, -k, k - 1) + k; with one
  of the two terms, over sqrt(2 c).

  Acts on the scores. Parameters: key_rows [h, 2k, c], which is Kr, and query_rows [h, 2k, c], which is Qr. In the authors' models
  they are one table of relative positions, shared by the layers, times two projections of each layer; here their product is
  learned directly, so that a weight of theirs has to be multiplied out once. In a chain, what earlier parts add to the scores is
  divided by sqrt(3) too. A causal model never trains the rows of the future. A fractional distance (interpolated positions) mixes the
  rows of its two whole neighbours.

  The equation of the paper has delta(j, i) at Qr, its code and its models delta(i, j): rows in the opposite order, and of the distances
  k - 1 and k the one is told apart on the side of the past, the other on that of the future.

  Attributes:
    clip: k, or with buckets the distance from which on all share the last one; 512 in all of the authors' models.
    c2p: content to position, the term with Kr.
    p2c: position to content, the term with Qr.
    buckets: rows of one direction, on a logarithmic scale, as in DeBERTa-v2 and v3 (256); 0 for a row each.
    order: of the rows of Qr: 'code' for delta(i, j), 'paper' for delta(j, i).
    std: standard deviation of the initial values.

  Reference:
    He et al., "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", 2021, section 3.1, equations 2 to 4.
    arXiv:2006.03654. Buckets: He et al., "DeBERTaV3", 2021. arXiv:2111.09543, github.com/microsoft/DeBERTa
  """

  clip: int = 512
  c2p: bool = True
  p2c: bool = True
  buckets: int = 0
  order: Literal["code", "paper"] = "code"
  std: float = 0.02

  by_head: ClassVar = ("key_rows", "query_rows")
  content_free: ClassVar = False

  def __post_init__(self):
    _check(self.clip, self.buckets)
    if self.order not in ORDERS:
      raise UserError(unknown("order of DeBERTa's rows", self.order, ORDERS))
    if not (self.c2p or self.p2c):
      raise UserError("DeBERTa without c2p and p2c knows no positions; keep one of them, or use nope")
    if not self.std >= 0:
      raise UserError(f"DeBERTa needs std >= 0, got {self.std}")

  @property
  def side(self) -> int:
    """Rows of one direction."""
    return self.buckets or self.clip

  def init(self, key: jax.Array, dims: Dims) -> dict[str, Any]:
    names = [name for name, used in zip(self.by_head, (self.c2p, self.p2c), strict=True) if used]
    shape = (dims.num_heads, 2 * self.side, dims.head_dim)
    keys = jax.random.split(key, len(names))
    return {name: self.std * jax.random.normal(k, shape, jnp.float32) for name, k in zip(names, keys, strict=True)}

  def row(self, distance: Int[Array, "*tu"]) -> Int[Array, "*tu"]:
    """Row of a whole distance."""
    told = bucket(distance, buckets=self.buckets, clip=self.clip) if self.buckets else distance
    return index(told, self.side)

  def on_scores(self, p: Arrays, scores, q, k, q_pos, k_pos):
    distance = q_pos[:, None] - k_pos[None, :]
    terms = []
    if self.c2p:
      terms.append(meet(q, p["key_rows"], mixed(distance, self.clip, self.row)))
    if self.p2c:
      away = distance if self.order == "code" else -distance
      terms.append(meet(k, p["query_rows"], mixed(away.T, self.clip, self.row)).T)
    return (scores + sum(terms)) * (1 + len(terms)) ** -0.5
