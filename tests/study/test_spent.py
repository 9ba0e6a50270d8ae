"""What runs took, added up over phases, interruptions and runs."""

import pytest

from posx.study import spent


class Counter:
  programs, seconds = 3, 1.0


def test_accounts_add_up(tmp_path, monkeypatch):
  clock = iter([0.0, 60.0, 100.0, 130.0, 0.0, 30.0])
  monkeypatch.setattr(spent.time, "monotonic", lambda: next(clock))
  one, other, counter = tmp_path / "one", tmp_path / "other", Counter()
  one.mkdir()
  other.mkdir()
  with spent.spending(one, "training", counter):
    counter.programs, counter.seconds = 5, 7.0
  with pytest.raises(KeyError), spent.spending(one, "evaluation", counter):
    counter.programs += 1
    raise KeyError
  with spent.spending(other, "training", counter):
    pass
  expected = "2 runs took 2 min 00 s of their processes: training 75%, evaluation 25%; 3 programs compiled in 6.0 s of these (5%)"
  assert spent.summary([one, other]) == expected


def test_nothing_known_is_nothing_said(tmp_path):
  assert spent.summary([tmp_path]) == ""


def test_a_folder_that_was_never_made_is_not_made(tmp_path):
  with spent.spending(tmp_path / "none", "training", Counter()):
    pass
  assert not (tmp_path / "none").exists()
