"""Comparisons of what is added to the scores, and of the weights that come of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance import bridge, definitions
from conformance.rows import Comparison

T = 64


def _alibi(h: int, peer: Any) -> tuple[Any, Any, Any]:
  """Weights of ALiBi alone, content 0: the peers add it up to a constant of the row, which the softmax does not see."""
  blank = np.zeros((h, T, bridge.C), np.float32)
  exact = definitions.softmax(-definitions.alibi_slopes(h)[:, None, None] * np.abs(definitions.distances(T)))
  return bridge.weights(bridge.encoding("alibi"), {}, blank, blank), bridge.torch_weights(peer), exact


def bloom(h: int):
  import torch
  from transformers.models.bloom.modeling_bloom import build_alibi_tensor

  return _alibi(h, build_alibi_tensor(torch.ones(1, T, dtype=torch.long), h, torch.float32).expand(h, T, T))


def mpt(h: int):
  from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

  return _alibi(h, build_mpt_alibi_tensor(h, T).expand(h, T, T))


def falcon(h: int):
  import torch
  from transformers.models.falcon.modeling_falcon import build_alibi_tensor

  return _alibi(h, build_alibi_tensor(torch.ones(1, T, dtype=torch.long), h, torch.float32).expand(h, T, T))


def x_transformers_alibi(h: int):
  """The bias itself, without a mask; the queries are the last 16 of the keys."""
  from x_transformers.x_transformers import AlibiPositionalBias

  import posx

  theirs = bridge.array(AlibiPositionalBias(h)(16, T))
  ours = posx.bias_matrix(bridge.encoding("alibi"), {}, np.arange(T - 16, T), np.arange(T), h)
  return ours, theirs, -definitions.alibi_slopes(h)[:, None, None] * np.abs(definitions.distances(16, T))


FURTHEST = 5000


def t5_buckets(causal: bool, theirs: Any) -> tuple[Any, Any, Any]:
  """Bucket of every relative position from -5,000 to 5,000."""
  from posx.encodings import t5

  relative = np.arange(-FURTHEST, FURTHEST + 1)
  exact = [definitions.t5_bucket(int(r), causal, 32, 128) for r in relative]
  return t5.bucket(-relative.astype(np.int32), causal=causal), bridge.array(theirs(bridge.tensor(relative))), exact


def t5_transformers(causal: bool):
  from transformers.models.t5.modeling_t5 import T5Attention

  return t5_buckets(causal, lambda r: T5Attention._relative_position_bucket(r, bidirectional=not causal))


def t5_x_transformers(causal: bool):
  from x_transformers.x_transformers import RelativePositionBias

  return t5_buckets(causal, lambda r: RelativePositionBias._relative_position_bucket(r, causal=causal))


def t5_attention():
  """The bias of a decoder's layer from a random table."""
  from transformers import T5Config
  from transformers.models.t5.modeling_t5 import T5Attention

  import posx

  table = bridge.normal(bridge.H, 32)
  layer = T5Attention(T5Config(num_heads=bridge.H, d_model=bridge.D, is_decoder=True), has_relative_attention_bias=True, layer_idx=0)
  layer.relative_attention_bias.weight.data = bridge.tensor(table.T)
  theirs = bridge.array(layer.compute_bias(T, T)[0])
  exact = table[:, [[definitions.t5_bucket(int(-d), True, 32, 128) for d in row] for row in definitions.distances(T)]]
  return posx.bias_matrix(bridge.encoding("t5"), {"table": table}, np.arange(T), np.arange(T), bridge.H), theirs, exact


def shaw(clip: int = 5):
  """Weights of an encoder's layer, both directions, keys only: the peer has no vectors of values."""
  import torch
  from transformers import Wav2Vec2BertConfig
  from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

  config = Wav2Vec2BertConfig(
    hidden_size=bridge.D, num_attention_heads=bridge.H, position_embeddings_type="relative_key",
    left_max_position_embeddings=clip, right_max_position_embeddings=clip, attention_dropout=0.0,
  )  # fmt: skip
  config._attn_implementation = "eager"
  torch.manual_seed(0)
  layer = Wav2Vec2BertSelfAttention(config).eval()
  x = bridge.tensor(bridge.normal(1, T, bridge.D))
  with torch.no_grad():
    _, theirs = layer(x, output_attentions=True)
    q, k = (bridge.array(f(x).view(T, bridge.H, bridge.C).transpose(0, 1)) for f in (layer.linear_q, layer.linear_k))
  table = bridge.array(layer.distance_embedding.weight)
  made = bridge.encoding("shaw", clip=clip, values=False)
  exact = definitions.softmax(definitions.shaw(q, k, table), causal=False)
  return bridge.weights(made, {"key": table}, q, k, causal=False), bridge.array(theirs[0]), exact


