"""Shows an encoding or an extension, its formula, claims, figures, pictures: `python -m experiments.inspect --encoding=NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posx import cli, runtime

EPILOG = """\
  python -m experiments.inspect --encoding=kerple
  python -m experiments.inspect --encoding=rope --extension=yarn --extension.factor=4 --output=runs/yarn
  python -m experiments.inspect --encoding=my_pkg.my_file:MyEncoding
  python -m experiments.inspect --all

Pictures go to --output; without it only text is printed. --all writes docs/gallery.md and its pictures anew.
"""


def main(argv: Sequence[str]) -> int:
  parser = cli.Parser(prog="python -m experiments.inspect", description="Shows an encoding or an extension.", epilog=EPILOG)
  parser.add_argument("--encoding", default="", metavar="NAME", help="the encoding, --encoding.FIELD=VALUE for its fields")
  parser.add_argument("--extension", default="", metavar="NAME", help="under this extension, --extension.FIELD=VALUE for its fields")
  parser.add_argument("--output", default="", metavar="DIR", help="write the picture there")
  parser.add_argument("--all", action="store_true", help="write the gallery: every entry of both catalogues")
  parser.add_argument("--docs", default="docs", metavar="DIR", help="where --all writes")
  encoding, rest = cli.split_overrides(argv, "encoding")
  extension, rest = cli.split_overrides(rest, "extension")
  options = parser.parse_args(rest)
  if options.all == bool(options.encoding):
    parser.error("give --encoding=NAME, or --all")
  if options.all and (options.extension or options.output or encoding or extension):
    parser.error("--all takes --docs=DIR only: it shows every entry as it is by default")

  from posx.testing.named import encoding_of

  if options.all:
    runtime.setup()
    from posx.inspection import gallery

    print(gallery.write(Path(options.docs)))
    return 0
  made = encoding_of(options.encoding, encoding, options.extension, extension)
  runtime.setup()
  from posx import catalogue, extensions
  from posx.inspection import entry, text

  if options.extension:
    trained = entry.of(options.encoding, encoding_of(options.encoding, encoding), settings=encoding)
    shown = entry.of(options.extension, made, catalogue.find(extensions.CATALOGUE, options.extension), trained, extension)
  else:
    shown = entry.of(options.encoding, made, settings=encoding)
  print(text.show(shown))
  if options.output:
    from posx.inspection import pictures

    name = "_".join(n.replace(":", "_") for n in (options.encoding, options.extension) if n)
    print(f"\n{pictures.save(shown.figure(), Path(options.output) / name)}")
  return 0


if __name__ == "__main__":
  runtime.tune()
  cli.run(main)
