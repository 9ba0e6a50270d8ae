"""Tests an encoding: `python -m posx.testing my_pkg.my_file:MyEncoding` prints every check with its figure; exit code 1 if one fails."""

from __future__ import annotations

from collections.abc import Sequence

from posx import cli
from posx.testing.named import encoding_of

EPILOG = """\
  python -m posx.testing my_pkg.my_file:MyEncoding
  python -m posx.testing kerple --encoding.kernel=power
  python -m posx.testing rope --extension=yarn --extension.factor=4

NAME is a name of the catalogue, or package.module:Class for a class that Python finds from here.
A model of two layers is compiled for the checks of decoding; --hooks leaves them out and takes a third of the time.
"""


def main(argv: Sequence[str]) -> int:
  parser = cli.Parser(prog="python -m posx.testing", description="Measures what an encoding claims.", epilog=EPILOG)
  parser.add_argument("encoding", metavar="NAME", help="the encoding, --encoding.FIELD=VALUE for its fields")
  parser.add_argument(
    "--extension", default="", metavar="NAME", help="test it under this extension, --extension.FIELD=VALUE for its fields"
  )
  parser.add_argument("--hooks", action="store_true", help="only the checks of its hooks, without a model around them")
  encoding, rest = cli.split_overrides(argv, "encoding")
  extension, rest = cli.split_overrides(rest, "extension")
  options = parser.parse_args(rest)
  made = encoding_of(options.encoding, encoding, options.extension, extension)
  from posx.testing import suite

  print(f"{made}\n")
  failed, count, seconds = 0, 0, 0.0
  for result in suite.run(made, models=not options.hooks):
    mark = {True: "pass", False: "FAIL", None: "-"}[result.passed]
    print(f"{mark:<5} {result.name:<42} {result.figure}", flush=True)
    failed, count, seconds = failed + (result.passed is False), count + (result.passed is not None), seconds + result.seconds
  print(f"\n{count - failed} of {count} checks passed in {seconds:.0f} s")
  return 1 if failed else 0


if __name__ == "__main__":
  cli.run(main)
