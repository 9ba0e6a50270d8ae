"""Trains one model: `python -m experiments.train --config=configs/quickstart.py:rope --workdir=DIR`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posx import cli, runtime

EPILOG = """\
fields of the configuration are set with --config.FIELD=VALUE, e.g.
  --config.train.steps=1000 --config.train.learning_rate=1e-3 --config.eval.lengths=512,2048
  --config.encoding.name=alibi               replaces the section by the fields of that encoding
  --config.extension.name=pi --config.extension.factor=4
A wrong field or value is answered with the known ones.

--init_from=RUN fine-tunes: it starts from the last parameters of RUN, which must have the same architecture. An extension counts from
the length that RUN was trained at; under another encoding only that encoding's own parameters start anew.

The same command goes on where a stopped or killed run was; SIGTERM and Ctrl-C save first.
The folder gets config.json, status.json, metrics.jsonl, tensorboard/, checkpoints/.
--config.train.track=wandb,mlflow also gives the run a page at these trackers, which a resume continues.

exit codes: 0 done, 1 failed (also: the loss became nan), 2 bad usage or configuration, 3 corrupt data or disk,
            4 the folder is in use, 75 stopped and resumable
"""


def main(argv: Sequence[str]) -> int | None:
  parser = cli.Parser(prog="python -m experiments.train", description="Trains one model.", epilog=EPILOG)
  parser.add_argument("--config", required=True, metavar="FILE.py[:ARG]", help="the configuration, e.g. configs/quickstart.py:rope")
  parser.add_argument("--workdir", required=True, metavar="DIR", help="the run folder; a new one, or one of this configuration to go on")
  parser.add_argument("--init_from", default="", metavar="RUN", help="fine-tune: start from the last parameters of that run folder")
  parser.add_argument(
    "--coordinator", default="", metavar="HOST:PORT", help="of process 0, where a run has several and srun did not start them"
  )
  parser.add_argument("--processes", type=int, metavar="N", help="how many there are")
  parser.add_argument("--process", type=int, metavar="I", help="the number of this one, 0 to N - 1")
  overrides, rest = cli.split_overrides(argv, "config")
  options = parser.parse_args(rest)

  from posx import config, hosts

  hosts.initialize(options.coordinator, options.processes, options.process)
  runtime.setup()
  resolved = config.load(options.config, overrides)
  train = resolved.train
  runtime.share_cores(train.batch_size // train.accumulate, exactly=math.prod(train.mesh) if train.mesh else 0)
  from posx import training

  training.train(resolved, options.workdir, init_from=options.init_from)


if __name__ == "__main__":
  runtime.tune()
  cli.run(main)
