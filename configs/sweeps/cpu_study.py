"""A study that two cores finish within an hour: eight encodings with three seeds, and RoPE under eight extensions with two factors.

    python -m experiments.sweep --config=configs/sweeps/cpu_study.py --workdir=runs/cpu_study

Models and text are those of `configs/quickstart.py`, trained for half as many steps and measured to 8K.

By --dry_run: 24 runs of 0.27 million parameters, 2.12 TFLOPs of training each, 50.8 TFLOPs of training and 10.8 of evaluation in all,
142 MB. Measured: 35 min 2 s on two cores that had other work besides (63 min of the runs' processes: 79 % training, 21 % evaluation,
12 % compiling 147 programs). FIRE trains at a third of the speed of the others.

Perplexity of non-overlapping windows at 512 and 8,192 tokens, three seeds: KERPLE 4.37 and 4.36, FIRE 4.42 and 6.07, RoPE 4.83 and 48.6,
ALiBi 4.90 and 4.87, T5 7.30 and 13.5, sinusoidal 10.4 and 13.5, NoPE 12.1 and 12.3, learned 12.1 and none. RoPE at 8,192 under dynamic
NTK 7.96 (factor 4) and 9.26 (16), NTK by parts 9.04 and YaRN 9.09 (16), leaky ReRoPE 13.1 (16; 4.87 at 4,096, as far as 8 x 512).
Non-overlapping windows and the last 256 tokens put no pair in opposite order.
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
