"""Runs the benchmarks and writes what they say to docs/performance.md.

    python -m benchmarks.page [--folder=benchmarks/results] [--only=attention,compile]

A benchmark that is left out keeps its last numbers in the folder. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BENCHMARKS = ("attention", "train_step", "evaluate", "compile")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "torch", "transformers")
ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, str]:
  """What the numbers were measured on."""
  model = platform.machine()
  if Path("/proc/cpuinfo").exists():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
  found = {"processor": f"{len(os.sched_getaffinity(0))} cores of {model}", "python": platform.python_version()}
  for name in PACKAGES:
    try:
      found[name] = version(name)
    except PackageNotFoundError:
      found[name] = "not installed"
  return found


def run(name: str, folder: Path) -> None:
  """One benchmark; its numbers, with the date and the machine, go to FOLDER/NAME.json."""
  path = folder / f"{name}.json"
  subprocess.run([sys.executable, "-m", f"benchmarks.{name}", f"--json={path}"], check=True, cwd=ROOT)
  found = json.loads(path.read_text())
  found |= {"date": datetime.date.today().isoformat(), "machine": machine(), "command": f"python -m benchmarks.{name}"}
  path.write_text(json.dumps(found, indent=2) + "\n")


def page(results: list[dict[str, Any]]) -> str:
  """The page in Markdown."""
  lines = [
    "# Performance",
    "",
    "Written by `python -m benchmarks.page`; do not edit. Every ratio compares contestants that took turns in one run on the same",
    "cores; ratios and seconds are medians over turns. The rate of a 1,536-wide matrix product in the same run is the yardstick.",
  ]
  for each in results:
    about = ", ".join(f"{name} {value}" for name, value in each["machine"].items() if name != "processor")
    lines += [
      "",
      f"## {each['title']}",
      "",
      f"`{each['command']}`, {each['date']}, {each['machine']['processor']}, {about}",
      "",
      "| | |",
      "|---|---|",
    ]
    lines += [f"| {name.strip()} | {value} |" for name, value in each["table"]]
    lines += ["", each["note"]] if each.get("note") else []
  return "\n".join(lines) + "\n"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--folder", default=str(ROOT / "benchmarks" / "results"), help="where the numbers are kept")
  parser.add_argument("--only", default=",".join(BENCHMARKS), help="benchmarks to run; '' only writes the page")
  args = parser.parse_args()
  folder = Path(args.folder)
  folder.mkdir(parents=True, exist_ok=True)
  for name in filter(None, args.only.split(",")):
    if name not in BENCHMARKS:
      sys.exit(f"error: no benchmark {name!r}; known: {', '.join(BENCHMARKS)}")
    run(name, folder)
  results = [json.loads(path.read_text()) for name in BENCHMARKS if (path := folder / f"{name}.json").exists()]
  target = ROOT / "docs" / "performance.md"
  target.write_text(page(results))
  print(f"written: {target}")


if __name__ == "__main__":
  main()
