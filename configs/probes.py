"""What to measure beyond perplexity on a trained run: passkey, recall, attention, receptive, kernels.

    python -m experiments.probe --config=configs/probes.py:passkey --workdir=runs/rope
    python -m experiments.probe --config=configs/probes.py:attention --workdir=runs/rope --config.lengths=512,2048,8192

The argument is the probe. Its fields, with the defaults for the models of configs/quickstart.py, are in posx/evaluation/probe.py.
"""

from posx.evaluation import probe


def get_config(name: str = "passkey") -> probe.Probe:
  return probe.default(name)
