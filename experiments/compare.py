"""Compares runs: tables, who beats whom, figures, and one page that holds it all.

    python -m experiments.compare DIR [DIR ...] [--html=report.html] [--csv=rows.csv] [--latex=table.tex]

DIR is the --workdir of a sweep or of a run. Prints the table and the ranking of each length; writes table.txt and
figures/*.png, *.svg under --output (by default the first DIR).
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
  parser.add_argument("--html", default="", metavar="FILE", help="also write a report: one page that needs no server and no network")
  parser.add_argument("--csv", default="", metavar="FILE", help="also write all rows as comma-separated values")
  parser.add_argument("--latex", default="", metavar="FILE", help="also write the table for a LaTeX document")
  parser.add_argument(
    "--published",
    default="",
    metavar="A,B",
    help="published curves for the figure, of the same protocol, as kerple_arxiv; the report has all",
  )
  args = parser.parse_args(argv)

  from posx.study import compare, report, results, series

  first = Path(args.folders[0])
  beside = [name for name in args.published.split(",") if name]
  written = compare.report(args.folders, args.output or (first.parent if first.is_file() else first), args.protocol, beside=beside)
  rows = series.read(args.folders)
  if args.html:
    compare.write_text(args.html, report.render(report.collect(rows, f"posx: {', '.join(Path(f).resolve().name for f in args.folders)}")))
  if args.csv:
    results.write_csv(args.csv, rows)
  if args.latex:
    compare.write_latex(args.latex, rows, args.protocol)
  for path in [*written, *filter(None, (args.html, args.csv, args.latex))]:
    print(path)
  return 0


if __name__ == "__main__":
  cli.run(main)
