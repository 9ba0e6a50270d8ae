"""The set-up of the ALiBi paper on WikiText-103, as near as posx comes, to be read against its Table 2 and Tables 13 to 15.

    python -m experiments.train --config=configs/published/alibi.py:alibi --workdir=runs/wiki/alibi
    python -m experiments.train --config=configs/published/alibi.py:alibi,cpu --workdir=runs/wiki_cpu/alibi

The argument is the encoding (alibi, sinusoidal, rope and t5 are in the paper), then in any order a trained length (512 if none is
given; in the paper also 1024, 1536, 2048, 3072), `sliding`, `cpu`. What an evaluation measures decides which numbers stand beside it:

    python -m experiments.evaluate --workdir=runs/wiki/alibi                                               (Table 2)
    python -m experiments.evaluate --workdir=runs/wiki/alibi --lengths=512,1024,1536,2048,3072 --stride=1 --targets=512   (Tables 13-15)
    python -m experiments.compare runs/wiki/alibi runs/wiki/sinusoidal --html=report.html

`sliding` has the second in the configuration, so that sweeps evaluate that way. As published: 16 layers, 1024 wide, 8 heads, an inner width
of 4096; 286,000 updates of 8 x 9,216 tokens, 16,000 of warm-up; norm clipped at 0.1; float16 there,
bfloat16 here. (The authors' command says 9,216 a device; the 205 epochs of the paper make it eight devices.) What differs:

    vocabulary      267,744 words there; 44,000 SentencePiece pieces here, which bring the model to the 247M parameters of the paper.
                    Perplexity is per piece, not per word: the shapes of the curves compare, the levels do not.
    embedding       adaptive input and softmax, cut at 20,000 and 60,000 there; one table for input and output here
    text            WikiText-103 there; here Wikipedia by its name in tensorflow-datasets. WikiText-103 itself, one file an article:
                    --config.data.name=text --config.data.path='wikitext-103/*.txt'; splits go by file, not as the authors' do
    windows         one stream, cut without regard to articles, there; here no token sees another article
    optimiser       Nesterov momentum at rate 1, a cosine over 270,000 updates to 1e-4 there; AdamW at 2.5e-4 here, a guess
    regularisation  dropout of 0.3, 0.2 in the softmax, 0.1 in attention and after the activation there; none here, weight decay 0.1
    layers          layer norms with biases, ReLU, no norm at the end there; RMS norms, GELU, a norm at the end here
    evaluation      all of the validation split there; here 64 documents of it: all of their tokens, or the last 512 if sliding

Not run at this size. `cpu` is two layers of 64 on bytes of the default text, trained at 128 tokens.
`alibi,cpu` was stopped at update 198 of 1,500 on a busy machine. Perplexity per byte over 4 documents, in windows that do not overlap:
9.41 at 128 bytes, 9.40 at 256, 9.39 at 512, 9.40 at 1024.
With stride 1, the last 64 bytes of each: 8.40 at 128, 8.41 at 256, 8.41 at 512.

Reference:
  Press, Smith, Lewis, "Train Short, Test Long", ICLR 2022. arXiv:2108.12409; github.com/ofirpress/attention_with_linear_biases
"""

from posx import config as configs
from posx.errors import UserError

TOKENS, DEVICES = 9216, 8


def get_config(argument: str = "alibi") -> configs.ConfigDict:
  encoding, *words = argument.split(",")
  if wrong := [word for word in words if word not in ("sliding", "cpu") and not word.isdecimal()]:
    raise UserError(f"configs/published/alibi.py takes ENCODING, then a trained length, 'sliding', 'cpu'; got {', '.join(wrong)}")
  config, cpu = configs.default(encoding), "cpu" in words
  length = next((int(word) for word in words if word.isdecimal()), 128 if cpu else 512)

  config.model.num_layers = 2 if cpu else 16
  config.model.model_dim = 64 if cpu else 1024
  config.model.num_heads = 4 if cpu else 8
  config.model.mlp = "gelu"
  config.model.mlp_dim = 4 * config.model.model_dim
  config.model.dtype = "float32" if cpu else "bfloat16"

  config.data.name = "sotu" if cpu else "wiki40b/en"
  config.data.packing = "packed"
  if not cpu:
    config.data.tokenizer = "sentencepiece"
    config.data.vocab_size = 44_000

  config.train.length = length
  config.train.batch_size = 4 if cpu else DEVICES * max(1, TOKENS // length)
  config.train.steps = 1500 if cpu else 286_000
  config.train.learning_rate = 4e-3 if cpu else 2.5e-4
  config.train.final_learning_rate = 3e-4 if cpu else 0.0
  config.train.warmup_steps = 75 if cpu else 16_000
  config.train.clip_norm = 1.0 if cpu else 0.1
  config.train.checkpoint_every = 500 if cpu else 5000
  config.train.log_every = 50

  config.eval.split = "validation"
  config.eval.documents = 4 if cpu else 64
  config.eval.last_k = 0
  if "sliding" in words:
    config.eval.stride = 1
    config.eval.lengths = (128, 256, 512) if cpu else (512, 1024, 1536, 2048, 3072)
    config.eval.targets = 64 if cpu else 512
  else:
    config.eval.lengths = (128, 256, 512, 1024) if cpu else (512, 612, 712, 1012, 1512, 5512, 10_512, 15_512)
    config.eval.targets = max(config.eval.lengths)
  return config
