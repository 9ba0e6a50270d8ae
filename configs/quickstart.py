"""Two small layers on bytes of the default text, 512 tokens: every encoding shows its character in minutes on a CPU.

    python -m experiments.train --config=configs/quickstart.py:rope --workdir=runs/rope

The argument is the encoding.

MEASURED: minutes on 2 CPU cores, and the loss to expect after the last step
"""

from posx import config as configs


def get_config(encoding: str = "rope") -> configs.ConfigDict:
  config = configs.default(encoding)

  config.model.num_layers = 2
  config.model.model_dim = 96
  config.model.num_heads = 4
  config.model.tied = False

  config.data.name = "sotu"
  config.data.tokenizer = "bytes"

  # small batches: at the same number of tokens, 4 x as many updates of a quarter of the batch reach 0.4 bits per byte less
  config.train.length = 512
  config.train.batch_size = 2
  config.train.steps = 2000
  config.train.learning_rate = 4e-3
  config.train.final_learning_rate = 3e-4
  config.train.warmup_steps = 100
  config.train.checkpoint_every = 500
  config.train.log_every = 25

  config.eval.lengths = (512, 2048, 4096, 8192, 16384, 32768)
  config.eval.documents = 3
  config.eval.targets = 4096
  return config
