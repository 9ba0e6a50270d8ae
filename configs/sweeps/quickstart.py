"""Seven encodings trained at 512 tokens, measured far beyond, two of them also under context extensions.

    python -m experiments.sweep --config=configs/sweeps/quickstart.py --workdir=/tmp/posx/quickstart

'yarn' means a factor of length / trained length at each length; 'dynamic_ntk:2' is the fixed factor in common use.
"""

EXTENSIONS = {
  "learned": ("truncate", "interpolate"),
  "rope": ("pi", "ntk", "dynamic_ntk:2", "yarn"),
}


def sweep():
  for encoding in ("nope", "sinusoidal", "learned", "t5", "rope", "alibi", "kerple"):
    yield {"config": f"configs/quickstart.py:{encoding}", "eval.extensions": EXTENSIONS.get(encoding, ())}
