"""Extension after training: one RoPE model under every extension that serves it, with fixed factors 2 to 32 and with the automatic one.

    python -m experiments.sweep --config=configs/sweeps/extensions.py --workdir=runs/extensions
    python -m experiments.sweep --config=configs/sweeps/extensions.py:cpu --workdir=runs/extensions_cpu

The extensions are those of the catalogue that serve RoPE and need no field to be given; a new one joins by itself. Three seeds of
the same model show what is luck.

By --dry_run: 3 runs of 161.8 million parameters, 629 PFLOPs of training and 56.5 of evaluation each, 2.06 EFLOPs in all, 12.4 GB; with
`:cpu` 1 run of 0.27 million parameters, 4.23 and 63.5 TFLOPs, 282 MB. A new extension of the catalogue adds to the evaluation.
Hours follow from what the machine was timed at.
"""

from posx import extensions
from posx.encodings import make
from posx.errors import UserError

FACTORS = {"": (2, 4, 8, 16, 32), "cpu": (4, 16)}


def names(factors):
  """'name' where the factor follows from the length, and 'name:factor'."""
  rope, found = make("rope"), []
  for name, extension in extensions.CATALOGUE.items():
    if not extension.accepts(rope):
      continue
    for factor in (None, *factors):
      if factor is not None and "factor" not in extension.__dataclass_fields__:
        continue
      try:
        extensions.apply(extensions.make(name, **({} if factor is None else {"factor": float(factor)})), rope)
      except UserError:  # it needs fields that have no default, or changes nothing with this factor
        continue
      found.append(name if factor is None else f"{name}:{factor}")
  return tuple(found)


def sweep(size=""):
  base = {"": "configs/base512.py", "cpu": "configs/quickstart.py"}[size]
  for seed in range(3 if not size else 1):
    yield {"config": f"{base}:rope", "seed": seed, "eval.extensions": names(FACTORS[size])}
