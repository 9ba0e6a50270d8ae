"""Processes of one run on several hosts: how they find each other, and which of them is the first. No JAX until it is asked for."""

from __future__ import annotations

import os

from posx.errors import UserError

_TIMEOUT_S = 300


def tasks() -> int:
  """How many processes Slurm's `srun` started for this step; 1 elsewhere."""
  return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))


def rank() -> int:
  """The number of this process among those of `srun`; 0 elsewhere."""
  return int(os.environ.get("SLURM_PROCID", "0")) if tasks() > 1 else 0


def initialize(coordinator: str = "", processes: int | None = None, process: int | None = None) -> None:
  """Joins the processes of one run; before anything else asks JAX for devices.

  Under `srun` with several tasks nothing need be given, JAX finds its companions itself. Elsewhere all three are, or none: then
  the run is this one process.

  Args:
    coordinator: 'host:port' of process 0.
    processes: how many there are.
    process: the number of this one.

  Raises:
    UserError: if only some are given, or they do not fit together; or the others do not come.
  """
  given = (bool(coordinator), processes is not None, process is not None)
  if any(given) and not all(given):
    raise UserError(
      "a run on several hosts needs all of --coordinator=HOST:PORT, --processes=N and --process=I (0 ... N - 1), or runs under srun"
    )
  if processes is not None and process is not None and not (0 <= process < processes and ":" in coordinator):
    raise UserError(
      f"--coordinator={coordinator} --processes={processes} --process={process}: give HOST:PORT, and a number from 0 to N - 1"
    )
  if not all(given) and tasks() == 1:
    return
  import jax

  # CPUs have several; the one that is compiled in everywhere. Other devices bring their own.
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  try:
    if all(given):
      jax.distributed.initialize(coordinator, processes, process, initialization_timeout=_TIMEOUT_S)
    else:
      jax.distributed.initialize(initialization_timeout=_TIMEOUT_S)
  except RuntimeError as error:
    where = coordinator or "the first task of this step"
    raise UserError(f"the processes of this run did not find each other at {where} within {_TIMEOUT_S} s: {str(error)[:200]}") from error
