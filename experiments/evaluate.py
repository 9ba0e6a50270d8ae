"""Evaluates a trained run at several lengths: `python -m experiments.evaluate --workdir=DIR --lengths=512,2048,32768`."""

from __future__ import annotations

from collections.abc import Sequence

from posx import cli, runtime

EPILOG = """\
The same last tokens of the same documents are scored at every length. Rows go to DIR/results.jsonl (or --output), losses
per token to DIR/losses. What is there already is not computed again.

  python -m experiments.evaluate --workdir=runs/rope --lengths=512,2048,8192
  python -m experiments.evaluate --workdir=runs/rope --lengths=8192 --extension=yarn --extension.factor=16
  python -m experiments.evaluate --workdir=runs/rope --lengths=4096 --data='books/*.txt'
"""


def main(argv: Sequence[str]) -> int | None:
  parser = cli.Parser(prog="python -m experiments.evaluate", description="Evaluates a run at several lengths.", epilog=EPILOG)
  parser.add_argument("--workdir", required=True, metavar="DIR", help="the run folder")
  parser.add_argument("--lengths", metavar="L,L,...", help="window lengths in tokens; default: eval.lengths of the run")
  parser.add_argument("--extension", default="", metavar="NAME", help="evaluate the same weights under this extension")
  parser.add_argument("--data", default="", metavar="NAME|GLOB", help="another text: a data set's name, or files as 'books/*.txt'")
  parser.add_argument("--split", metavar="NAME", help="train, validation or test")
  parser.add_argument("--documents", metavar="N", help="how many documents, the longest first; 0 for all that are long enough")
  parser.add_argument("--targets", metavar="N", help="tokens scored per document at every length; 0: as many as the shortest length")
  parser.add_argument(
    "--stride", metavar="N", help="distance of windows; 0: they do not overlap. Less than the length adds the sliding protocol"
  )
  parser.add_argument("--last_k", metavar="K", help="tokens of the last-k protocol; 0 leaves it out")
  parser.add_argument(
    "--buckets", metavar="N", help="losses by position for windows up to N tokens, -1: for all; longer ones take less time without them"
  )
  parser.add_argument("--positions", metavar="NAME", help="consecutive, or how they are drawn; default: positions.eval of the run")
  parser.add_argument("--controls", metavar="A,B", help="window, truncate, both, or 'none'")
  parser.add_argument(
    "--beyond",
    choices=("error", "note"),
    default="error",
    help="a length that the encoding cannot serve: refuse, or write rows without a number that say why",
  )
  parser.add_argument("--step", type=int, metavar="N", help="which checkpoint; default: the last")
  parser.add_argument("--output", default="", metavar="FILE", help="where rows go; default: DIR/results.jsonl")
  parser.add_argument("--download", action="store_true", help="allow the data set to be downloaded")
  extension, rest = cli.split_overrides(argv, "extension")
  options = parser.parse_args(rest)

  runtime.setup()
  runtime.share_cores()
  from posx.evaluation import run

  changed = {
    name: getattr(options, name) for name in ("lengths", "split", "documents", "targets", "stride", "last_k", "buckets", "controls")
  }
  changed = {f"eval.{name}": value for name, value in changed.items() if value is not None}
  if changed.get("eval.controls") == "none":
    changed["eval.controls"] = ""
  if options.positions is not None:
    changed["positions.eval"] = options.positions
  if options.extension or extension:
    changed |= {
      "extension.name": options.extension,
      **dict(o.replace("=", "\n", 1).split("\n", 1) for o in ("extension." + e for e in extension)),
    }
  if options.data:
    files = any(c in options.data for c in "*?/.[")
    changed |= {"data.name": "text", "data.path": options.data} if files else {"data.name": options.data, "data.path": ""}
  run.evaluate(options.workdir, changed, step=options.step, output=options.output, download=options.download, beyond=options.beyond)
  return 0


if __name__ == "__main__":
  runtime.tune()
  cli.run(main)
