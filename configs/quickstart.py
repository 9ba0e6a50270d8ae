"""Three small layers on bytes of the default text, 512 tokens: every encoding shows its character in minutes on a CPU.

    python -m experiments.train --config=configs/quickstart.py:rope --workdir=runs/rope

The argument is the encoding.

MEASURED: minutes on 2 CPU cores, and the loss to expect after the last step
"""

from posx import config as configs


def get_config(encoding: str = "rope") -> configs.ConfigDict:
  config = configs.default(encoding)

  config.model.num_layers = 3
  config.model.model_dim = 128
  config.model.num_heads = 4

  config.data.name = "sotu"
  config.data.tokenizer = "bytes"

  config.train.length = 512
  config.train.batch_size = 8
  config.train.steps = 250
  config.train.learning_rate = 3e-3
  config.train.final_learning_rate = 3e-4
  config.train.warmup_steps = 25
  config.train.checkpoint_every = 100
  config.train.log_every = 10

  config.eval.lengths = (512, 1024, 2048, 4096)
  return config