def deberta(version: int, clip: int = 40, buckets: int = 0):
  """Weights of a layer, both directions, with the peer's projections of its table multiplied out."""
  import torch
  import transformers
  from transformers.models.deberta import modeling_deberta
  from transformers.models.deberta_v2 import modeling_deberta_v2

  peer = modeling_deberta if version == 1 else modeling_deberta_v2
  sizes = {"hidden_size": bridge.D, "num_attention_heads": bridge.H, "max_relative_positions": clip, "pos_att_type": ["c2p", "p2c"]}
  made = (transformers.DebertaConfig if version == 1 else transformers.DebertaV2Config)(
    **sizes, relative_attention=True, position_buckets=buckets or -1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
  )
  torch.manual_seed(0)
  layer = peer.DisentangledSelfAttention(made).eval()
  x, table = bridge.tensor(bridge.normal(1, T, bridge.D)), bridge.tensor(bridge.normal(2 * (buckets or clip), bridge.D, seed=1))
  seen = torch.ones(1, 1, T, T)
  heads = lambda y: bridge.array(y.view(-1, bridge.H, bridge.C).transpose(0, 1))
  with torch.no_grad():
    relative = peer.build_relative_position(x, x, **({"bucket_size": buckets, "max_position": clip} if version == 2 else {}))
    _, theirs = layer(x, seen, output_attentions=True, relative_pos=relative, rel_embeddings=table)
    if version == 1:
      q, k, _ = (bridge.array(part[0]) for part in layer.transpose_for_scores(layer.in_proj(x)).chunk(3, dim=-1))
      key, query = layer.pos_proj, layer.pos_q_proj
    else:
      q, k, key, query = heads(layer.query_proj(x)), heads(layer.key_proj(x)), layer.pos_key_proj, layer.pos_query_proj
    params = {"key_rows": heads(key(table)), "query_rows": heads(query(table))}
  rows = definitions.deberta_rows(T, buckets or clip, buckets, clip)
  exact = definitions.softmax(definitions.deberta(q, k, **params, rows=rows), causal=False)
  ours = bridge.weights(bridge.encoding("deberta", clip=clip, buckets=buckets), params, q, k, causal=False)
  return ours, bridge.array(theirs).reshape(ours.shape), exact


def transformer_xl(memory: int = 16):
  """Weights of XLNet's layer, 16 keys of memory before the first query."""
  import torch
  from transformers import XLNetConfig
  from transformers.models.xlnet import modeling_xlnet as theirs

  t, u, d = T - memory, T, bridge.D
  q, k = bridge.normal(bridge.H, t, bridge.C), bridge.normal(bridge.H, u, bridge.C, seed=1)
  params = {"u": 0.3 * bridge.normal(bridge.H, bridge.C, seed=2), "v": 0.3 * bridge.normal(bridge.H, bridge.C, seed=3)}
  params["project"] = d**-0.5 * bridge.normal(bridge.H, bridge.C, d, seed=4)
  config = XLNetConfig(d_model=d, n_head=bridge.H, n_layer=1, d_inner=d, vocab_size=8, attn_type="uni", dropout=0.0)
  model = theirs.XLNetModel(config).eval()
  layer = model.layer[0].rel_attn
  layer.r_w_bias.data, layer.r_r_bias.data = bridge.tensor(params["u"]), bridge.tensor(params["v"])
  layer.r.data = bridge.tensor(np.transpose(params["project"], (2, 0, 1)))
  place = torch.einsum("ibh,hnd->ibnd", model.relative_positional_encoding(t, u, bsz=1), layer.r)
  rows = [bridge.tensor(np.swapaxes(x, 0, 1))[:, None] for x in (q, k)]
  future = torch.ones(t, u).triu(u - t + 1)[:, :, None, None]
  with torch.no_grad():
    _, found = layer.rel_attn_core(rows[0], rows[1], rows[1], place, attn_mask=future, output_attentions=True)
  exact = definitions.softmax(definitions.transformer_xl(q, k, params["u"], params["v"], params["project"]))
  return bridge.weights(bridge.encoding("transformer_xl"), params, q, k), bridge.array(found[:, :, 0].permute(2, 0, 1)), exact


