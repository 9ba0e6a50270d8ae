"""Stands for sbatch, squeue, scontrol and srun, by the name it is called: one machine, jobs at once, state in $FAKE_SLURM."""

import os
import re
import subprocess
import sys
from pathlib import Path

home = Path(os.environ["FAKE_SLURM"])
queue = home / "queue"
name, arguments = Path(sys.argv[0]).name, sys.argv[1:]


def run(script, name):
  """One job or one element of an array, again as long as it asks for it."""
  mark, (job, _, index) = queue / name, name.partition("_")
  array = {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": index} if index else {}
  ids = {"SLURM_JOB_ID": f"{int(job) + 1 + int(index)}" if index else job, **array}
  while True:
    mark.write_text("RUNNING")
    again = home / f"requeue-{name}"
    again.unlink(missing_ok=True)
    log = open(home / f"{name}.txt", "ab")
    sizes = {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    process = subprocess.Popen(["bash", script], env={**os.environ, **ids, **sizes}, stdout=log, stderr=log)
    (home / f"pid-{name}").write_text(str(process.pid))
    process.wait()
    if not again.exists():
      mark.unlink()
      return


if arguments[0] == "run":
  run(arguments[1], arguments[2])
elif name == "sbatch":
  if (home / "refuse").exists():
    sys.exit("sbatch: error: invalid partition specified: nonesuch")
  script = Path(arguments[0]).read_text()
  number = len(list(home.glob("script-*"))) * 100 + 100
  kept = home / f"script-{number}"
  kept.write_text(script)
  found = re.search(r"--array=0-(\d+)%", script)
  for each in [f"{number}_{index}" for index in range(int(found.group(1)) + 1)] if found else [str(number)]:
    (queue / each).write_text("PENDING")
    command = [sys.executable, __file__, "run", str(kept), each]
    subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  print(f"Submitted batch job {number}")
elif name == "squeue":
  jobs = re.search(r"--jobs=(\S+)", " ".join(arguments)).group(1).split(",")
  live = [path for path in queue.iterdir() if path.name.partition("_")[0] in jobs]
  if not live:
    sys.exit("slurm_load_jobs error: Invalid job id specified")
  print("\n".join(f"{path.name}|{path.read_text()}" for path in live))
elif name == "scontrol":
  (home / f"requeue-{arguments[1]}").touch()
elif name == "srun":
  # its own options come first, the interpreter next
  start = next(i for i, argument in enumerate(arguments) if "python" in argument)
  os.execvp(arguments[start], arguments[start:])
