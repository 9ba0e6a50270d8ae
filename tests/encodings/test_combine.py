"""Chains: each member acts in its own places, in order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posx import encodings
from posx.encodings.combine import Chain


def chain(*names):
  return Chain(tuple(encodings.make(name) for name in names))


def test_scores_are_those_of_both(bind):
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 4, 5, 8)).astype(np.float32)
  at = np.arange(5)
  both, rope, alibi, nope = (bind(e) for e in (chain("rope", "alibi"), *(encodings.make(n) for n in ("rope", "alibi", "nope"))))
  expected = rope.scores(q, k, at, at) + alibi.scores(q, k, at, at) - nope.scores(q, k, at, at)
  np.testing.assert_allclose(both.scores(q, k, at, at), expected, atol=2e-6)


def test_parameters_are_keyed_by_place(dims):
  made = chain("learned", "rope", "t5", "kerple")
  params = made.init(jax.random.key(0), dims)
  assert {n: sorted(v) for n, v in params.items()} == {"0": ["table"], "2": ["table"], "3": ["a", "p"]}
  assert not np.array_equal(params["2"]["table"], made.init(jax.random.key(1), dims)["2"]["table"])


def test_biases_add_and_the_form_is_the_most_general(bind):
  made = bind(chain("alibi", "t5"))
  distance = jnp.arange(-2, 40)
  parts = made.encoding.parts
  p = made.head(2)
  np.testing.assert_allclose(made.encoding.bias(p, distance), parts[0].bias(p["0"], distance) + parts[1].bias(p["1"], distance))
  assert made.encoding.form == "distance" and made.encoding.content_free
  assert chain("alibi", "shaw").form == "elementwise" and not chain("alibi", "shaw").content_free
  assert chain("rope", "nope").form == "none" and Chain().form == "none"


def test_claims_hold_only_if_all_members_make_them():
  assert chain("rope", "alibi").relative and not chain("learned", "alibi").relative


def test_splits_by_place(bind):
  first, rest = chain("learned", "alibi").split()
  assert first.uses("on_input") and not first.uses("bias") and rest.uses("bias") and not rest.uses("on_input")
  made = bind(chain("learned", "alibi"))
  x = jnp.zeros((3, 32))
  np.testing.assert_array_equal(first.on_input(made.p(), x, jnp.arange(3)), made.params["0"]["table"][:3])


def test_check_asks_every_member(dims):
  with pytest.raises(ValueError, match="64 rows cannot serve 65"):
    chain("alibi", "learned").check(dims, 65)


def test_value_hooks_add(bind):
  made = bind(chain("shaw", "rope", "shaw"))
  w, at = jnp.ones((2, 3)), jnp.arange(3)
  p = made.head(0)
  parts = made.encoding.parts
  expected = parts[0].on_values(p["0"], w, at[:2], at) + parts[2].on_values(p["2"], w, at[:2], at)
  np.testing.assert_allclose(made.encoding.on_values(p, w, at[:2], at), expected, atol=1e-6)


def test_program_strips_every_member():
  assert Chain((encodings.make("rope", base=5e5), encodings.make("alibi"))).program() == chain("rope", "alibi")
