"""A study that two cores finish within an hour: eight encodings with three seeds, and RoPE under eight extensions with two factors.

    python -m experiments.sweep --config=configs/sweeps/cpu_study.py --workdir=runs/cpu_study

Models and text are those of `configs/quickstart.py`, trained for half as many steps and measured to 8K.

By --dry_run: 24 runs of 0.27 million parameters, 2.12 TFLOPs of training each, 50.8 TFLOPs of training and 10.8 of evaluation in all,
142 MB. At 33 GFLOPs per second and core, which the quickstart's 2,000 steps in 2 min 10 s come to, that is 16 minutes on two free cores.
Not run as a whole yet.
"""

ENCODINGS = ("nope", "sinusoidal", "learned", "t5", "rope", "alibi", "kerple", "fire")
EXTENSIONS = ("pi", "ntk", "dynamic_ntk", "ntk_by_parts", "yarn", "llama3", "proportional", "leaky_rerope")
FACTORS = (4, 16)


def sweep():
  extended = tuple(f"{name}:{factor}" for name in EXTENSIONS for factor in FACTORS)
  for encoding in ENCODINGS:
    for seed in range(3):
      yield {
        "config": f"configs/quickstart.py:{encoding}",
        "seed": seed,
        "train.steps": 1000,
        "eval.lengths": (512, 1024, 2048, 4096, 8192),
        "eval.targets": 2048,
        "eval.extensions": extended if encoding == "rope" else (),
      }
