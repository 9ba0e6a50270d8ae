"""Tasks with one right answer, learned at up to 64 tokens and asked at up to 16 times that: does an encoding generalise in length?

    python -m experiments.train --config=configs/tasks.py:copy,rope --workdir=runs/copy_rope
    python -m experiments.evaluate --workdir=runs/copy_rope

The argument is the task (copy, reverse, sort, addition, parity, induction, recall) and the encoding.

2,000 steps took 2 min 23 s of CPU time, so 800 take about a minute of a core. copy with rope, seed 0, already after 331 of the 800:
97.9 % of the answer's tokens right at 64 tokens (43.8 % of answers as a whole), 6.8 % at 128 and 6.5 % at 512; chance is 1 in 17.

recall, seed 0, 800 steps (1 min 14 s), then `experiments.probe --config=configs/probes.py:recall --config.lengths=32,64,...,1024
--config.documents=64`: alibi, kerple and forgetting find the pair at every depth of every length, 16 times the trained one included. rope
finds all of them at 32 tokens, at 256 those of the last quarter (61 to 81 %), none at 1,024 (9 to 19 %; chance is 1 in 8). sinusoidal finds
only what stands at the start of a longer window (depth 0: 100 %, others 8 to 12 %), nope too, and the less the further it is from there.
t5 finds the far half and loses the near one (at 512: 100, 80, 23, 20, 12, 12 % at depths 0, 0.25, 0.5, 0.75, 0.9, 1).
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
