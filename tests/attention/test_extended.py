"""Extended encodings in the tiled plan: hidden keys, bent distances, weights of the product, against the textbook in float64."""

import numpy as np
import pytest

from posx import encodings, extensions


def extended(inner, name="", **fields):
  encoding = encodings.make(*inner) if isinstance(inner, tuple) else encodings.make(inner)
  return extensions.apply(extensions.make(name, **fields), encoding) if name else encoding


CASES = {
  "sinks-rope": extended("rope", "sinks", sinks=3, window=9),
  "sinks-nope": extended("nope", "sinks", sinks=3, window=9),
  "lm_infinite-alibi": extended("alibi", "lm_infinite", sinks=2, window=8, ceiling=12),
  "window-t5": extended("t5", "window", window=11),
  "dca-rope": extended("rope", "dca", chunk=13, window=4),
  "leaky_rerope-kerple": extended("kerple", "leaky_rerope", window=8, factor=3.0),
  "kerple-weight": encodings.make("kerple", kernel="three_parameter_log", weight=True),
  "ssmax-rope": extended("rope", "ssmax"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_tiled_is_the_textbook_in_both_passes(problem, name):
  problem(37, heads=2).agree(CASES[name], block=(8, 8), tolerance=4e-6)


@pytest.mark.slow
def test_sinks_at_positions_that_are_not_consecutive(problem):
  positions = np.sort(np.random.default_rng(0).permutation(60)[:29])
  problem(29, batch=1).agree(CASES["sinks-nope"], block=(8, 8), q_positions=positions, k_positions=positions)
