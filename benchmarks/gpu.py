"""Attention with position on an accelerator: the library's kernel, appended channels and tiles, forward and with gradients.

    python -m benchmarks.gpu [--lengths=8192,16384,32768] [--widths=64,128] [--minutes=7.5] [--json=FILE]

One script for a borrowed machine: it checks every contestant against the tiles in float32 first, measures from the shortest
sequence on, and stops in time with what it has. bfloat16, 8 heads, causal. The yardstick of each size is the library's
attention without any encoding (`plan='fused'` of nope), which is cuDNN's flash attention on an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks import common

HEADS = 8
CONTESTANTS = (("nope", "fused"), ("alibi", "fused"), ("nope", "tiled"), ("rope", "tiled"), ("alibi", "tiled"), ("kerple", "tiled"))
CHECKED = 1024
"""Tokens of the sequence on which contestants are compared with the tiles in float32."""


def parse() -> argparse.Namespace:
  made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  made.add_argument("--lengths", default="8192,16384,32768", help="tokens")
  made.add_argument("--widths", default="64,128", help="channels of a head")
  made.add_argument("--repeats", type=int, default=5, help="rounds; every round runs each contestant once")
  made.add_argument("--minutes", type=float, default=7.5, help="nothing new is begun after these")
  made.add_argument("--json", default="", help="write all numbers there")
  return made.parse_args()


def programs(encoding: str, plan: Any, length: int, width: int, dtype: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
  """Compiled (forward, forward + backward) on inputs of their own."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  import posx

  q, k, v, g = (jax.random.normal(key, (1, length, HEADS, width)).astype(dtype) for key in jax.random.split(jax.random.key(0), 4))
  made, positions = posx.encodings.make(encoding), np.arange(length, dtype=np.int32)
  params = made.init(jax.random.key(1), posx.Dims(HEADS, width, HEADS * width, length))

  def forward(q, k, v, params):
    return posx.attend(q, k, v, encoding=made, params=params, plan=plan, q_positions=positions, k_positions=positions)

  def both(q, k, v, params, g):
    out, pull = jax.vjp(forward, q, k, v, params)
    return out, pull(g.astype(jnp.result_type(out)))

  one = jax.jit(forward).lower(q, k, v, params).compile()
  two = jax.jit(both).lower(q, k, v, params, g).compile()
  return lambda: jax.block_until_ready(one(q, k, v, params)), lambda: jax.block_until_ready(two(q, k, v, params, g))


def difference(encoding: str, plan: str, width: int) -> float:
  """Largest difference from the tiles in float32 on the same numbers, relative to the largest entry: output and gradients."""
  import jax
  import numpy as np

  ours = jax.tree.leaves(programs(encoding, plan, CHECKED, width, "bfloat16")[1]())
  exact = jax.tree.leaves(programs(encoding, "tiled", CHECKED, width, "float32")[1]())
  far = lambda a, b: float(np.abs(np.asarray(a, np.float32) - b).max() / max(np.abs(b).max(), 1e-6))
  return max(far(a, np.asarray(b, np.float32)) for a, b in zip(ours, exact, strict=True))


def size(length: int, width: int, repeats: int) -> dict[str, float]:
  """Median seconds of every contestant at one size; those that fail are named with their error."""
  runs: dict[str, Callable[[], Any]] = {}
  for encoding, plan in CONTESTANTS:
    try:
      forward, both = programs(encoding, plan, length, width, "bfloat16")
      forward(), both()
    except Exception as error:  # a size that does not fit or a kernel that does not exist here: the others are still measured
      print(f"{encoding} {plan}, {length} x {width}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
      continue
    runs |= {f"{encoding} {plan} forward": forward, f"{encoding} {plan} both": both}
  return common.take_turns(runs, repeats) if runs else {}


def main() -> None:
  args = parse()
  import jax

  began, found = time.monotonic(), {}
  device = jax.devices()[0]
  print(f"{device.platform}: {device.device_kind}, jax {jax.__version__}, {jax.default_backend()}\n")
  sizes = [(int(n), int(c)) for c in args.widths.split(",") for n in args.lengths.split(",")]
  for width in sorted({c for _, c in sizes}):
    for encoding, plan in CONTESTANTS:
      try:
        found[f"difference {encoding} {plan} {width}"] = off = difference(encoding, plan, width)
        print(f"{encoding} {plan}, width {width}: {off:.1e} from the tiles in float32")
      except Exception as error:
        print(f"{encoding} {plan}, width {width}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
  rows = []
  for length, width in sorted(sizes):
    if time.monotonic() - began > 60 * args.minutes:
      print(f"{length} tokens, width {width}: left out, {args.minutes:g} minutes are over")
      continue
    found[f"seconds {length} {width}"] = seconds = size(length, width, args.repeats)
    for what, factor in (("forward", 1.0), ("both", 3.5)):
      yardstick = seconds.get(f"nope fused {what}")
      for encoding, plan in CONTESTANTS:
        if taken := seconds.get(f"{encoding} {plan} {what}"):
          flops = factor * 2 * HEADS * width * length**2  # 4 T^2 / 2 c a head, the causal half
          share = f", {yardstick / taken:.2f} of the library's speed" if yardstick else ""
          rows.append((f"{length} x {width}, {encoding} {plan}, {what}", f"{1e3 * taken:.2f} ms, {flops / taken / 1e12:.2f} TF/s{share}"))
  print()
  if rows:
    common.show(f"attention on {device.device_kind}, bfloat16, {HEADS} heads, causal", rows, args.json, found)
  elif args.json:
    with open(args.json, "w") as file:
      json.dump(found, file, indent=2)


if __name__ == "__main__":
  main()
