"""Settings of JAX that must be made before it is used; every main calls `setup` first."""

from __future__ import annotations

import os


def setup(cpu_devices: int = 0) -> None:
  """Turns on the persistent compilation cache; the second start of an experiment does not compile again.

  A cache folder the user has chosen with JAX_COMPILATION_CACHE_DIR is respected.

  Args:
    cpu_devices: how many devices the CPU shows as (to try data parallelism without hardware); 0 leaves it alone.
  """
  import jax

  from posx.data import cache_folder

  if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
  if cpu_devices:
    jax.config.update("jax_num_cpu_devices", cpu_devices)
