"""Training: `train(config, workdir)` runs a configuration from where its folder stands to its last step."""

from posx.training.loop import train as train
