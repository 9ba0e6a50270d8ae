"""Evaluation of long documents under configs/quickstart.py: seconds and peak memory, each in a process of its own.

    python -m benchmarks.evaluate [--lengths=16384,32768] [--repeats=3] [--json=FILE] [--no_peers]

One document, then as many together as a CPU shows devices. Weights are fresh ones: time and memory do not depend on what a
model has learnt. The peer is the Llama of transformers with the same sizes (its attention needs no bias array):
`pip install -c constraints.txt -e '.[peers]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import common

ENCODINGS = ("nope", "rope", "alibi", "kerple", "t5")


def parse() -> argparse.Namespace:
  parser = common.parser(__doc__, repeats=3)
  parser.add_argument("--lengths", default="16384,32768", help="tokens, the document's and the window's")
  parser.add_argument("--targets", type=int, default=4096, help="how many of the last tokens are scored")
  return parser.parse_args()


def tokens(documents: int, length: int):
  import numpy as np

  return np.random.default_rng(0).integers(0, 256, (documents, length + 1)).astype(np.int32)


def posx_run(encoding: str, documents: int, length: int, targets: int) -> Callable[[], Any]:
  from posx import runtime

  runtime.share_cores()  # as experiments.evaluate does
  import jax
  import jax.numpy as jnp

  from posx import config as configs
  from posx import decoder
  from posx.evaluation.losses import window_losses
  from posx.evaluation.windows import place

  config = configs.load(f"configs/quickstart.py:{encoding}", {})
  model = decoder.from_config(config, 256)
  params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
  windows, texts = place(length, length, length, targets), tokens(documents, length)
  return lambda: window_losses(model, params, texts, windows, scored=targets)


def torch_run(documents: int, length: int, targets: int) -> Callable[[], Any]:
  import torch

  from benchmarks.train_step import llama
  from posx import config as configs

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  model = llama(configs.load("configs/quickstart.py:rope", {}), length).eval()
  texts = torch.from_numpy(tokens(documents, length)).long()

  def run():
    with torch.no_grad():
      logits = model(input_ids=texts[:, :-1], logits_to_keep=targets).logits
      return torch.nn.functional.cross_entropy(logits.flatten(0, 1), texts[:, -targets:].flatten(), reduction="none").numpy()

  return run


def one(args: argparse.Namespace) -> dict[str, Any]:
  """Seconds of the first call (with compilation) and of the best later one, peak memory of the process."""
  who, *sizes = args.part.split(",")
  documents, length = map(int, sizes)
  run = torch_run(documents, length, args.targets) if who == "torch" else posx_run(who, documents, length, args.targets)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  seconds = []
  for _ in range(args.repeats + 1):
    began = time.perf_counter()
    run()
    seconds.append(time.perf_counter() - began)
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return {"first": seconds[0], "seconds": min(seconds[1:]), "megabytes": peak / 1024, "before": before / 1024}


def main() -> None:
  args = parse()
  if args.part:
    print(json.dumps(one(args)))
    return
  from posx import runtime

  lengths, cores = [int(n) for n in args.lengths.split(",")], len(os.sched_getaffinity(0))
  own = [f"--targets={args.targets}", f"--repeats={args.repeats}"]
  rows, found = [], {}
  everyone = (*ENCODINGS, *(() if args.no_peers else ("torch",)))
  for who, documents, length in [
    (who, m, n) for who in everyone for m in sorted({1, min(cores, runtime.MOST_DEVICES)}) for n in (lengths if m == 1 else lengths[-1:])
  ]:
    found[f"{who} {documents} {length}"] = each = common.apart("benchmarks.evaluate", f"{who},{documents},{length}", own)
    memory = f"peak {each['megabytes']:.0f} MB, {each['before']:.0f} MB before the first call"
    text = f"{each['seconds']:.2f} s (first call {each['first']:.2f} s), {memory}"
    rows.append((f"{'PyTorch Llama' if who == 'torch' else who}, {documents} x {length:,} tokens", text))
  common.show(f"the last {args.targets:,} tokens of documents scored, configs/quickstart.py, {cores} cores", rows, args.json, found)


if __name__ == "__main__":
  sys.exit(main())
