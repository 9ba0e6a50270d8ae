"""Slots of the cache: counted on the host, refused when full, never overwriting what is still seen."""

import numpy as np
import pytest

from posx.attention.cache import Slots


def test_slots_follow_each_other_and_the_capacity_is_a_limit():
  slots = Slots(4)
  assert slots.take(0, 3).tolist() == [0, 1, 2]
  assert slots.take(3, 1).tolist() == [3]
  with pytest.raises(ValueError, match=r"holds 4 tokens, 4 are taken and 1 more do not fit; create it with capacity=5"):
    slots.take(4, 1)


def test_a_ring_keeps_its_window():
  window, capacity = 4, 7
  slots = Slots(capacity, ring=True, window=window)
  holds = np.full(capacity, -1)
  for used in range(0, 40, 2):
    holds[slots.take(used, 2)] = [used, used + 1]
    # what the first of the two queries sees, and what the second adds
    assert set(range(max(0, used - window + 1), used + 2)) <= set(holds.tolist())


def test_a_ring_refuses_writes_that_overwrite_what_their_own_first_query_sees():
  slots = Slots(6, ring=True, window=4)
  assert len(slots.take(6, 3)) == 3
  with pytest.raises(ValueError, match=r"write at most 3 at a time, or give capacity=7"):
    slots.take(6, 4)
  with pytest.raises(ValueError, match=r"a ring of 3 slots cannot hold a window of 4"):
    Slots(3, ring=True, window=4)
