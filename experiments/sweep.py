"""Runs a study: trains and evaluates every run of a sweep file, then compares them.

    python -m experiments.sweep --config=configs/sweeps/quickstart.py --workdir=DIR [--workers=N] [--only=GLOB] [--dry_run]
                                [--config.train.steps=100 ...]
    python -m experiments.sweep --config=... --workdir=DIR --launcher=slurm [--threads=CORES] [--workers=AT_ONCE]
                                [--slurm.partition=gpu --slurm.gpus_per_node=1 --slurm.time=240 ...]   (names as in submitit)

Results go to DIR: runs/NAME (a run folder each), logs/NAME.txt, results.jsonl (all rows), table.txt, figures/. The same
command continues a study that was stopped and retries what failed. Ctrl-C stops it in order.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posx import cli
from posx.errors import UserError, unknown

if TYPE_CHECKING:
  from posx.study.sweep import Run

LAUNCHERS = ("local", "slurm")


def main(argv: Sequence[str]) -> int:
  parser = cli.Parser(prog="python -m experiments.sweep", description=__doc__)
  parser.add_argument("--config", required=True, metavar="FILE.py", help="the sweep; --config.FIELD=VALUE sets a field of all its runs")
  parser.add_argument("--workdir", required=True, metavar="DIR", help="folder of the study; made if need be")
  parser.add_argument("--launcher", default="local", help="where runs go: local (processes on this machine) or slurm (a job array)")
  parser.add_argument(
    "--workers", type=int, default=None, metavar="N", help="processes at a time; by default one a GPU, or cores / threads"
  )
  parser.add_argument("--threads", type=int, default=1, metavar="N", help="cores of a worker where --workers is not given (1)")
  parser.add_argument("--only", default="*", metavar="GLOB", help="only the runs whose name fits, e.g. 'rope*'")
  parser.add_argument("--dry_run", action="store_true", help="show the runs, what each costs and what is done of it; write nothing")
  overrides, rest = cli.split_overrides(argv, "config")
  slurm_options, rest = cli.split_overrides(rest, "slurm")
  args = parser.parse_args(rest)
  if args.launcher not in LAUNCHERS:
    raise UserError(unknown("launcher", args.launcher, LAUNCHERS))
  remote = args.launcher == "slurm"
  if slurm_options and not remote:
    raise UserError(f"--slurm.{slurm_options[0]} is for --launcher=slurm")

  from posx import late
  from posx.study import launch, slots, sweep

  folder = Path(args.workdir)
  if folder.exists() and not folder.is_dir():
    raise UserError(f"--workdir={folder} is a file; give a folder")
  places = slots.divide(None if remote else args.workers, 1 if remote else args.threads)
  with late.importing():
    runs = sweep.expand(args.config, dict(o.split("=", 1) for o in overrides), sweep.read_known(folder))
    chosen = [run for run in runs if fnmatch.fnmatchcase(run.name, args.only)]
    if not chosen:
      raise UserError(f"--only={args.only!r} fits none of the runs: {', '.join(run.name for run in runs)}")
    if args.dry_run:
      from posx.study import plan, speed

      kept = speed.rows()
      where, workers = speed.hardware(len(places[0].cores)), len(places)
      if remote:  # the nodes are not this machine: what was timed last is the best guess
        where, workers = kept[-1]["hardware"] if kept else "nodes that were not timed yet", args.workers or len(chosen)
      print(plan.plan(launch.jobs(chosen, folder), workers, where, kept, remote))
      return 0

  from posx.study import compare, spent, watch

  if remote:
    from posx.study import slurm

    # Before anything is written, so that a cluster that is not there leaves nothing behind.
    executor = slurm.executor(folder / "slurm", dict(o.split("=", 1) for o in slurm_options), args.workers, args.threads)
  with launch.owned(folder):
    sweep.write(folder, args.config, runs)
    prepare(chosen)
    jobs = launch.jobs(chosen, folder)
    if remote:
      slurm.submit(jobs, folder, executor)
      print(f"{len(jobs)} runs, in the queue of Slurm, in {folder}", flush=True)
      slurm.watch(jobs, folder, watch.view(args.workers or len(jobs), folder))
    else:
      print(f"{len(jobs)} runs, {len(places)} at a time, in {folder}", flush=True)
      launch.launch(jobs, folder, places, watch.view(len(places), folder))
  failed = [job for job in jobs if job.state != "done"]
  if any(job.state == "done" for job in jobs):
    print()
    for path in compare.report([folder], folder):
      print(path)
    if took := spent.summary([job.folder for job in jobs]):
      print(took)
  for job in failed:
    print(f"{job.run.name} {job.state}: {job.error} (all of it in {job.log})")
  return 1 if failed else 0


def prepare(runs: Sequence[Run]) -> None:
  """Makes the data ready once, before the workers ask for it, and sees that there is enough of it to evaluate on.

  What would be downloaded is left to the user.
  """
  from ml_collections import ConfigDict

  from posx import data
  from posx.data.synthetic import TaskCorpus

  for settings in {repr((run.settings["data"], run.settings["eval"])): run.settings for run in runs}.values():
    text, evaluation = ConfigDict(settings["data"]), settings["eval"]
    data.load(text, "train", download=text.name in ("sotu", "text"))
    held_out = data.load(text, evaluation["split"])
    if not isinstance(held_out, TaskCorpus):  # of instances there are as many as one asks for
      data.segments(held_out, length=max(evaluation["lengths"]), documents=evaluation["documents"])


if __name__ == "__main__":
  cli.run(main)
