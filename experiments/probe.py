"""Probes a trained run beyond perplexity: `python -m experiments.probe --config=configs/probes.py:passkey --workdir=DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posx import cli, runtime
from posx.errors import UserError

EPILOG = """\
  passkey     a key in a text, asked for at its end: bits gained over a wrong key, by length and depth
  recall      the same, among the keys of other names
  attention   distance, entropy and weight on the first token, by length
  receptive   the gradient of a loss with respect to the inputs before it, by distance
  kernels     what the encoding adds to the scores, by distance, head and layer

Rows go to DIR/results.jsonl, arrays to DIR/probes, figures to DIR/figures (or to those of --output).
Fields of the probe are set with --config.FIELD=VALUE, those of an extension with --extension.FIELD=VALUE.
"""


def main(argv: Sequence[str]) -> int | None:
  parser = cli.Parser(prog="python -m experiments.probe", description="Probes a trained run beyond perplexity.", epilog=EPILOG)
  parser.add_argument("--config", required=True, metavar="FILE.py:PROBE", help="the probe, e.g. configs/probes.py:passkey")
  parser.add_argument("--workdir", required=True, metavar="DIR", help="the run folder")
  parser.add_argument("--extension", default="", metavar="NAME", help="probe the same weights under this extension")
  parser.add_argument("--split", default="", metavar="NAME", help="of the text; default: eval.split of the run")
  parser.add_argument("--step", type=int, metavar="N", help="which checkpoint; default: the last")
  parser.add_argument("--output", default="", metavar="DIR", help="where results go; default: the run folder")
  overrides, rest = cli.split_overrides(argv, "config")
  extension, rest = cli.split_overrides(rest, "extension")
  options = parser.parse_args(rest)

  from posx import config
  from posx.evaluation import probe

  made = config.read(options.config)
  if not isinstance(made, probe.Probe):
    raise UserError(f"{options.config} is no configuration of a probe; give configs/probes.py:NAME, NAME one of {', '.join(probe.PROBES)}")
  made = probe.override(made, overrides)
  runtime.setup()
  from posx.evaluation import subject

  changes = {"extension.name": options.extension, **dict(("extension." + e).split("=", 1) for e in extension)}
  loaded = subject.load(
    options.workdir, changes if options.extension or extension else {}, split=options.split, step=options.step, text=made.text
  )
  for path in probe.write(made, loaded, Path(options.output or options.workdir)):
    print(path)
  return 0


if __name__ == "__main__":
  runtime.tune()
  cli.run(main)
