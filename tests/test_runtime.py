"""The process: what is compiled is counted, what is read from the disk is not."""

import jax
import jax.numpy as jnp

from posx import runtime


def test_compilations_are_counted_once():
  counter = runtime.count_compilations()
  double = jax.jit(lambda x: 2 * x + 0.123)
  x, y = jnp.zeros(7), jnp.zeros(9)
  before = counter.programs
  double(x)
  double(x)
  assert counter.programs == before + 1 and counter.seconds > 0
  double(y)
  assert counter.programs == before + 2


def test_programs_from_the_cache_do_not_count(tmp_path, monkeypatch):
  names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")
  before = {name: jax.config.values[name] for name in names}
  try:
    for name, value in zip(names, (str(tmp_path), 0.0, 0), strict=True):
      jax.config.update(name, value)
    counter, x, ran = runtime.count_compilations(), jnp.zeros(5), []
    for _ in range(2):
      start = counter.programs
      jax.jit(lambda x: 3 * x - 0.777)(x)
      ran.append(counter.programs - start)
      jax.clear_caches()
    assert ran == [1, 0]
  finally:
    for name, value in before.items():
      jax.config.update(name, value)
