"""The process: what is compiled is counted, what is read from the disk is not; and the cores of a CPU are used."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

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


SHARED = """
import os, sys
os.sched_getaffinity = lambda pid: set(range(6))
from posx import runtime
runtime.share_cores(int(sys.argv[1]), exactly=int(sys.argv[2]))
import jax
print(jax.device_count(), runtime.chips())
runtime.share_cores(5)  # JAX has started: nothing changes, nothing is said
print(jax.device_count())
"""


@pytest.mark.parametrize(
  ("rows", "exactly", "flags", "devices"),
  [(0, 0, "", 6), (4, 0, "", 4), (9, 0, "", 3), (7, 0, "", 1), (16, 16, "", 16), (4, 0, "--xla_force_host_platform_device_count=5", 5)],
)
def test_a_cpu_shows_a_device_for_each_core_that_rows_can_be_shared_out_over(rows, exactly, flags, devices):
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
  done = subprocess.run(
    [sys.executable, "-c", SHARED, str(rows), str(exactly)], env=environment, capture_output=True, text=True, check=True
  )
  assert done.stdout.split() == [str(devices), "1", str(devices)]
