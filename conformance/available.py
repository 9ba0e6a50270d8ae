"""Whether the peers can be installed cheaply: `python -m conformance.available` says why not, with exit code 1, and downloads nothing.

On Linux pip takes a PyTorch for CUDA, several GB with its libraries, unless one for CPUs alone is installed or lies in a folder that
pip looks into. What is compared here are numbers of a CPU.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any


def cuda(report: dict[str, Any]) -> list[str]:
  """What the packages of a report of pip need of CUDA on this machine."""
  from packaging.requirements import Requirement

  needs = [Requirement(line) for item in report["install"] for line in item["metadata"].get("requires_dist", [])]
  here = [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
  return sorted(name for name in here if name.startswith(("nvidia", "cuda", "triton")))


def reason() -> str:
  """Why not, or nothing."""
  if importlib.util.find_spec("torch") is not None or sys.platform != "linux":
    return ""
  ask = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run", "--no-index", "--no-deps"]
  done = subprocess.run([*ask, "--report", "-", "-c", "constraints.txt", "torch"], capture_output=True, text=True)
  if done.returncode == 0 and not cuda(json.loads(done.stdout)):
    return ""
  return (
    "pip would take PyTorch for CUDA, several GB; install a PyTorch for CPUs into this environment first, "
    "or name the folder of its file in PIP_FIND_LINKS"
  )


if __name__ == "__main__":
  if why := reason():
    sys.exit(f"error: {why}")
