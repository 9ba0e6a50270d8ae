"""The set-up of the KERPLE paper: 12 layers, 768 wide, trained at 512 tokens, to be read against its tables at 512 to 16,384.

    python -m experiments.train --config=configs/base512.py:kerple --workdir=runs/base512_kerple

The argument is the encoding. As published: 50,000 updates of 32 windows of 512 tokens, Adam at 6e-4 with a cosine, bfloat16, five seeds
(--config.seed=0 ... 4). What is measured without overlap stands beside the numbers of the paper in `compare --html`. What differs, so
that these are a guide to the shape of the curves, not a target:

    text            OpenWebText2, GitHub and ArXiv of the Pile there; the default text here: name yours with --config.data.name=text
                    --config.data.path='books/*.txt', or any name of tensorflow-datasets
    tokenizer       GPT-NeoX's byte pairs there; 50,000 SentencePiece pieces trained on that text here
    windows         one stream there; here no token sees another document
    layers          layer norms with biases there; RMS norms here
    sharing         one set of biases for all layers there; here one a layer, unless --config.model.share_encoding=True, as
                    `sweeps/kerple_table.py` has it
    evaluation      320 windows a length there; 64 documents here

Its size for a CPU is `configs/quickstart.py`, which says what it gave.

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