def cope(rows: int = 16):
  """Weights; the peer wants future keys masked in what opens the gates."""
  import torch
  from x_transformers.x_transformers import CoPE

  q, k = bridge.queries_keys(T)
  table = bridge.C**-0.5 * bridge.normal(rows, bridge.C, seed=1)
  model = CoPE(bridge.C, bridge.H, rows)
  model.pos_emb.data = bridge.tensor(table)
  scores = (bridge.tensor(q) @ bridge.tensor(k).transpose(-1, -2)) * bridge.C**-0.5
  masked = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.finfo(scores.dtype).max)
  theirs = bridge.torch_weights(scores + model(bridge.tensor(q)[None], masked[None])[0])
  exact = definitions.softmax(definitions.cope(q, k, table))
  return bridge.weights(bridge.encoding("cope", max_position=rows), {"table": table}, q, k), theirs, exact


def forgetting():
  """Weights; the gates are made from the input of the layer."""
  from x_transformers.x_transformers import DataDependentAlibi

  q, k = bridge.queries_keys(T)
  x = bridge.normal(T, bridge.D, seed=1)
  params = {"weight": bridge.D**-0.5 * bridge.normal(bridge.H, bridge.D, seed=2), "bias": bridge.normal(bridge.H, seed=3)}
  model = DataDependentAlibi(bridge.D, bridge.H)
  linear = model.to_forget_gates[0]
  linear.weight.data, linear.bias.data = (bridge.tensor(params[name]) for name in ("weight", "bias"))
  scores = (bridge.tensor(q) @ bridge.tensor(k).transpose(-1, -2)) * bridge.C**-0.5
  theirs = bridge.torch_weights(scores + model(bridge.tensor(x)[None])[0])
  exact = definitions.softmax(definitions.forgetting(q, k, x, **params))
  return bridge.weights(bridge.encoding("forgetting"), params, q, k, x=x), theirs, exact


COMPARISONS = [
  *(
    Comparison("alibi", f"weights, {h} heads", f"transformers {name}", lambda f=f, h=h: f(h))
    for h in (8, 12)
    for name, f in (("BLOOM", bloom), ("MPT", mpt))
  ),
  Comparison(
    "alibi", "weights, 12 heads", "transformers Falcon", lambda: falcon(12), close=None, apart=1e-4,
    note="precision: the peer rounds slopes and biases to bfloat16",
  ),
  *(
    Comparison("alibi", f"bias, {h} heads", "x-transformers `AlibiPositionalBias`", lambda h=h: x_transformers_alibi(h), within=1e-5)
    for h in (8, 12)
  ),
  *(
    Comparison("t5", f"buckets from -5,000 to 5,000, {'causal' if causal else 'both directions'}", name, lambda f=f, c=causal: f(c), 0, 0)
    for causal in (True, False)
    for name, f in (("transformers `T5Attention`", t5_transformers), ("x-transformers `RelativePositionBias`", t5_x_transformers))
  ),
  Comparison("t5", "bias of a layer", "transformers `T5Attention`", t5_attention, 0, 0),
  Comparison("shaw", "weights, both directions, keys only", "transformers Wav2Vec2-BERT", shaw),
  Comparison("deberta", "weights, both directions, k = 40", "transformers DeBERTa", lambda: deberta(1)),
  Comparison("deberta", "weights, both directions, 16 buckets up to 48", "transformers DeBERTa-v2", lambda: deberta(2, 48, 16)),
  Comparison("transformer_xl", "weights, 16 keys of memory", "transformers `XLNetRelativeAttention`", transformer_xl),
  Comparison("cope", "weights", "x-transformers `CoPE`", cope),
  Comparison("forgetting", "weights", "x-transformers `DataDependentAlibi`", forgetting, 1e-5, 1e-5),
]  # fmt: skip
