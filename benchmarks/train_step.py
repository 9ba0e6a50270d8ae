"""Training step of configs/quickstart.py beside the same architecture in PyTorch, on the same core; tokens per second.

    python -m benchmarks.train_step [--encoding=rope] [--repeats=15] [--json=FILE] [--no_peers]

The peer is the Llama of transformers with the same sizes, batch, optimiser (AdamW, clipped) and number of parameters, as it
stands and under torch.compile: `pip install -c constraints.txt -e '.[peers]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import common


def parse() -> argparse.Namespace:
  parser = common.parser(__doc__, repeats=15)
  parser.add_argument("--encoding", default="rope", help="of the posx model; the peer is Llama with its RoPE")
  return parser.parse_args()


def load(encoding: str) -> Any:
  from posx import config as configs

  return configs.load(f"configs/quickstart.py:{encoding}", {})


def posx_step(config: Any) -> tuple[Callable[[], Any], int]:
  """(one update, number of parameters)."""
  import jax
  import numpy as np

  from posx import decoder
  from posx.training import mesh as meshes
  from posx.training import update

  mesh, model = meshes.make(), decoder.from_config(config, 256)
  train = config.train
  tokens = np.random.default_rng(0).integers(0, 256, (train.batch_size, train.length + 1)).astype(np.int32)
  weights = np.ones((train.batch_size, train.length), np.float32)
  batch = meshes.place({"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}, mesh, train.accumulate)
  held = [update.initial(model, config, mesh)]
  step = update.make_update(model, config, mesh).lower(held[0], batch).compile()

  def run():
    held[0], metrics = step(held[0], batch)
    jax.block_until_ready(metrics)

  return run, sum(x.size for x in jax.tree.leaves(held[0].params))


def llama(config: Any, length: int) -> Any:
  """transformers' Llama with the sizes of a configuration."""
  from transformers import LlamaConfig, LlamaForCausalLM

  from posx import decoder

  ours = decoder.from_config(config, 256)
  h, g, c = ours.head_shape
  sizes = LlamaConfig(
    vocab_size=256, hidden_size=ours.model_dim, intermediate_size=ours.hidden_dim, num_hidden_layers=ours.num_layers,
    num_attention_heads=h, num_key_value_heads=g, head_dim=c, max_position_embeddings=length,
    tie_word_embeddings=ours.tied, use_cache=False, attn_implementation="sdpa",
  )  # fmt: skip
  return LlamaForCausalLM(sizes)


def torch_step(config: Any, compiled: bool) -> tuple[Callable[[], Any], int]:
  """The same of transformers' Llama."""
  import torch

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  train = config.train
  model = llama(config, train.length).train()
  rule = torch.optim.AdamW(
    model.parameters(), lr=train.learning_rate, betas=(train.b1, train.b2), weight_decay=train.weight_decay, fused=True
  )
  tokens = torch.randint(0, 256, (train.batch_size, train.length + 1))
  forward = torch.compile(model) if compiled else model

  def run():
    logits = forward(input_ids=tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    rule.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip_norm)
    rule.step()
    return loss.item()

  return run, sum(x.numel() for x in model.parameters())


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Seconds of a step of each, on one core."""
  common.pin(1)
  config = load(args.encoding)
  contestants, sizes = {"matmul": common.matmul()}, {}
  contestants["posx"], sizes["posx"] = posx_step(config)
  if not args.no_peers:
    for name, compiled in (("torch", False), ("torch.compile", True)):
      try:
        contestants[name], sizes[name] = torch_step(config, compiled)
        contestants[name]()
      except Exception as error:
        contestants.pop(name, None)
        print(f"{name} does not run here: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
  return {"seconds": common.take_turns(contestants, args.repeats, together=4), "parameters": sizes}


def table(config: Any, found: dict[str, Any]) -> list[tuple[str, str]]:
  from posx import decoder

  seconds, sizes = found["seconds"], found["parameters"]
  tokens = config.train.batch_size * config.train.length
  rate = common.MATMUL_FLOPS / seconds["matmul"]
  model = decoder.from_config(config, 256)
  # 6 for each weight that multiplies; two products of c channels with half of the keys in each head, and 2.5 times that backward
  flops = 6 * (sizes["posx"] - 256 * model.model_dim) + 7 * model.num_layers * model.model_dim * config.train.length
  rows = [
    ("matrix product of 1,536", f"{rate / 1e9:.0f} GF/s"),
    ("posx", f"{tokens / seconds['posx']:,.0f} tokens/s, {1e3 * seconds['posx']:.1f} ms a step, {sizes['posx']:,} parameters"),
    ("posx, share of the product's rate", f"{flops * tokens / seconds['posx'] / rate:.2f}"),
  ]
  for name in ("torch", "torch.compile"):
    if name in seconds:
      rows.append((name, f"{tokens / seconds[name]:,.0f} tokens/s, {1e3 * seconds[name]:.1f} ms a step, {sizes[name]:,} parameters"))
      rows.append((f"posx against {name}", f"{seconds[name] / seconds['posx']:.2f} x the speed"))
  return rows


def main() -> None:
  args = parse()
  if args.part:
    print(json.dumps(compare(args)))
    return
  own = [f"--encoding={args.encoding}", f"--repeats={args.repeats}", *(["--no_peers"] if args.no_peers else [])]
  found, config = common.apart("benchmarks.train_step", "compare", own), load(args.encoding)
  title = (
    f"training step of configs/quickstart.py:{args.encoding}, {config.train.batch_size} x {config.train.length} tokens, float32, one core"
  )
  common.show(title, table(config, found), args.json, found)


if __name__ == "__main__":
  main()
