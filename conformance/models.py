"""A whole model: a small Llama of transformers with random weights, its weights in `posx.decoder.Decoder`, logits of both."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance import bridge, definitions
from conformance.rows import Comparison

VOCABULARY, LAYERS, HEADS, KV_HEADS, CHANNELS, HIDDEN = 97, 3, 4, 2, 16, 96
WIDTH, TRAINED, TOKENS = HEADS * CHANNELS, 32, 48
EPS = 1e-6


def tokens() -> np.ndarray:
  return np.random.default_rng(0).integers(0, VOCABULARY, (2, TOKENS))


def llama(kind: str, **fields: Any) -> Any:
  """The peer, in float32, with weights large enough that attention is not flat."""
  import torch
  from transformers import LlamaConfig, LlamaForCausalLM

  config = LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS, rms_norm_eps=EPS, tie_word_embeddings=False, attn_implementation="eager",
    max_position_embeddings=4 * TRAINED if kind == "yarn" or kind == "llama3" else TRAINED,
    rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **fields},
  )  # fmt: skip
  model = LlamaForCausalLM(config).eval()
  random = np.random.default_rng(1)
  for name, weight in model.named_parameters():
    scale = 1.0 if "embed" in name else weight.shape[-1] ** -0.5
    made = random.normal(size=weight.shape) * scale if weight.ndim > 1 else random.uniform(0.5, 1.5, weight.shape)
    weight.data = torch.from_numpy(made.astype(np.float32))
  return model


def arrays(model: Any) -> dict[str, np.ndarray]:
  return {name: bridge.array(weight) for name, weight in model.named_parameters()}


def parameters(held: dict[str, np.ndarray]) -> dict[str, Any]:
  """The peer's weights under posx's names: kernels are transposed, layers stacked, q k v and gate up side by side."""

  def layers(*names: str) -> np.ndarray:
    return np.stack([np.concatenate([held[f"model.layers.{n}.{name}.weight"].T for name in names], axis=-1) for n in range(LAYERS)])

  return {
    # posx multiplies what it looks up by the root of the width.
    "embedding": held["model.embed_tokens.weight"] * WIDTH**-0.5,
    "norm": {"scale": held["model.norm.weight"]},
    "output": held["lm_head.weight"].T,
    "layers": {
      "attention_norm": {"scale": layers("input_layernorm")},
      "mlp_norm": {"scale": layers("post_attention_layernorm")},
      "qkv": {"kernel": layers("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
      "out": {"kernel": layers("self_attn.o_proj")},
      "up": {"kernel": layers("mlp.gate_proj", "mlp.up_proj")},
      "down": {"kernel": layers("mlp.down_proj")},
    },
  }


def exact(held: dict[str, np.ndarray], inv_freq: np.ndarray, gain: float) -> np.ndarray:
  """The same model in float64 NumPy."""
  held = {name: x.astype(np.float64) for name, x in held.items()}
  positions = np.arange(TOKENS)
  norm = lambda x, scale: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + EPS) * scale
  rows = []
  for row in tokens():
    x = held["model.embed_tokens.weight"][row]
    for n in range(LAYERS):
      at = lambda name, n=n: held[f"model.layers.{n}.{name}.weight"]
      y = norm(x, at("input_layernorm"))
      q, k, v = ((y @ at(f"self_attn.{name}_proj").T).reshape(TOKENS, -1, CHANNELS).swapaxes(0, 1) for name in "qkv")
      q, k = (definitions.rotate(z, positions, inv_freq, "half", gain) for z in (q, k))
      k, v = (np.repeat(z, HEADS // KV_HEADS, axis=0) for z in (k, v))
      seen = definitions.softmax(definitions.products(q, k)) @ v
      x = x + seen.swapaxes(0, 1).reshape(TOKENS, WIDTH) @ at("self_attn.o_proj").T
      y = norm(x, at("post_attention_layernorm"))
      gate = y @ at("mlp.gate_proj").T
      x = x + (gate / (1 + np.exp(-gate)) * (y @ at("mlp.up_proj").T)) @ at("mlp.down_proj").T
    rows.append(norm(x, held["model.norm.weight"]) @ held["lm_head.weight"].T)
  return np.stack(rows)


def decoder(encoding: Any) -> Any:
  from posx.decoder import Decoder

  return Decoder(VOCABULARY, LAYERS, WIDTH, HEADS, KV_HEADS, mlp_dim=HIDDEN, tied=False, train_length=TRAINED, encoding=encoding)


def logits(encoding: Any, kind: str, inv_freq: np.ndarray, gain: float = 1.0, **fields: Any) -> tuple[Any, Any, Any]:
  """(posx, the peer, definition): logits of 2 rows of 48 tokens, the trained length being 32."""
  import torch

  model = llama(kind, **fields)
  held = arrays(model)
  with torch.no_grad():
    theirs = bridge.array(model(torch.tensor(tokens())).logits)
  return decoder(encoding).apply({"params": parameters(held)}, tokens()), theirs, exact(held, inv_freq, gain)


def decoded(encoding: Any, kind: str, inv_freq: np.ndarray, **fields: Any) -> tuple[Any, Any, Any]:
  """The same from a cache: 16 tokens at once, then 32 one by one; the last token's logits, the definition being the full pass."""
  import torch
  from transformers import DynamicCache

  from posx.decoding import Decoding

  model = llama(kind, **fields)
  held, fed, cache = arrays(model), tokens(), DynamicCache()
  session = Decoding(decoder(encoding), {"params": parameters(held)}, batch=len(fed), capacity=TOKENS, total=TOKENS)
  ours = theirs = None
  for part in (fed[:, :16], *(fed[:, n : n + 1] for n in range(16, TOKENS))):
    ours = session.feed(part)
    with torch.no_grad():
      theirs = model(torch.tensor(part), cache=cache, use_cache=True).logits[:, -1:]
  return ours, bridge.array(theirs), exact(held, inv_freq, 1.0)[:, -1:]


