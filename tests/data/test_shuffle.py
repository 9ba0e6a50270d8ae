import numpy as np
import pytest

from posx.data import shuffle


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 100, 1023, 4097])
def test_permutation_is_one_to_one(n):
  assert np.array_equal(np.sort(shuffle.permute(np.arange(n), n, seed=7)), np.arange(n))


def test_keys_give_different_orders_and_every_place_is_reached():
  orders = np.stack([shuffle.permute(np.arange(10), 10, seed=shuffle.key("test", i)) for i in range(2000)])
  counts = np.stack([np.bincount(column, minlength=10) for column in orders.T])
  assert np.abs(counts - 200).max() < 5 * np.sqrt(200 * 0.9)  # binomial, five standard deviations


def test_range_far_larger_than_memory():
  n = 10**15
  out = shuffle.permute(np.array([0, 1, n - 1]), n, seed=3)
  assert len(set(out.tolist())) == 3
  assert (out >= 0).all() and (out < n).all()


def test_index_outside_is_refused():
  with pytest.raises(ValueError, match=r"0 \.\. 4"):
    shuffle.permute(np.array([5]), 5, seed=0)
