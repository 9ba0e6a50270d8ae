"""Shared by all tests: numbers from elsewhere (see oracles/README.md), and the textbook use of an encoding, slow and plain on purpose."""

import json
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx.encodings.base import Dims, merge

FOLDER = pathlib.Path(__file__).parent / "oracles"


class Case(NamedTuple):
  """One case of an oracle: what it is, its settings, the call that made its reference, and its arrays by name."""

  id: str
  params: dict
  kwargs: dict
  arrays: dict


def _read(name: str) -> list[Case]:
  listed = json.loads((FOLDER / f"{name}.json").read_text())
  with np.load(FOLDER / f"{name}.npz") as stored:
    held = {key: stored[key] for key in stored.files}
  shared = {n: held[key] for n, key in listed["shared"].items()}

  def case(one: dict) -> Case:
    return Case(one["id"], one["params"], one["kwargs"], shared | {n: held[key] for n, key in one["arrays"].items()})

  return [case(one) for one in listed["cases"]]


@pytest.fixture(scope="session")
def oracle():
  """oracle(name) -> its cases."""
  return _read


DIMS = Dims(num_heads=4, head_dim=8, model_dim=32, train_length=64)


class Bound:
  """An encoding with parameters and constants, as attention would use it."""

  def __init__(self, encoding, dims=DIMS, params=None, length=None, seed=0):
    self.encoding, self.dims = encoding, dims
    self.params = encoding.init(jax.random.key(seed), dims) if params is None else params
    self.constants = jax.tree.map(jnp.asarray, encoding.constants(dims, length or dims.train_length))

  def p(self, params=None):
    return self.encoding.prepare(self.params if params is None else params, self.constants)

  def head(self, n, params=None):
    mine, shared = self.encoding.heads(self.p(params))
    return merge(jax.tree.map(lambda x: x[n], mine), shared)

  def scores(self, q, k, q_pos, k_pos, params=None):
    """q [h t c], k [h u c] -> [h t u], float32, what the softmax receives."""
    q, k, q_pos, k_pos = jnp.asarray(q), jnp.asarray(k), jnp.asarray(q_pos), jnp.asarray(k_pos)
    mine, shared = self.encoding.heads(self.p(params))

    def one(mine, q, k):
      p = merge(mine, shared)
      turned_q, turned_k = self.encoding.on_query_key(p, q, k, q_pos, k_pos)
      s = jnp.einsum("tc,uc->tu", turned_q, turned_k, preferred_element_type=jnp.float32, precision="highest") * q.shape[-1] ** -0.5
      return self.encoding.on_scores(p, s, turned_q, turned_k, q_pos, k_pos)

    return jax.vmap(one)(mine, q, k)

  def output(self, q, k, v, q_pos, k_pos, causal, params=None):
    """Attended values [h t c]."""
    s = self.scores(q, k, q_pos, k_pos, params)
    allowed = np.asarray(q_pos)[:, None] >= np.asarray(k_pos)[None, :] if causal else True
    w = jax.nn.softmax(jnp.where(allowed, s, -jnp.inf), axis=-1)
    o = jnp.einsum("htu,huc->htc", w, jnp.asarray(v), precision="highest")
    if self.encoding.uses("on_values"):
      added = [self.encoding.on_values(self.head(n, params), w[n], jnp.asarray(q_pos), jnp.asarray(k_pos)) for n in range(w.shape[0])]
      o = o + jnp.stack(added)
    return o


@pytest.fixture(scope="session")
def dims():
  return DIMS


@pytest.fixture(scope="session")
def bind():
  """bind(encoding, ...) -> its textbook use."""
  return Bound
