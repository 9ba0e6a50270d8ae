"""Attention with position: posx beside its peers on the same cores in the same minutes; medians of ratios.

    python -m benchmarks.attention [--length=4096] [--repeats=7] [--json=FILE] [--no_peers]

One core is used (the first allowed one) unless the table says two.
PyTorch is measured if it is installed: `pip install -c constraints.txt -e '.[peers]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from typing import Literal

from benchmarks import common
from benchmarks.common import pin, ratio, turns


def parse() -> argparse.Namespace:
  parser = common.parser(__doc__, repeats=7)
  parser.add_argument("--length", type=int, default=4096, help="tokens")
  parser.add_argument("--heads", type=int, default=8)
  parser.add_argument("--head_dim", type=int, default=64)
  return parser.parse_args()


def inputs(args, length: int):
  import jax

  keys = jax.random.split(jax.random.key(0), 4)
  return [jax.random.normal(key, (1, length, args.heads, args.head_dim)) for key in keys]


def posx_runs(args, length: int, encoding: str, plan: str = "tiled", devices: int = 1) -> tuple:
  """(forward, forward + backward), compiled, and the memory of each beyond inputs and outputs, in bytes.

  With several devices each has its share of the heads, dealt out as in a long window, and inputs lie there already, as they do
  in a model.
  """
  import jax
  import numpy as np

  import posx
  from posx.attention.sharded import attend_sharded, to_and_fro
  from posx.encodings.base import merge

  q, k, v, g = inputs(args, length)
  made = posx.encodings.make(encoding)
  dims = posx.Dims(args.heads, args.head_dim, args.heads * args.head_dim, length)
  order = to_and_fro(args.heads, devices).T.ravel()  # heads are alike but for the numbers that an encoding has of each
  dealt = lambda tree: merge(jax.tree.map(lambda x: x[order], made.heads(tree)[0]), made.heads(tree)[1])
  params, constants = dealt(made.init(jax.random.key(1), dims)), dealt(made.constants(dims, length))
  positions = np.arange(length, dtype=np.int32)

  mesh = jax.make_mesh((devices,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,))
  share = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "heads"))
  q, k, v, g = (jax.device_put(x, share) if devices > 1 else x for x in (q, k, v, g))

  def forward(q, k, v, params):
    how = {"encoding": made, "params": params, "constants": constants, "plan": plan, "q_positions": positions, "k_positions": positions}
    return posx.attend(q, k, v, **how) if devices == 1 else attend_sharded(q, k, v, mesh=mesh, axis="heads", **how)

  def both(q, k, v, params, g):
    out, pull = jax.vjp(forward, q, k, v, params)
    return out, pull(g)

  one = jax.jit(forward).lower(q, k, v, params).compile()
  two = jax.jit(both).lower(q, k, v, params, g).compile()
  memory = [f.memory_analysis().temp_size_in_bytes for f in (one, two)]
  return lambda: jax.block_until_ready(one(q, k, v, params)), lambda: jax.block_until_ready(two(q, k, v, params, g)), memory


def torch_inputs(args, length: int, apart: bool = False) -> list:
  """The same numbers as [b h t c] for PyTorch, in memory as a projection leaves them for both libraries: token by token.

  With `apart` every head lies on its own instead, copied before the clock starts, which no model does for nothing.
  """
  import numpy as np
  import torch

  turned = (torch.from_numpy(np.array(x)).transpose(1, 2) for x in inputs(args, length))
  return [x.contiguous() if apart else x for x in turned]


def torch_runs(args, length: int, bias: Literal["none", "ready", "made"], apart: bool = False) -> tuple:
  """(forward, forward + backward) of PyTorch's scaled_dot_product_attention.

  ALiBi needs an array of heads x length x length there: 'ready' keeps it from call to call, which takes 2 GB at 8,192 tokens;
  'made' makes it in every call, as a learned bias has to.
  """
  import numpy as np
  import torch
  import torch.nn.functional as F

  from posx.encodings import alibi

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  q, k, v, g = torch_inputs(args, length, apart)
  slopes = torch.from_numpy(np.array(alibi.slopes(args.heads)))

  def array():
    distance = (torch.arange(length)[:, None] - torch.arange(length)[None]).float()
    return (-slopes[:, None, None] * distance).masked_fill(distance < 0, float("-inf"))[None]

  ready = array() if bias == "ready" else None

  def attention(q, k, v):
    mask = array() if bias == "made" else ready
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)

  def forward():
    with torch.no_grad():
      attention(q, k, v)

  def both():
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    attention(*leaves).backward(g)

  return forward, both


def flex_run(args, length: int):
  """Forward of PyTorch's FlexAttention with ALiBi; it has no backward on a CPU."""
  import numpy as np
  import torch
  from torch.nn.attention.flex_attention import create_block_mask, flex_attention

  from posx.encodings import alibi

  slopes = torch.from_numpy(np.array(alibi.slopes(args.heads)))
  q, k, v, _ = torch_inputs(args, length)
  mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")
  compiled = torch.compile(flex_attention)

  def run():
    with torch.no_grad():
      compiled(q, k, v, score_mod=lambda s, b, h, i, j: s - slopes[h] * (i - j), block_mask=mask)

  return run


