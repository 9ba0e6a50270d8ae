"""Fine-tuning of a quickstart model: to four times its length under an extension, or at its length without its encoding.

    python -m experiments.train --config=configs/finetune.py:rope+yarn --init_from=runs/rope --workdir=runs/rope-yarn
    python -m experiments.train --config=configs/finetune.py:rope+pi --init_from=runs/rope --workdir=runs/rope-pi
    python -m experiments.train --config=configs/finetune.py:nope --init_from=runs/rope --workdir=runs/rope-dropped

The argument is encoding+extension, or an encoding alone: 'nope' from a RoPE model is DroPE, which drops the positions of a trained
model and recalibrates it at its own length. The run it starts from gives the original length, here 512; the factor follows,
2048 / 512. PI and YaRN were published with 1,000 and 400 steps of fine-tuning, DroPE with 0.5 to 5 % of the pre-training.

Reference:
  Chen et al., 2023, arXiv:2306.15595. Peng et al., 2023, arXiv:2309.00071.
  Gelberg et al., "Extending the Context of Pretrained LLMs by Dropping their Positional Embeddings", 2025. arXiv:2512.12167
"""

from pathlib import Path

from posx import config as configs


def get_config(pair: str = "rope+yarn") -> configs.ConfigDict:
  encoding, _, extension = pair.partition("+")
  config = configs.read(f"{Path(__file__).with_name('quickstart.py')}:{encoding}")
  config.extension = configs.section("extension", extension)
  config.train.length = 2048 if extension else 512
  config.train.batch_size = 2 if extension else 8
  config.train.steps = 400
  config.train.learning_rate = 1e-3
  config.train.final_learning_rate = 1e-4
  config.train.warmup_steps = 20
  config.train.init_from = "?"  # without --init_from it is refused; "" trains from scratch
  return config
