"""Who runs where: the cores and accelerators of this machine, divided among workers."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from pathlib import Path

from posx.errors import UserError


@dataclasses.dataclass(frozen=True)
class Slot:
  """What one worker owns: cores of the CPU, and variables that give it its accelerator."""

  cores: tuple[int, ...]
  environment: tuple[tuple[str, str], ...] = ()


def divide(workers: int | None = None, threads: int = 1) -> list[Slot]:
  """One slot a worker: by default one for each GPU, or as many as the cores allow with `threads` cores each.

  Raises:
    UserError: if there cannot be so many workers.
  """
  own = cores()
  if threads < 1 or (workers is not None and workers < 1):
    raise UserError(f"--workers and --threads must be at least 1, got workers={workers}, threads={threads}")
  found = gpus()
  workers = workers or len(found) or max(1, len(own) // threads)
  if workers > len(own):
    raise UserError(f"--workers={workers} exceeds the {len(own)} cores that this process may use; every worker owns at least one")
  share = len(own) // workers
  visible = [(("CUDA_VISIBLE_DEVICES", found[i % len(found)]),) if found else () for i in range(workers)]
  if found and workers > len(found):
    # Several workers on one GPU: none may reserve most of its memory at the start.
    visible = [(*v, ("XLA_PYTHON_CLIENT_PREALLOCATE", "false")) for v in visible]
  return [Slot(tuple(own[i * share : (i + 1) * share]), visible[i]) for i in range(workers)]


def cores() -> list[int]:
  """The cores that this process may use."""
  return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def gpus() -> list[str]:
  """The GPUs that JAX would use, without importing it."""
  plugin = any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
  if not plugin or os.environ.get("JAX_PLATFORMS", "cuda").split(",")[0] not in ("cuda", "gpu", ""):
    return []
  if "CUDA_VISIBLE_DEVICES" in os.environ:
    return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
  return [str(i) for i, _ in enumerate(sorted(Path("/dev").glob("nvidia[0-9]*")))]
