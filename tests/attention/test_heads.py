"""The loop over heads and batch rows: who gets what, and what is put or summed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx.attention.heads import Parts, each

B, H, G = 3, 4, 2


@pytest.mark.parametrize("cpu", [True, False])
def test_every_head_of_every_row_has_its_parts_and_gives_its_share(cpu):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.integers(1, 9, shape), jnp.float32)  # whole numbers: sums are exact in any order
  given = Parts({"q": draw(B, 5, H, 2), "lse": draw(B, 5, H)}, draw(B, 7, G, 2), draw(H, 3), draw(B, 7), draw(2))

  def one(mine: Parts) -> Parts:
    assert [x.shape for x in jax.tree.leaves(mine)] == [(5,), (5, 2), (7, 2), (3,), (7,), (2,)]
    weight = mine.queries["lse"].sum() * mine.heads.sum() + mine.keys.sum() + mine.rows[0]
    return Parts(
      (mine.queries["q"] * weight,), mine.keys * mine.heads[0], mine.heads * mine.rows[1], mine.rows * mine.heads[2], mine.shared * weight
    )

  found = jax.jit(lambda given: each(cpu, (B, H, G), one, given))(given)
  q, lse, keys, heads, rows, shared = (np.asarray(x) for x in (given.queries["q"], given.queries["lse"], *given[1:]))
  expected = Parts((np.zeros_like(q),), np.zeros_like(keys), np.zeros_like(heads), np.zeros_like(rows), np.zeros_like(shared))
  for i in range(B):
    for j in range(H):
      of_group = keys[i, :, j // 2]
      weight = lse[i, :, j].sum() * heads[j].sum() + of_group.sum() + rows[i, 0]
      expected.queries[0][i, :, j] = q[i, :, j] * weight
      expected.keys[i, :, j // 2] += of_group * heads[j, 0]
      expected.heads[j] += heads[j] * rows[i, 1]
      expected.rows[i] += rows[i] * heads[j, 2]
      expected.shared[:] += shared * weight
  jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, found), expected)
