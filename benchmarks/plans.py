"""The plans of `posx.attend` beside each other, small and large; writes the table that plan='auto' looks into.

    python -m benchmarks.plans [--repeats=9] [--json=FILE]

One core, float32, 2 batch rows, 4 heads of 32, causal, forward + backward. What is measured: the whole score matrix (dense), strips
and tiles, or rows for hooks that need them; for an encoding without a score hook and for one of each kind.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

from benchmarks import common
from benchmarks.common import pin, take_turns

BATCH, HEADS, WIDTH = 2, 4, 32
HOOKS = {"none": "nope", "separable": "alibi", "distance": "kerple", "elementwise": "shaw", "rows": "cope"}
SIZES = ((16, 16), (32, 32), (64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024), (16, 256), (16, 2048), (128, 1024), (128, 4096))


def contestant(name: str, plan: str, queries: int, keys: int) -> Callable[[], Any]:
  """One plan, compiled: forward and backward of the last `queries` of `keys` tokens."""
  import jax
  import numpy as np

  import posx
  from posx.attention import measured

  encoding = posx.encodings.make(name)
  dims = posx.Dims(HEADS, WIDTH, HEADS * WIDTH, keys)
  params = encoding.init(jax.random.key(0), dims)
  q, k, v, g = (
    jax.random.normal(key, (BATCH, n, HEADS, WIDTH))
    for key, n in zip(jax.random.split(jax.random.key(1), 4), (queries, keys, keys, queries), strict=True)
  )
  where = {"q_positions": np.arange(keys - queries, keys, dtype=np.int32), "k_positions": np.arange(keys, dtype=np.int32)}

  def both(q, k, v, params, g):
    attend = lambda q, k, v, params: posx.attend(
      q, k, v, encoding=encoding, params=params, plan="dense" if plan == "dense" else "tiled", dims=dims, **where
    )
    out, pull = jax.vjp(attend, q, k, v, params)
    return out, pull(g)

  with measured.only(plan):
    compiled = jax.jit(both).lower(q, k, v, params, g).compile()
  return lambda: jax.block_until_ready(compiled(q, k, v, params, g))


def plans(hook: str, queries: int, keys: int) -> list[str]:
  """What may serve these sizes."""
  from posx.attention import measured, tiled

  some = ["dense"] if queries <= measured.MOST_QUERIES else []
  if hook == "rows":
    return [*some, "rows"]
  short = hook in ("none", "separable", "distance") and tiled.fits_strips(queries, keys)
  return [*some, *(["strips"] if short else []), "tiles"]


def measure(args) -> dict:
  import jax

  rows = []
  for hook, name in HOOKS.items():
    for queries, keys in SIZES:
      runs = {plan: contestant(name, plan, queries, keys) for plan in plans(hook, queries, keys)}
      seconds = take_turns(runs, args.repeats, together=max(1, 256 * 256 // (queries * keys)))
      rows.append({"hook": hook, "queries": queries, "keys": keys, "milliseconds": {n: round(1e3 * s, 3) for n, s in seconds.items()}})
  return {"backend": jax.default_backend(), "rows": rows}


def write(found: dict) -> None:
  """Puts the rows into the table that posx.attend looks into, in place of those of the same backend."""
  from benchmarks.page import machine
  from posx.attention import measured

  table = json.loads(measured.TABLE.read_text()) if measured.TABLE.exists() else {}
  head = {"command": "python -m benchmarks.plans", "date": datetime.date.today().isoformat(), "machine": machine()}
  table[found["backend"]] = {**head, "rows": found["rows"]}
  measured.TABLE.write_text(layout(table))


def layout(table: dict) -> str:
  """JSON with a line for every row."""
  backends = []
  for backend, entry in sorted(table.items()):
    head = [f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in entry.items() if name != "rows"]
    rows = ",\n".join(f"      {json.dumps(row)}" for row in entry["rows"])
    backends.append(f"  {json.dumps(backend)}: {{\n" + ",\n".join([*head, f'    "rows": [\n{rows}\n    ]']) + "\n  }")
  return "{\n" + ",\n".join(backends) + "\n}\n"


def main() -> None:
  args = common.parser(__doc__, repeats=9).parse_args()
  if args.part:
    pin(1)
    print(json.dumps(measure(args)))
    return
  found = common.apart("benchmarks.plans", "measure", [f"--repeats={args.repeats}"])
  write(found)
  rows = []
  for row in found["rows"]:
    times = row["milliseconds"]
    best = min(times, key=times.get)
    rows.append(
      (f"{row['hook']}, {row['queries']} x {row['keys']}", f"{best}: " + ", ".join(f"{n} {ms:.2f} ms" for n, ms in times.items()))
    )
  common.show("forward + backward, 2 x 4 heads of 32; the fastest first", rows, args.json, found)


if __name__ == "__main__":
  main()
