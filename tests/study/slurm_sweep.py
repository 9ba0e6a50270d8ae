"""A study of fake runs in the queue: `slurm_sweep.py FOLDER NAME=BEHAVIOUR ...`."""

import json
import sys
from pathlib import Path

from fake_sweep import run

from posx import cli
from posx.study import launch, slurm, watch, worker


def main(argv):
  folder, behaviours = Path(argv[0]), dict(arg.split("=") for arg in argv[1:])

  def command(job):
    here = Path(__file__).with_name("fake_worker.py")
    return [sys.executable, str(here), str(job.folder), behaviours[job.run.name], json.dumps(worker.requests(job.run.settings))]

  executor = slurm.executor(folder / "slurm", {"time": "5", "signal_delay_s": "30"}, None, 1)
  with launch.owned(folder):
    jobs = launch.jobs([run(name) for name in behaviours], folder)
    slurm.submit(jobs, folder, executor, command)
    slurm.watch(jobs, folder, watch.view(len(jobs), folder), poll_s=0.3)
  for job in jobs:
    print("END", job.run.name, job.state, job.error)
  return 0


if __name__ == "__main__":
  cli.run(main)
