"""A study of fake runs: `fake_sweep.py FOLDER WORKERS NAME=BEHAVIOUR ...`."""

import json
import sys
from pathlib import Path

from posx import cli
from posx.study import launch, slots, watch, worker
from posx.study.sweep import Run


def run(name):
  return Run(name, "c.py", {}, {"encoding": {"name": name}, "eval": {"lengths": [512, 1024], "extensions": ["yarn"]}}, {})


def main(argv):
  folder, workers = Path(argv[0]), int(argv[1])
  behaviours = dict(arg.split("=") for arg in argv[2:])

  def command(job):
    here = Path(__file__).with_name("fake_worker.py")
    return [sys.executable, str(here), str(job.folder), behaviours[job.run.name], json.dumps(worker.requests(job.run.settings))]

  with launch.owned(folder):
    jobs = launch.jobs([run(name) for name in behaviours], folder)
    launch.launch(jobs, folder, slots.divide(workers), watch.view(workers, folder), command)
  for job in jobs:
    print("END", job.run.name, job.state, job.tries, job.error)
  return 0


if __name__ == "__main__":
  cli.run(main)
