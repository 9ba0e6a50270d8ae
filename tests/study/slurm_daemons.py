"""A Slurm of one node for the time of a test: munged, slurmctld and slurmd with files, sockets and ports of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "srun", "scancel", "sinfo")

CONFIG = """\
ClusterName=posx
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
  """Why no Slurm can be started here; '' if one can."""
  search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
  lacking = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
  if lacking:
    return f"no Slurm here: {', '.join(lacking)} not installed (apt-get install slurmctld slurmd slurm-client munge)"
  return "" if os.geteuid() == 0 else "no Slurm here: only root can start its daemons"


def idle() -> bool:
  """Whether the Slurm that is there has an idle node."""
  if shutil.which("sbatch") is None or shutil.which("sinfo") is None:
    return False
  done = subprocess.run(["sinfo", "--noheader", "--format=%t"], capture_output=True, text=True, timeout=60)
  return done.returncode == 0 and "idle" in done.stdout


@contextlib.contextmanager
def started(folder: Path) -> Iterator[None]:
  """Runs the daemons, with SLURM_CONF in the environment; `folder` has a short path, for the socket."""
  for name in ("state", "spool"):
    (folder / name).mkdir(parents=True)
  folder.chmod(0o755)  # munged takes no socket in a folder that is closed to others
  key = folder / "munge.key"
  key.write_bytes(os.urandom(1024))
  key.chmod(0o400)
  names = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed"}
  host, cpus = socket.gethostname().partition(".")[0], max(2, os.cpu_count() or 2)
  (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, host=host, cpus=cpus, ports=_ports()))
  before = os.environ.get("SLURM_CONF"), os.environ["PATH"]
  os.environ.update(SLURM_CONF=str(folder / "slurm.conf"), PATH=os.pathsep.join((before[1], "/usr/sbin", "/sbin")))
  try:
    subprocess.run(["munged", "--force", *(f"--{name}={folder / file}" for name, file in names.items())], check=True)
    for daemon in (["slurmctld"], ["slurmd"]):
      subprocess.run(daemon, check=True, timeout=30)
    end = time.monotonic() + 30
    while not idle():
      if time.monotonic() > end:
        raise RuntimeError(f"no node became idle; {(folder / 'slurmctld.log').read_text()[-2000:]}")
      time.sleep(0.2)
    yield
  finally:
    for name in ("slurmd", "slurmctld", "munged"):
      with contextlib.suppress(OSError, ValueError):
        os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGTERM)
    os.environ["PATH"] = before[1]
    if before[0] is None:
      del os.environ["SLURM_CONF"]
    else:
      os.environ["SLURM_CONF"] = before[0]


def _ports() -> list[int]:
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
    for each in sockets:
      each.bind(("127.0.0.1", 0))
    return [each.getsockname()[1] for each in sockets]
