"""Models whose layers differ, the size of the quickstart with four or six layers.

    python -m experiments.train --config=configs/layers.py:irope --workdir=runs/irope

The argument is the arrangement:

    irope    RoPE, every fourth layer without positions and with a temperature that grows with the position, in steps of the trained
             length (Llama 4: 8,192 tokens; `nope+llama4` alone, without `:extension.floor_scale=0`)
    rnope    the same with a window of 128 in the RoPE layers (RNoPE-SWA)
    gemma3   five local layers (window 128, base 10,000) to a global one (base 1,000,000)

Extended (--extension=yarn), the layers with a window of their own stay as they are.

Reference:
  Meta, Llama 4, 2025. Yang et al., 2025, arXiv:2501.18795. Gemma Team, 2025, arXiv:2503.19786
"""

from pathlib import Path

from posx import config as configs
from posx.errors import UserError, unknown

ARRANGEMENTS = {
  "irope": ("rope", "rope", "rope", "nope+llama4:extension.floor_scale=0"),
  "rnope": ("rope:window=128", "rope:window=128", "rope:window=128", "nope"),
  "gemma3": ("rope:window=128",) * 5 + ("rope:base=1e6",),
}


def get_config(arrangement: str = "irope") -> configs.ConfigDict:
  if arrangement not in ARRANGEMENTS:
    raise UserError(unknown("arrangement of layers", arrangement, ARRANGEMENTS))
  config = configs.read(f"{Path(__file__).with_name('quickstart.py')}:rope")
  config.model.layers = ARRANGEMENTS[arrangement]
  config.model.num_layers = len(ARRANGEMENTS[arrangement])
  return config