def compare(args) -> dict:
  """What one core measures at one length without any array of scores."""
  pin(1)
  contestants = {"matmul": common.matmul()}
  for encoding in ("nope", "rope", "kerple", "t5", "alibi"):
    forward, both, _ = posx_runs(args, args.length, encoding)
    contestants |= {f"posx {encoding} forward": forward, f"posx {encoding} both": both}
  if not args.no_peers:
    for name, heads_apart in (("torch", False), ("torch apart", True)):
      forward, both = torch_runs(args, args.length, "none", heads_apart)
      contestants |= {f"{name} forward": forward, f"{name} both": both}
    try:
      contestants["flex alibi forward"] = flex_run(args, args.length)
      contestants["flex alibi forward"]()
    except Exception as error:
      del contestants["flex alibi forward"]
      print(f"FlexAttention does not run here: {type(error).__name__}", file=sys.stderr)
  return turns(contestants, 2 * args.repeats)


def arrays(args) -> dict:
  """ALiBi beside those who need an array for it, and what looks up a number for every score; slow ones, so fewer turns."""
  pin(1)
  contestants = {}
  for name, encoding, plan in (
    ("posx alibi", "alibi", "tiled"),
    ("posx nope", "nope", "tiled"),
    ("posx shaw", "shaw", "tiled"),
    ("jax", "alibi", "dense"),
  ):
    forward, both, _ = posx_runs(args, args.length, encoding, plan=plan)
    contestants |= {f"{name} forward": forward, f"{name} both": both}
  for bias in () if args.no_peers else ("ready", "made"):
    forward, both = torch_runs(args, args.length, bias)
    contestants |= {f"torch {bias} forward": forward, f"torch {bias} both": both}
  return turns(contestants, args.repeats)


