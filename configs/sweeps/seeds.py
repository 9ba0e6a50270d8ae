"""How much is luck: five seeds of four encodings and nothing else that differs.

    python -m experiments.sweep --config=configs/sweeps/seeds.py --workdir=runs/seeds
    python -m experiments.sweep --config=configs/sweeps/seeds.py:cpu --workdir=runs/seeds_cpu

The standard error over these seeds is what any difference between two encodings has to exceed.

By --dry_run: 20 runs of 161.8 million parameters, 629 PFLOPs of training and 1.5 of evaluation each, 12.6 EFLOPs in all, 12.4 GB; with
`:cpu` 20 runs of 0.27 million parameters, 4.23 and 2.00 TFLOPs each, 125 TFLOPs in all, 282 MB.
Hours follow from what the machine was timed at.
"""


def sweep(size=""):
  base = {"": "configs/base512.py", "cpu": "configs/quickstart.py"}[size]
  for encoding in ("rope", "alibi", "t5", "kerple"):
    for seed in range(5):
      yield {"config": f"{base}:{encoding}", "seed": seed}
