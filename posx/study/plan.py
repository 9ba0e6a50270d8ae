"""What a study would do and what it would cost, before anything starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posx import config as configs
from posx.study import cost, speed
from posx.study.names import spell

if TYPE_CHECKING:
  from posx.study.launch import Job

FORMULA = (
  "FLOPs: 2 for each multiply-add of the matrices and of causal attention, x 3 in training; an encoding's own work is left out.",
  "memory: of a training step or of the longest evaluation, whichever needs more; an estimate.",
)


def short(number: float | None, unit: str = "") -> str:
  """A number in few characters.

  Example:
    >>> [short(n) for n in (None, 950, 270816, 4.2302e12, 1.5e18)]
    ['?', '950', '271k', '4.23T', '1.5E']
  """
  if number is None:
    return "?"
  for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
    if number >= size:
      return f"{number / size:.3g}{prefix}{unit}"
  return f"{number:.3g}{unit}"


def plan(jobs: Sequence[Job], workers: int, where: str, kept: Sequence[speed.Row], remote: bool = False) -> str:
  """The runs as a table: name, the fields that differ, what each costs, state; then the whole.

  Args:
    jobs: the runs and how far they are.
    workers: how many run at a time.
    where: the hardware of a worker, as `speed.hardware` names it.
    kept: what was timed before.
    remote: the workers are on other machines, whose memory is not known.
  """
  resolved = [configs.from_json(json.dumps(job.run.settings)) for job in jobs]
  costs = _costs(jobs, resolved)
  times = [speed.estimate(config, each, kept, where) for config, each in zip(resolved, costs, strict=True)]
  keys = list(dict.fromkeys(key for job in jobs for key in job.run.differs))
  # What only some runs have at all (fields of their encoding) is said by the runs' names where it matters.
  keys = [key for key in keys if all(key in job.run.differs for job in jobs)]
  rows = [("run", *keys, "parameters", "train FLOPs", "eval FLOPs", "hours", "memory", "state")]
  for job, each, time in zip(jobs, costs, times, strict=True):
    own = (job.run.name, *(spell(job.run.differs[key]) for key in keys))
    sizes = (f"{each.parameters:,}", short(each.train_flops), short(each.eval_flops), _hours(time), short(each.memory, "B"))
    rows.append((*own, *sizes, _state(job)))
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  left = 1 + len(keys)
  lines = [
    "  ".join(f"{t:>{w}}" if left <= i < left + 5 else f"{t:<{w}}" for i, (t, w) in enumerate(zip(row, widths, strict=True)))
    for row in rows
  ]
  return "\n".join(
    [*(line.rstrip() for line in lines), "", *_whole(jobs, costs, times, workers, where, remote), *FORMULA, *_why(resolved, costs, times)]
  )


def _costs(jobs: Sequence[Job], resolved: Sequence[Any]) -> list[cost.Cost]:
  """What each costs; the seed makes no difference, so it is found once for all seeds."""
  found: dict[str, cost.Cost] = {}
  for job, config in zip(jobs, resolved, strict=True):
    key = json.dumps({**job.run.settings, "seed": 0})
    found[key] = found[key] if key in found else cost.cost(config)
  return [found[json.dumps({**job.run.settings, "seed": 0})] for job in jobs]


def _hours(time: speed.Estimate) -> str:
  return "unknown" if time.hours is None else f"{'~' if time.rough else ''}{_number(time.hours)}"


def _number(hours: float) -> str:
  return f"{hours:.2g}" if hours < 10 else f"{hours:.0f}"


def _state(job: Job) -> str:
  return job.state if job.state == "done" or not job.status else f"{job.status['state']} at {job.status['step']}"


def _whole(
  jobs: Sequence[Job], costs: Sequence[cost.Cost], times: Sequence[speed.Estimate], workers: int, where: str, remote: bool
) -> list[str]:
  """The sums over what is not done, and whether it fits into the memory."""
  todo = [i for i, job in enumerate(jobs) if job.state != "done"]
  hours = [times[i].hours for i in todo]
  known = [h for h in hours if h is not None]
  at_once = min(workers, max(len(todo), 1))
  # No run is cut: the longest one bounds the whole from below.
  total = max(sum(known) / at_once, max(known, default=0.0)) if len(known) == len(hours) else None
  said = "unknown hours" if total is None else f"about {_number(total)} h"
  evaluated = [costs[i].eval_flops for i in todo]
  tests = None if None in evaluated else sum(e for e in evaluated if e is not None)
  flops = f"{short(sum(costs[i].train_flops for i in todo))} + {short(tests)} FLOPs"
  lines = [f"{len(jobs)} runs, {len(todo)} to do: {flops}, {said} with {at_once} at a time on {where}"]
  whole, needed = None if remote else speed.memory(), sum(sorted((costs[i].memory for i in todo), reverse=True)[:at_once])
  if whole is not None and needed > whole:
    lines.append(
      f"{at_once} at a time may need {short(needed, 'B')}, this machine has {short(whole, 'B')}: lower --workers, or raise train.accumulate"
    )
  return lines


def _why(resolved: Sequence[Any], costs: Sequence[cost.Cost], times: Sequence[speed.Estimate]) -> list[str]:
  """How the hours were found, or how to find them."""
  lines = []
  if any(each.eval_flops is None for each in costs):
    lines.append("eval FLOPs and hours: ? where eval.documents=0 leaves the number of documents to the text.")
  if any(t.train is None or (t.evaluate is None and c.eval_flops is not None) for t, c in zip(times, costs, strict=True)):
    lines.append("hours: unknown, nothing like it was timed on this hardware; run one of them once (--only=NAME), and it is timed.")
  elif any(t.rough for t in times):
    lines.append("hours: ~ from the FLOPs per second of runs that differ in model, encoding or number of cores.")
  if all(t.hours is not None and not t.rough for t in times):
    lines.append("hours: from earlier runs of these models on this hardware.")
  return lines