def doubling(args) -> dict:
  """Seconds at 32,768 tokens and at 16,384."""
  pin(1)
  contestants = {f"{name} {n}": posx_runs(args, n, name)[0] for name in ("alibi", "nope") for n in (16384, 32768)}
  return turns(contestants, max(3, args.repeats // 2))


def memory(args) -> dict:
  """Bytes beyond inputs and outputs at 8,192 tokens."""
  return dict(zip(("forward", "both"), posx_runs(args, 8192, "alibi")[2], strict=True))


def serve_posx(args, which: int, devices: int = 1) -> None:
  if devices == 1:
    pin(1)
  else:
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
  common.serve(posx_runs(args, args.length, "alibi", devices=devices)[which])


def serve_torch(args, which: int) -> None:
  pin(1)
  common.serve(torch_runs(args, args.length, "made")[which])


PARTS = {"compare": compare, "arrays": arrays, "doubling": doubling, "memory": memory}
FORWARD, BOTH = 0, 1
SERVERS = {
  "posx forward": lambda args: serve_posx(args, FORWARD),
  "posx both": lambda args: serve_posx(args, BOTH),
  "posx both on two": lambda args: serve_posx(args, BOTH, devices=2),
  "torch forward": lambda args: serve_torch(args, FORWARD),
  "torch both": lambda args: serve_torch(args, BOTH),
}
"""Contestants in processes of their own: for two devices, and for PyTorch with the memory settings of its users, not those of posx."""


def table(args, found: dict) -> list[tuple[str, str]]:
  seconds, slow, own, memory = (found[part] for part in ("compare", "arrays", "processes", "memory"))
  flops = 2 * args.heads * args.head_dim * args.length**2  # 4 T^2 / 2 c a head, the causal half
  share = lambda name, times: f"{times * flops / common.MATMUL_FLOPS * ratio(seconds, 'matmul', name):.2f}"
  against = lambda of, theirs, ours: f"{ratio(of, theirs, ours):.2f} x the speed" if theirs in of else "not measured"
  rows = [("matrix product of 1,536", f"{common.MATMUL_FLOPS / statistics.median(seconds['matmul']) / 1e9:.0f} GF/s")]
  for name, ours in (("ALiBi", "posx alibi"), ("no encoding", "posx nope")):
    rows.append((f"{name} forward, share of the product's rate", share(f"{ours} forward", 1)))
    rows.append((f"{name} forward + backward, share", share(f"{ours} both", 3.5)))
  for name, of, theirs, ours in (
    ("ALiBi against PyTorch SDPA without any bias", seconds, "torch", "posx alibi"),
    ("no encoding against PyTorch SDPA without any bias", seconds, "torch", "posx nope"),
    ("no encoding against the same with heads laid apart before the clock starts", seconds, "torch apart", "posx nope"),
    ("ALiBi against PyTorch SDPA with the ALiBi array at hand", slow, "torch ready", "posx alibi"),
    ("ALiBi against PyTorch SDPA that makes the ALiBi array", own, "torch", "posx"),
    ("ALiBi against the same with the memory settings of posx", slow, "torch made", "posx alibi"),
    ("ALiBi against a bias array in JAX", slow, "jax", "posx alibi"),
  ):
    for what in ("forward", "both"):
      rows.append((f"{name}, {what}", against(of, f"{theirs} {what}", f"{ours} {what}")))
  rows.append(("ALiBi against FlexAttention, forward", against(seconds, "flex alibi forward", "posx alibi forward")))
  for name in ("rope", "alibi", "kerple", "t5", "shaw"):
    of = slow if name == "shaw" else seconds
    rows.append((f"{name} against no encoding, both", f"{ratio(of, f'posx {name} both', 'posx nope both'):.2f} x the time"))
  rows += [
    ("extra memory at 8,192 tokens, forward / both", f"{memory['forward'] / 1e6:.0f} / {memory['both'] / 1e6:.0f} MB"),
    ("32,768 against 16,384 tokens, ALiBi forward", f"{ratio(found['doubling'], 'alibi 32768', 'alibi 16384'):.2f} x the time"),
    ("32,768 against 16,384 tokens, no encoding, forward", f"{ratio(found['doubling'], 'nope 32768', 'nope 16384'):.2f} x the time"),
    ("ALiBi on two devices against one core, both", f"{ratio(own, 'posx both', 'posx both on two'):.2f} x the speed"),
  ]
  return rows


NOTE = """ALiBi is counted as if it did all of the causal half. It does less: tiles in which every weight is 0 in float32 are left out
(`posx/attention/fading.py`), with the same result; how many depends on slopes, lengths and scores, which are normal here.
"no encoding" leaves nothing out."""


def main() -> None:
  args = parse()
  if args.part in SERVERS:
    SERVERS[args.part](args)
    return
  if args.part:
    print(json.dumps(PARTS[args.part](args)))
    return
  own = [f"--length={args.length}", f"--heads={args.heads}", f"--head_dim={args.head_dim}", f"--repeats={args.repeats}"]
  own += ["--no_peers"] if args.no_peers else []
  found = {part: common.apart("benchmarks.attention", part, own) for part in PARTS}
  ours = [part for part in SERVERS if part.startswith("posx")]
  theirs = [] if args.no_peers else [part for part in SERVERS if part.startswith("torch")]
  found["processes"] = common.processes_in_turn("benchmarks.attention", ours, own, 2 * args.repeats, as_they_are=theirs)
  title = f"attention, {args.length} tokens, {args.heads} heads of {args.head_dim}, float32, causal, one core unless said"
  common.show(title, table(args, found), args.json, found, NOTE)


if __name__ == "__main__":
  main()
