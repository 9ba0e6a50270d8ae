"""The table of measurements, and that plan='auto' does what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posx
from posx import encodings
from posx.attention import dense, measured, rows, strips, tiles

OF_HOOK = {"none": "nope", "separable": "alibi", "distance": "kerple", "elementwise": "shaw", "rows": "cope"}
ROWS = measured.table()["cpu"]["rows"]


def taken(name, queries, keys, plan="auto"):
  """Which plan attention takes for the last `queries` of `keys` tokens."""
  encoding, dims = encodings.make(name), posx.Dims(2, 8, 16, keys)
  params = encoding.init(jax.random.key(0), dims)
  where = {"q_positions": np.arange(keys - queries, keys), "k_positions": np.arange(keys)}
  run = lambda q, k: posx.attend(q, k, k, encoding=encoding, params=params, dims=dims, plan=plan, **where)
  calls = []
  with pytest.MonkeyPatch.context() as patch:
    for of, real in [(of, of.attention) for of in (dense, strips, tiles, rows)]:
      note = lambda *args, of=of, real=real, **kwargs: (calls.append(of.__name__.split(".")[-1]), real(*args, **kwargs))[1]
      patch.setattr(of, "attention", note)
    jax.eval_shape(run, jnp.zeros((1, queries, 2, 8)), jnp.zeros((1, keys, 2, 8)))
  return calls[0]


def test_every_kind_of_hook_was_measured_with_its_command():
  assert measured.table()["cpu"]["command"] == "python -m benchmarks.plans"
  assert {row["hook"] for row in ROWS} == set(OF_HOOK)
  for row in ROWS:
    assert all(ms > 0 for ms in row["milliseconds"].values()), row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['hook']}-{row['queries']}-{row['keys']}")
def test_auto_takes_the_fastest_that_was_measured(row):
  times = {plan: ms for plan, ms in row["milliseconds"].items() if plan != "dense" or row["queries"] <= measured.MOST_QUERIES}
  best = min(times, key=times.get)
  if best == "tiles" and times.get("strips", np.inf) <= measured.TIE * times["tiles"]:
    best = "strips"
  assert taken(OF_HOOK[row["hook"]], row["queries"], row["keys"]) == best


def test_sizes_between_take_the_nearest(monkeypatch):
  table = {
    "cpu": {
      "rows": [{"hook": "none", "queries": n, "keys": n, "milliseconds": {"dense": ms, "tiles": 5.0}} for n, ms in ((20, 1.0), (200, 9.0))]
    }
  }
  monkeypatch.setattr(measured, "table", lambda: table)
  measured._nearest.cache_clear()
  try:
    assert [measured.milliseconds("cpu", "none", n, n)["dense"] for n in (1, 63, 64, 999)] == [1.0, 1.0, 9.0, 9.0]
    assert measured.milliseconds("cpu", "none", 20, 150)["dense"] == 1.0 and measured.milliseconds("cpu", "none", 40, 190)["dense"] == 9.0
    assert measured.milliseconds("tpu", "none", 9, 9) == {} and measured.milliseconds("cpu", "rows", 9, 9) == {}
  finally:
    measured._nearest.cache_clear()


def test_where_nothing_was_measured_rules_hold(monkeypatch):
  monkeypatch.setattr(measured, "milliseconds", lambda *args: {})
  found = {n: taken("nope", n, n) for n in (64, 65, 1024, 1025)}
  assert found == {64: "dense", 65: "strips", 1024: "strips", 1025: "tiles"}


@pytest.mark.parametrize("plan", ["strips", "tiles"])
def test_only_one_plan(plan):
  with measured.only(plan):
    assert taken("kerple", 40, 40) == plan
  assert taken("kerple", 2000, 2000) == "tiles"


def test_large_score_matrices_are_never_held_however_fast():
  with measured.only("dense"):
    assert taken("nope", 64, 2000) == "dense"
    assert taken("nope", 65, 64) == "tiles"
