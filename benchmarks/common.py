"""What the benchmarks share: cores, turns, processes with the environment that posx trains in, tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def parser(description: str | None, repeats: int) -> argparse.ArgumentParser:
  """The options that every benchmark has."""
  made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
  made.add_argument("--repeats", type=int, default=repeats, help="rounds, in each of which every contestant has its turn")
  made.add_argument("--json", default="", help="write all numbers there")
  made.add_argument("--no_peers", action="store_true", help="posx alone")
  made.add_argument("--part", default="", help=argparse.SUPPRESS)
  return made


def pin(count: int) -> None:
  """Keeps this process on `count` of its cores, before any library starts its threads."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def take_turns(contestants: Mapping[str, Callable[[], Any]], repeats: int, together: int = 1) -> dict[str, float]:
  """name -> median seconds of `turns`."""
  return {name: statistics.median(seconds) for name, seconds in turns(contestants, repeats, together).items()}


def ratio(seconds: Mapping[str, Sequence[float]], theirs: str, ours: str) -> float:
  """How many times as long one takes as the other: the median over turns, whose contestants ran right after each other.

  A machine that is faster for a minute is so for both.
  """
  return statistics.median(a / b for a, b in zip(seconds[theirs], seconds[ours], strict=True))


def turns(contestants: Mapping[str, Callable[[], Any]], repeats: int, together: int = 1) -> dict[str, list[float]]:
  """name -> seconds of every turn; contestants take turns, so that a noisy machine is noisy for all of them.

  With `together` of more than one a turn is so many calls after one that does not count: a training step follows another in
  use and finds its own data in the cache, not that of other contestants.
  """
  for run in contestants.values():
    run()
  seconds: dict[str, list[float]] = {name: [] for name in contestants}
  for _ in range(repeats):
    for name, run in contestants.items():
      if together > 1:
        run()
      times = []
      for _ in range(together):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
      seconds[name].append(statistics.median(times))
  return seconds


def apart(module: str, part: str, options: Sequence[str]) -> Any:
  """What `python -m module --part=...` prints last, as JSON: one measurement in a process of its own."""
  from posx import runtime

  command = [sys.executable, "-m", module, f"--part={part}", *options]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **runtime.cpu_environment()})
  return json.loads(done.stdout.splitlines()[-1])


def serve(run: Callable[[], Any]) -> None:
  """Runs once for every line that comes in, and says how many seconds it took; the other side of `processes_in_turn`."""
  run()
  print("ready", flush=True)
  for _ in sys.stdin:
    began = time.perf_counter()
    run()
    print(time.perf_counter() - began, flush=True)


def processes_in_turn(
  module: str, parts: Sequence[str], options: Sequence[str], repeats: int, as_they_are: Sequence[str] = ()
) -> dict[str, list[float]]:
  """part -> seconds of every turn, for contestants that need processes of their own; they take turns all the same.

  Args:
    as_they_are: further parts, without the environment that posx trains in.
  """
  from posx import runtime

  ours = runtime.cpu_environment()
  with contextlib.ExitStack() as stack:
    running = {}
    for part in (*parts, *as_they_are):
      environment = {**os.environ, **({} if part in as_they_are else ours)}
      command = [sys.executable, "-m", module, f"--part={part}", *options]
      process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
      running[part] = stack.enter_context(process)  # leaving it closes the pipes, which ends the process
      assert process.stdout is not None
      if process.stdout.readline().strip() != "ready":
        raise SystemExit(f"error: {' '.join(command)} did not start")
    seconds: dict[str, list[float]] = {part: [] for part in running}
    for _ in range(repeats):
      for part, process in running.items():
        process.stdin.write("run\n")
        process.stdin.flush()
        seconds[part].append(float(process.stdout.readline()))
  return seconds


def matmul() -> Callable[[], Any]:
  """The yardstick: a product of two matrices of 1,536 x 1,536."""
  import jax

  m = jax.random.normal(jax.random.key(2), (1536, 1536))
  product = jax.jit(lambda m: m @ m)
  return lambda: jax.block_until_ready(product(m))


MATMUL_FLOPS = 2 * 1536**3


def show(title: str, rows: Sequence[tuple[str, str]], path: str, found: Any, note: str = "") -> None:
  """Prints the table, and what is to be known for reading it; writes all numbers where --json says."""
  print(f"{title}\n")
  width = max(len(name) for name, _ in rows)
  for name, value in rows:
    print(f"{name:<{width}}  {value}")
  if note:
    print(f"\n{note}")
  if path:
    with open(path, "w") as file:
      json.dump({"command": sys.orig_argv[1:], "title": title, "table": rows, "note": note, "found": found}, file, indent=2)
