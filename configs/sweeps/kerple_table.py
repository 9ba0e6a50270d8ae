"""The table of the KERPLE paper: seven encodings trained at 512 tokens with three seeds, measured to 16,384.

    python -m experiments.sweep --config=configs/sweeps/kerple_table.py --workdir=runs/kerple_table
    python -m experiments.sweep --config=configs/sweeps/kerple_table.py:cpu --workdir=runs/kerple_table_cpu

Biases of T5 and KERPLE are shared by all layers, as their authors have it. The text is another than the paper's, see
`configs/base512.py`, so the order of the curves is what compares.

By --dry_run: 21 runs of 161.8 million parameters, 629 PFLOPs of training and 1.5 of evaluation each, 13.2 EFLOPs in all, 12.4 GB; with
`:cpu` 21 runs of 0.27 million parameters, 4.23 and 2.00 TFLOPs each, 131 TFLOPs in all, 282 MB.
Hours follow from what the machine was timed at.

Reference:
  Chi et al., "KERPLE", NeurIPS 2022, table 3. arXiv:2205.09921
"""

ENCODINGS = (
  {"encoding.name": "nope"},
  {"encoding.name": "sinusoidal"},
  {"encoding.name": "rope"},
  {"encoding.name": "alibi"},
  {"encoding.name": "t5", "model.share_encoding": True},
  {"encoding.name": "kerple", "encoding.kernel": "log", "model.share_encoding": True},
  {"encoding.name": "kerple", "encoding.kernel": "power", "model.share_encoding": True},
)


def sweep(size=""):
  base = {"": "configs/base512.py", "cpu": "configs/quickstart.py"}[size]
  for encoding in ENCODINGS:
    for seed in range(3):
      own = {name: value for name, value in encoding.items() if name != "encoding.name"}
      yield {"config": f"{base}:{encoding['encoding.name']}", **own, "seed": seed}
