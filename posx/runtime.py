"""Settings of JAX and of the process that must be made before JAX is used; every main calls `setup` first."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

_MARK = "POSX_TUNED"

MOST_DEVICES = 8
"""More cores than this are left to the threads of operations: every device holds what its windows need."""


def cpu_environment() -> dict[str, str]:
  """Variables that make training on a CPU faster; they count from the start of a process only.

  Huge pages for what malloc hands out, which it keeps instead of giving it back after every step (a training step touches
  fresh memory all the time: a quarter of a step was page faults, and with huge pages alone still up to a tenth in one
  process of two), and the full width of AVX-512 where the CPU has it. What the user has set is respected.
  """
  kept = {"hugetlb": 1, "mmap_threshold": 1 << 30, "trim_threshold": 1 << 30, "top_pad": 1 << 26}
  wanted = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in kept.items())} if _glibc() >= (2, 35) else {}
  flags = os.environ.get("XLA_FLAGS", "")
  if "prefer_vector_width" not in flags and _has_avx512():
    wanted["XLA_FLAGS"] = f"{flags} --xla_cpu_prefer_vector_width=512".strip()
  return {name: value for name, value in wanted.items() if name == "XLA_FLAGS" or name not in os.environ}


def _glibc() -> tuple[int, ...]:
  """The version of glibc, () elsewhere; 2.35 was the first with huge pages and with thresholds of this size."""
  try:
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    return tuple(map(int, version.split(".")[:2])) if name == "glibc" else ()
  except (AttributeError, OSError, ValueError):
    return ()


def _has_avx512() -> bool:
  try:
    return "avx512f" in Path("/proc/cpuinfo").read_text()
  except OSError:
    return False


def tune() -> None:
  """Starts this command again, once, with `cpu_environment`; for mains, before anything is imported.

  Does nothing where JAX is told to use another platform, or where the settings are already there.
  """
  if os.environ.get(_MARK) or os.environ.get("JAX_PLATFORMS", "cpu") != "cpu" or sys.platform != "linux":
    return
  os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **cpu_environment(), _MARK: "1"})


def setup() -> None:
  """Turns on the persistent compilation cache; the second start of an experiment does not compile again.

  A cache folder the user has chosen with JAX_COMPILATION_CACHE_DIR is respected.
  """
  import jax

  from posx.data import cache_folder

  if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def share_cores(rows: int = 0, exactly: int = 0) -> None:
  """Shows a CPU as several devices, one for each core at hand, so that every core works on windows of its own.

  Threads inside an operation gain little at the size of a tile. Does nothing where JAX has started, runs on several hosts or
  has been told how many devices a CPU is.

  Args:
    rows: windows that are worked on together and must be shared out evenly; 0 if they need not.
    exactly: this many devices instead, whatever there is of cores; 0 to go by the cores.
  """
  import jax

  cores = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, MOST_DEVICES)
  count = exactly or next(n for n in range(cores, 0, -1) if rows % n == 0)
  told = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "") or jax.config.jax_num_cpu_devices > 0  # pyright: ignore
  if count > 1 and not told and not jax.distributed.is_initialized():
    with contextlib.suppress(RuntimeError):  # what JAX says where it has started
      jax.config.update("jax_num_cpu_devices", count)


def chips() -> int:
  """How many chips share the work of all processes; the devices of a CPU are its cores, and it is one chip a process."""
  import jax

  return jax.process_count() if jax.default_backend() == "cpu" else jax.device_count()


class Compilations:
  """How many programs this process has compiled since, and how many seconds that took; programs read from the cache do not count."""

  def __init__(self) -> None:
    self.programs, self.seconds, self._read = 0, 0.0, 0

  def _duration(self, event: str, duration_secs: float, **kwargs: object) -> None:
    del kwargs
    if event == "/jax/core/compile/backend_compile_duration":
      if self._read:  # what took this time was reading a program from the disk
        self._read -= 1
        return
      self.programs, self.seconds = self.programs + 1, self.seconds + duration_secs

  def _event(self, event: str, **kwargs: object) -> None:
    del kwargs
    if event == "/jax/compilation_cache/cache_hits":
      self._read += 1


def count_compilations() -> Compilations:
  """Starts counting."""
  import jax.monitoring

  counter = Compilations()
  jax.monitoring.register_event_duration_secs_listener(counter._duration)
  jax.monitoring.register_event_listener(counter._event)
  return counter
