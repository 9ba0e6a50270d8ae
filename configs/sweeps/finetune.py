"""Extension with fine-tuning: one trained RoPE model, fine-tuned to four times its length under each extension, and without one.

    python -m experiments.sweep --config=configs/sweeps/quickstart.py --only=rope --workdir=runs/quickstart
    python -m experiments.sweep --config=configs/sweeps/finetune.py:runs/quickstart/runs/rope --workdir=runs/finetune

The argument is the run folder to start from, of the size of `configs/quickstart.py`. Its own table has the same extensions without
fine-tuning: `experiments.compare runs/quickstart runs/finetune` shows both. 'nope' drops the encoding (DroPE).

By --dry_run: 7 runs of 0.27 million parameters, 41.1 TFLOPs of training and 1.73 of evaluation in all.
"""

from pathlib import Path

from posx.errors import UserError

PAIRS = ("rope+pi", "rope+ntk", "rope+ntk_by_parts", "rope+yarn", "rope+abf", "rope+proportional", "nope")
FIELDS = {"rope+abf": {"extension.base": 5e5}, "rope+proportional": {"extension.partial": 0.5}}


def sweep(origin=""):
  if not (Path(origin) / "config.json").exists():
    raise UserError(f"{origin or 'nothing'} is no run folder; give the RoPE run to start from: configs/sweeps/finetune.py:RUN")
  for pair in PAIRS:
    yield {
      "config": f"configs/finetune.py:{pair}",
      "train.init_from": str(Path(origin).absolute()),
      "eval.lengths": (512, 2048, 4096, 8192),
      "eval.targets": 2048,
      **FIELDS.get(pair, {}),
    }
