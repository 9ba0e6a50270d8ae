"""One set of KERPLE's numbers for all layers, as its authors have it, against one set for each layer: two models under one name.

    python -m experiments.sweep --config=configs/sweeps/share_kerple.py --workdir=runs/share_kerple
    python -m experiments.sweep --config=configs/sweeps/share_kerple.py:cpu --workdir=runs/share_kerple_cpu

By --dry_run: 12 runs of 161.8 million parameters, 629 PFLOPs of training and 1.5 of evaluation each, 7.55 EFLOPs in all, 12.4 GB; with
`:cpu` 12 runs of 0.27 million parameters, 4.23 and 2.00 TFLOPs each, 75 TFLOPs in all, 282 MB.
Hours follow from what the machine was timed at.

Reference:
  Chi et al., "KERPLE", NeurIPS 2022. arXiv:2205.09921
"""


def sweep(size=""):
  base = {"": "configs/base512.py", "cpu": "configs/quickstart.py"}[size]
  for kernel in ("log", "power"):
    for shared in (True, False):
      for seed in range(3):
        yield {"config": f"{base}:kerple", "encoding.kernel": kernel, "model.share_encoding": shared, "seed": seed}
