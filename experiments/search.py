"""Searches LongRoPE's divisors for a trained RoPE run: `python -m experiments.search --run=DIR --factor=8`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from posx import cli, runtime
from posx.errors import UserError

EPILOG = """\
Candidates are judged by the loss of the last tokens of validation documents at the target length. Losses go to
DIR/search/*.jsonl as soon as they are known: the same command continues after an interruption, and more rounds or another
seed ask for new candidates only. The divisors, their loss and that of PI, NTK-aware scaling and YaRN go to DIR/search/*.json.

  python -m experiments.search --run=runs/rope --factor=8
  python -m experiments.search --run=runs/rope --factor=8 --length=2048 --rounds=40 --population=64
"""


def main(argv: Sequence[str]) -> int | None:
  parser = cli.Parser(prog="python -m experiments.search", description="Searches LongRoPE's divisors for a RoPE run.", epilog=EPILOG)
  parser.add_argument("--run", required=True, metavar="DIR", help="the run folder")
  parser.add_argument("--factor", required=True, type=float, metavar="S", help="target length / trained length")
  parser.add_argument("--length", type=int, metavar="N", help="tokens of a window; default: factor x trained length")
  parser.add_argument("--documents", type=int, metavar="N", help="the longest ones; default: those long enough, four at most")
  parser.add_argument("--targets", type=int, metavar="N", help="last tokens that the loss is of; default: as many as the trained length")
  parser.add_argument("--population", type=int, metavar="N", help="candidates in a round, half of them kept; default: 16")
  parser.add_argument("--rounds", type=int, metavar="N", help="default: 20")
  parser.add_argument("--seed", type=int, metavar="N", help="default: 0")
  parser.add_argument("--split", metavar="NAME", help="default: validation")
  parser.add_argument("--step", type=int, metavar="N", help="which checkpoint; default: the last")
  options = parser.parse_args(argv)

  runtime.setup()
  from posx.evaluation import search

  given = {f.name: getattr(options, f.name) for f in dataclasses.fields(search.Settings) if getattr(options, f.name) is not None}
  for name in ("length", "documents", "targets"):
    if given.get(name) == 0:
      raise UserError(f"--{name} must be positive, got 0; leave it out for the default")
  search.run(options.run, search.Settings(**given), step=options.step, say=lambda line: print(line, flush=True))
  return 0


if __name__ == "__main__":
  runtime.tune()
  cli.run(main)
