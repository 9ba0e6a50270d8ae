"""Stands for a worker: `fake_worker.py FOLDER BEHAVIOUR REQUESTS`. Leaves one line in FOLDER/starts for each start."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from study_rows import row

from posx.study import results, worker

folder, behaviour, asked = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
worker.watch_parent(patience_s=1.0)
lock = worker.hold(folder)
with open(folder / "starts", "a") as file:
  file.write(f"{os.getpid()} {sorted(os.sched_getaffinity(0))}\n")
starts = len((folder / "starts").read_text().splitlines())


def status(state, step):
  (folder / "status.json.new").write_text(
    json.dumps({"state": state, "step": step, "steps": 3, "loss": 2.5, "tokens_per_second": 9e3, "eta_s": 1.0})
  )
  (folder / "status.json.new").replace(folder / "status.json")


if behaviour == "refuse":
  print("error: unknown encoding 'ropee'")
  sys.exit(2)
if behaviour == "crash" or (behaviour == "crash once" and starts == 1):
  print("working\nValueError: out of luck\n", file=sys.stderr)
  sys.exit(1)
if behaviour == "die":
  os.kill(os.getpid(), signal.SIGKILL)
if behaviour == "stubborn":
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
# A first start of a slow one hangs half way; a second finds its step and ends.
step = json.loads((folder / "status.json").read_text())["step"] if (folder / "status.json").exists() else 0
while step < 3:
  step += 1
  status("running", step)
  if step == 2 and behaviour in ("slow", "stubborn"):
    time.sleep(600)
status("done", 3)
results.append(folder / results.FILE, [row("fake", 512, 6.0), row("fake", 1024, 7.0)])
if behaviour != "forget":
  (folder / worker.MARKER).write_text(json.dumps(asked))
