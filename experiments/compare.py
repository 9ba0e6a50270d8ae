"""Compares runs: a table of perplexities by length, figures, and the rows as a file.

    python -m experiments.compare DIR [DIR ...] [--protocol=sliding:256] [--output=DIR] [--csv=FILE]

DIR is the --workdir of a sweep or of a run. Prints the table and writes table.txt and figures/*.png, *.svg under --output
(by default the first DIR).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posx import cli


def main(argv: Sequence[str]) -> int:
  parser = cli.Parser(prog="python -m experiments.compare", description=__doc__)
  parser.add_argument("folders", nargs="+", metavar="DIR", help="the --workdir of a sweep or of a run")
  parser.add_argument(
    "--protocol", default="", help="nonoverlapping, sliding:STRIDE or last_k:K; by default the first of these that is there"
  )
  parser.add_argument("--output", default="", metavar="DIR", help="where the table and the figures go; by default the first DIR")
  parser.add_argument("--csv", default="", metavar="FILE", help="also write all rows as comma-separated values")
  args = parser.parse_args(argv)

  from posx.study import compare, results, series

  first = Path(args.folders[0])
  written = compare.report(args.folders, args.output or (first.parent if first.is_file() else first), args.protocol)
  if args.csv:
    results.write_csv(args.csv, series.read(args.folders))
    written.append(Path(args.csv))
  for path in written:
    print(path)
  return 0


if __name__ == "__main__":
  cli.run(main)