def plain():
  return logits(bridge.encoding("rope"), "default", definitions.frequencies(CHANNELS))


def plain_decoded():
  return decoded(bridge.encoding("rope"), "default", definitions.frequencies(CHANNELS))


def linear():
  return logits(bridge.encoding("rope", "pi", factor=2.0), "linear", definitions.frequencies(CHANNELS) / 2, factor=2.0)


def dynamic():
  inv_freq = definitions.dynamic_ntk(CHANNELS, 10000.0, 2.0, TRAINED, TOKENS)
  return logits(bridge.encoding("rope", "dynamic_ntk", factor=2.0), "dynamic", inv_freq, factor=2.0)


def dynamic_decoded():
  inv_freq = definitions.dynamic_ntk(CHANNELS, 10000.0, 2.0, TRAINED, TOKENS)
  return decoded(bridge.encoding("rope", "dynamic_ntk", factor=2.0), "dynamic", inv_freq, factor=2.0)


def yarn():
  inv_freq = definitions.yarn(CHANNELS, 10000.0, 4.0, TRAINED)
  fields = {"factor": 4.0, "original_max_position_embeddings": TRAINED}
  return logits(bridge.encoding("rope", "yarn", factor=4.0), "yarn", inv_freq, definitions.yarn_gain(4.0), **fields)


def llama3():
  inv_freq = definitions.by_turns(CHANNELS, 10000.0, 4.0, TRAINED, 4.0, 1.0)
  fields = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": TRAINED}
  return logits(bridge.encoding("rope", "llama3", factor=4.0), "llama3", inv_freq, **fields)


PEER = "transformers `LlamaForCausalLM`"
FULL, CACHED = "logits of a whole model", "logits from a cache, token by token"


def _logits(method: str, compared: str, run: Any, **more: Any) -> Comparison:
  return Comparison(method, compared, PEER, run, **{"within": 2e-5, "close": 4e-5, **more})


COMPARISONS = [
  _logits("rope", FULL, plain),
  _logits("rope", CACHED, plain_decoded),
  _logits("pi", FULL, linear),
  _logits("dynamic_ntk", FULL, dynamic),
  _logits(
    "dynamic_ntk", CACHED, dynamic_decoded, close=None, apart=1e-2,
    note="definition: the peer's cache keeps keys as turned for the length at which they were read; posx is told the total length",
  ),
  _logits("yarn", FULL, yarn),
  _logits("llama3", FULL, llama3),
]  # fmt: skip
