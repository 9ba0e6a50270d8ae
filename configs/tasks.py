"""Tasks with one right answer, learned at up to 64 tokens and asked at up to 16 times that: does an encoding generalise in length?

    python -m experiments.train --config=configs/tasks.py:copy,rope --workdir=runs/copy_rope
    python -m experiments.evaluate --workdir=runs/copy_rope

The argument is the task (copy, reverse, sort, addition, parity, recall) and the encoding.
"""

from posx import config as configs


def get_config(argument: str = "copy,rope") -> configs.ConfigDict:
  task, _, encoding = argument.partition(",")
  config = configs.default(encoding or "rope")

  config.model.num_layers = 2
  config.model.model_dim = 64
  config.model.num_heads = 4
  config.model.tied = False

  config.data.name = f"task:{task}"

  config.train.length = 64
  config.train.batch_size = 32
  config.train.steps = 800
  config.train.learning_rate = 3e-3
  config.train.final_learning_rate = 1e-4
  config.train.warmup_steps = 50
  config.train.weight_decay = 0.01
  config.train.checkpoint_every = 0
  config.train.log_every = 50

  # each length is filled by its instances, so nothing of a text's protocols is asked for
  config.eval.lengths = (16, 32, 64, 128, 256, 512, 1024)
  config.eval.documents = 64
  config.eval.last_k = 0
  config.eval.controls = ()
  return config
