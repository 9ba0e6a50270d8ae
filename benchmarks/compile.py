"""How many programs an evaluation of RoPE under many extensions and lengths compiles, and how long that takes.

    python -m benchmarks.compile [--json=FILE]

Extensions of the RoPE family differ in constants only, which are arguments of the compiled function: one program a length.
The compilation cache on disk is left out, so that every compilation counts.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from benchmarks import common

EXTENSIONS: dict[str, dict[str, float]] = {
  "pi": {"factor": 8.0},
  "ntk": {"factor": 8.0},
  "dynamic_ntk": {"factor": 8.0},
  "ntk_by_parts": {"factor": 8.0},
  "yarn": {"factor": 8.0},
  "dynamic_yarn": {},
  "llama3": {"factor": 8.0},
  "abf": {"base": 5e5},
}
LENGTHS = (512, 1024, 2048, 4096, 8192)


def measure(args: argparse.Namespace) -> dict[str, Any]:
  """Programs, seconds of compilation and of everything; the plain encoding goes first."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  from posx import config as configs
  from posx import decoder, extensions, runtime
  from posx.evaluation.losses import window_losses
  from posx.evaluation.windows import place

  del args
  config = configs.load("configs/quickstart.py:rope", {})
  plain = decoder.from_config(config, 256)
  params = jax.jit(plain.init)(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
  document = np.random.default_rng(0).integers(0, 256, (1, max(LENGTHS) + 1)).astype(np.int32)
  counter = runtime.count_compilations()
  began, by_length = time.perf_counter(), {}
  for length in LENGTHS:
    before = counter.programs
    windows = place(max(LENGTHS), length, length, 512)
    for name in ("", *EXTENSIONS):
      model = plain
      if name:
        extension = extensions.make(name, **EXTENSIONS[name])
        model = plain.clone(encoding=extensions.apply(extension, plain.encoding))
      window_losses(model, params, document, windows)
    by_length[length] = counter.programs - before
  whole = time.perf_counter() - began
  return {"programs": counter.programs, "compile_seconds": counter.seconds, "seconds": whole, "by_length": by_length}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--json", default="", help="write all numbers there")
  parser.add_argument("--part", default="", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.part:
    print(json.dumps(measure(args)))
    return
  found = common.apart("benchmarks.compile", "all", [])
  curves = (len(EXTENSIONS) + 1) * len(LENGTHS)
  rows = [
    ("evaluations", f"{curves}: RoPE and {len(EXTENSIONS)} extensions at {len(LENGTHS)} lengths"),
    ("programs compiled", f"{found['programs']} ({', '.join(f'{n} at {length}' for length, n in found['by_length'].items())})"),
    ("seconds of compilation", f"{found['compile_seconds']:.1f} of {found['seconds']:.1f}"),
  ]
  common.show("compilations", rows, args.json, found)


if __name__ == "__main__":
  main()
