"""Comparisons of what is added to the input."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance import bridge, definitions
from conformance.rows import ROUNDED, Comparison

T, WIDTH = 512, 64


def _added(made: Any, params: Any = ()) -> np.ndarray:
  """What posx adds to an input of zeros, [t d]."""
  import jax
  import jax.numpy as jnp

  from posx import Dims

  p = made.prepare(dict(params), jax.tree.map(jnp.asarray, made.constants(Dims(bridge.H, WIDTH // bridge.H, WIDTH, T), T)))
  return np.asarray(made.on_input(p, jnp.zeros((T, WIDTH)), jnp.arange(T)))


def _sinusoidal(theirs: Any, layout: str, rule: str) -> tuple[Any, Any, Any]:
  exact = definitions.sinusoidal(np.arange(T), WIDTH, layout, rule)
  return _added(bridge.encoding("sinusoidal", layout=layout, frequencies=rule)), bridge.array(theirs), exact


def distilbert():
  import torch
  from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

  out = torch.empty(T, WIDTH)
  create_sinusoidal_embeddings(T, WIDTH, out)
  return _sinusoidal(out, "interleaved", "paper")


def marian():
  from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

  return _sinusoidal(MarianSinusoidalPositionalEmbedding(T, WIDTH).create_weight(), "concat", "paper")


def x_transformers():
  import torch
  from x_transformers.x_transformers import ScaledSinusoidalEmbedding

  model = ScaledSinusoidalEmbedding(WIDTH)
  return _sinusoidal(model(torch.zeros(1, T, WIDTH)) / model.scale, "concat", "paper")


def xglm():
  from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

  return _sinusoidal(XGLMSinusoidalPositionalEmbedding.get_embedding(T, WIDTH), "concat", "tensor2tensor")


def whisper():
  from transformers.models.whisper.modeling_whisper import sinusoids

  return _sinusoidal(sinusoids(T, WIDTH), "concat", "tensor2tensor")


def xglm_against_the_paper():
  from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

  return _sinusoidal(XGLMSinusoidalPositionalEmbedding.get_embedding(T, WIDTH), "concat", "paper")


def musicgen():
  from transformers.models.musicgen.modeling_musicgen import MusicgenSinusoidalPositionalEmbedding

  return _sinusoidal(MusicgenSinusoidalPositionalEmbedding.get_embedding(T, WIDTH), "concat", "tensor2tensor")


def learned():
  import torch
  from x_transformers.x_transformers import AbsolutePositionalEmbedding

  table = bridge.normal(T, WIDTH)
  model = AbsolutePositionalEmbedding(WIDTH, T)
  model.emb.weight.data = bridge.tensor(table)
  return _added(bridge.encoding("learned"), {"table": table}), bridge.array(model(torch.zeros(1, T, WIDTH)) / model.scale), table


COMPARISONS = [
  Comparison("sinusoidal", "512 rows, interleaved", "transformers DistilBERT", distilbert),
  Comparison("sinusoidal", "512 rows, sines first", "transformers Marian", marian),
  Comparison(
    "sinusoidal", "512 rows, sines first, times the root of the width", "x-transformers `ScaledSinusoidalEmbedding`", x_transformers,
    close=ROUNDED,
  ),
  Comparison("sinusoidal", "512 rows, frequencies of tensor2tensor", "transformers XGLM", xglm, close=ROUNDED),
  Comparison("sinusoidal", "512 rows, frequencies of tensor2tensor", "transformers Whisper", whisper, close=ROUNDED),
  Comparison(
    "sinusoidal", "512 rows, frequencies of the paper", "transformers XGLM", xglm_against_the_paper, close=None, apart=0.5,
    note="definition: the peer has the frequencies of tensor2tensor; `frequencies=tensor2tensor` here",
  ),
  Comparison(
    "sinusoidal", "512 rows, frequencies of tensor2tensor", "transformers MusicGen", musicgen, close=None, apart=0.5,
    note="definition: the peer has the cosines first; posx has no such layout",
  ),
  Comparison("learned", "512 rows, times the root of the width", "x-transformers `AbsolutePositionalEmbedding`", learned, 0, 1e-6),
]  # fmt: skip
