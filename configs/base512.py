"""The set-up of the KERPLE paper: 12 layers, 768 wide, trained at 512 tokens, to be read against its tables at 512 to 16,384.

    python -m experiments.train --config=configs/base512.py:kerple --workdir=runs/base512_kerple

The argument is the encoding. 50,000 updates of 32 windows of 512 tokens, Adam at 6e-4 with a cosine, bfloat16, five seeds in
the paper (--config.seed=0 ... 4).

Two things differ from the paper, so its numbers are a guide to the shape of the curves, not a target: the text (the paper's
OpenWebText2, GitHub and ArXiv come from the Pile; name yours with --config.data.name=text --config.data.path='books/*.txt', or
any tfds name) and the tokenizer (a SentencePiece model of 50,000 pieces trained on that text, for GPT-NeoX's byte pairs of the
same size).

Not run yet on an accelerator by this project: no minutes and no losses of its own to expect.

Reference:
  Chi et al., "KERPLE", NeurIPS 2022, section 5. arXiv:2205.09921
"""

from posx import config as configs


def get_config(encoding: str = "kerple") -> configs.ConfigDict:
  config = configs.default(encoding)

  config.model.num_layers = 12
  config.model.model_dim = 768
  config.model.num_heads = 12
  config.model.mlp = "gelu"
  config.model.mlp_dim = 3072
  config.model.tied = False
  config.model.dtype = "bfloat16"

  config.data.tokenizer = "sentencepiece"
  config.data.vocab_size = 50_000
  config.data.packing = "packed"

  config.train.length = 512
  config.train.batch_size = 32
  config.train.steps = 50_000
  config.train.learning_rate = 6e-4
  config.train.final_learning_rate = 6e-5
  config.train.warmup_steps = 500
  config.train.checkpoint_every = 1000
  config.train.log_every = 50
  config.train.eval_every = 1000

  config.eval.lengths = (512, 1024, 2048, 4096, 8192, 16_384)
  config.eval.documents = 64
  return config
