"""The definitions in float64 NumPy, written from the papers and apart from posx; i is the query's position, j the key's."""

from __future__ import annotations

import math

import numpy as np


def frequencies(r: int, base: float = 10000.0) -> np.ndarray:
  """Su et al. 2021, section 3.2.2: base^(-2i/r)."""
  return np.array([float(base) ** (-2.0 * i / r) for i in range(r // 2)])


def dynamic_ntk(r: int, base: float, factor: float, original: int, length: int) -> np.ndarray:
  """Peng et al. 2023, sections 3.1 and 3.3: the base grows with the length beyond the trained one."""
  longer = max(length, original)
  return frequencies(r, base * (factor * longer / original - factor + 1) ** (r / (r - 2)))


def yarn(r: int, base: float, factor: float, original: int, truncate: bool = True, fast: float = 32.0, slow: float = 1.0) -> np.ndarray:
  """YaRN as its authors' code has it: the mixture is linear in the index of the frequency."""
  low, high = (r * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (fast, slow))
  if truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, r - 1)
  out = []
  for i, f in enumerate(frequencies(r, base)):
    share = min(max((i - low) / ((high - low) or 0.001), 0.0), 1.0)
    out.append(share * f / factor + (1 - share) * f)
  return np.array(out)


def by_turns(r: int, base: float, factor: float, original: int, fast: float, slow: float) -> np.ndarray:
  """Peng et al. 2023, equations 17 and 18, and Llama 3's rule: the mixture is linear in the turns within the trained length."""
  out = []
  for f in frequencies(r, base):
    kept = min(max((original * f / (2 * math.pi) - slow) / (fast - slow), 0.0), 1.0)
    out.append(kept * f + (1 - kept) * f / factor)
  return np.array(out)


def yarn_gain(factor: float, mscale: float = 1.0) -> float:
  """Peng et al. 2023, equation 22, with DeepSeek's coefficient."""
  return 0.1 * mscale * math.log(factor) + 1


def longrope_gain(factor: float, original: int) -> float:
  """Phi-3: sqrt(1 + ln s / ln L0)."""
  return math.sqrt(1 + math.log(factor) / math.log(original))


def rotate(x: np.ndarray, positions: np.ndarray, inv_freq: np.ndarray, layout: str, gain: float = 1.0) -> np.ndarray:
  """Su et al. 2021, equation 34, pair by pair; x [..., t, c]."""
  out, n = np.array(x, np.float64), len(inv_freq)
  for i, f in enumerate(inv_freq):
    a, b = (i, i + n) if layout == "half" else (2 * i, 2 * i + 1)
    cos, sin = gain * np.cos(positions * f), gain * np.sin(positions * f)
    out[..., a], out[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., b] * cos + x[..., a] * sin
  return out


def distances(t: int, u: int | None = None) -> np.ndarray:
  """i - j for t queries that end where u keys end."""
  u = u or t
  return np.arange(u - t, u)[:, None] - np.arange(u)[None, :]


def softmax(scores: np.ndarray, causal: bool = True) -> np.ndarray:
  """Over the keys, those behind the query left out."""
  if causal:
    scores = np.where(distances(*scores.shape[-2:]) >= 0, scores, -np.inf)
  e = np.exp(scores - scores.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


def products(q: np.ndarray, k: np.ndarray) -> np.ndarray:
  """q k / sqrt(c); [h t c], [h u c]."""
  return np.einsum("htc,huc->htu", q.astype(np.float64), k.astype(np.float64)) / math.sqrt(q.shape[-1])


def alibi_slopes(h: int) -> np.ndarray:
  """Press et al. 2022, section 3; other head counts as in its authors' code."""
  two = 2 ** int(math.log2(h))
  first = [2.0 ** (-8.0 * n / two) for n in range(1, two + 1)]
  between = [2.0 ** (-8.0 * n / (2 * two)) for n in range(1, 2 * two + 1, 2)]
  return np.array(first + between[: h - two])


def t5_bucket(relative: int, causal: bool, buckets: int, furthest: int) -> int:
  """Raffel et al. 2020: bucket of key - query, decided in whole numbers so that no logarithm is rounded."""
  side = buckets if causal else buckets // 2
  offset = side if not causal and relative > 0 else 0
  n = max(-relative, 0) if causal else abs(relative)
  exact, k = side // 2, 0
  if n < exact:
    return offset + n
  while k + 1 < side - exact and n ** (side - exact) * exact ** (k + 1) >= furthest ** (k + 1) * exact ** (side - exact):
    k += 1
  return offset + exact + k


def sinusoidal(positions: np.ndarray, d: int, layout: str = "interleaved", rule: str = "paper") -> np.ndarray:
  """Vaswani et al. 2017, section 3.5; 'concat' has the sines first. Rule 'tensor2tensor': base^(-i/(d/2 - 1))."""
  steps = np.arange(0, d, 2) / d if rule == "paper" else np.arange(d // 2) / (d // 2 - 1)
  angles = positions[:, None] * 10000.0**-steps
  if layout == "concat":
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
  return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(len(positions), d)


def xpos(q: np.ndarray, k: np.ndarray, scale_base: float = 512.0, gamma: float = 0.4) -> np.ndarray:
  """Sun et al. 2022, section 3.2: rotary scores, each pair fading with the distance."""
  c = q.shape[-1]
  t, f = np.arange(q.shape[1]), frequencies(c)
  turned_q, turned_k = (rotate(x.astype(np.float64), t, f, "interleaved") for x in (q, k))
  zeta = (2 * np.arange(c // 2) / c + gamma) / (1 + gamma)
  fading = np.repeat(zeta[None, None] ** (distances(len(t))[..., None] / scale_base), 2, axis=-1)
  return np.einsum("htc,huc,tuc->htu", turned_q, turned_k, fading) / math.sqrt(c)


def pope(q: np.ndarray, k: np.ndarray, delta: np.ndarray) -> np.ndarray:
  """Gopalakrishnan et al. 2025: sizes from the content, angles from the positions and a learned phase; delta [h c]."""
  c = q.shape[-1]
  f = 10000.0 ** (-np.arange(c) / c)
  size_q, size_k = (np.log1p(np.exp(x.astype(np.float64))) for x in (q, k))
  angle = distances(q.shape[1])[..., None] * f - delta[:, None, None]
  return np.einsum("htc,huc,htuc->htu", size_q, size_k, np.cos(angle)) / math.sqrt(c)


def shaw(q: np.ndarray, k: np.ndarray, table: np.ndarray) -> np.ndarray:
  """Shaw et al. 2018, equations 3 and 4, without vectors of values; table [2 clip + 1, c], the far past first."""
  clip = len(table) // 2
  rows = table[np.clip(-distances(q.shape[1]), -clip, clip) + clip].astype(np.float64)
  return products(q, k) + np.einsum("htc,tuc->htu", q.astype(np.float64), rows) / math.sqrt(q.shape[-1])


def deberta_rows(t: int, side: int, buckets: int = 0, most: int = 512) -> np.ndarray:
  """He et al. 2021, equation 3: delta(i, j); with `buckets`, of DeBERTa-v2's logarithmic distances."""
  away = distances(t)
  if buckets:
    mid = buckets // 2
    steps = [
      [math.ceil(round(math.log(max(d, mid) / mid) / math.log((most - 1) / mid) * (mid - 1), 9)) for d in row] for row in np.abs(away)
    ]
    away = np.where(np.abs(away) <= mid, away, np.sign(away) * (mid + np.asarray(steps)))
  return np.where(away <= -side, 0, np.where(away >= side, 2 * side - 1, away + side))


def deberta(q: np.ndarray, k: np.ndarray, key_rows: np.ndarray, query_rows: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """He et al. 2021, equation 4, with the row delta(i, j) in both tables as in the authors' code; tables [h, 2 side, c]."""
  q, k = q.astype(np.float64), k.astype(np.float64)
  terms = np.einsum("htc,huc->htu", q, k)
  terms = terms + np.take_along_axis(np.einsum("htc,hrc->htr", q, key_rows), np.broadcast_to(rows, terms.shape), axis=2)
  from_keys = np.einsum("huc,hrc->hur", k, query_rows)
  terms = terms + np.take_along_axis(from_keys, np.broadcast_to(rows.T, terms.shape), axis=2).swapaxes(1, 2)
  return terms / math.sqrt(3 * q.shape[-1])


def transformer_xl(q: np.ndarray, k: np.ndarray, u: np.ndarray, v: np.ndarray, project: np.ndarray) -> np.ndarray:
  """Dai et al. 2019, section 3.3; u, v [h c], project [h c d]."""
  q, k, d = q.astype(np.float64), k.astype(np.float64), project.shape[-1]
  apart = distances(q.shape[1], k.shape[1])
  r = sinusoidal(apart.reshape(-1).astype(np.float64), d, "concat").reshape(*apart.shape, d)
  content = np.einsum("htc,huc->htu", q + u[:, None], k)
  place = np.einsum("htc,hcd,tud->htu", q + v[:, None], project.astype(np.float64), r)
  return (content + place) / math.sqrt(q.shape[-1])


def cope(q: np.ndarray, k: np.ndarray, table: np.ndarray) -> np.ndarray:
  """Golovneva et al. 2024, equations 3 to 5, with the gates of the authors' listing; table [rows, c]."""
  scores, last = products(q, k), len(table) - 1
  gates = np.where(distances(q.shape[1]) >= 0, 1 / (1 + np.exp(-scores)), 0.0)
  counted = np.minimum(np.cumsum(gates[..., ::-1], axis=-1)[..., ::-1], last)
  by_row = np.einsum("htc,nc->htn", q.astype(np.float64), table.astype(np.float64))
  low, high = np.floor(counted).astype(int), np.ceil(counted).astype(int)
  part = counted - low
  return scores + (1 - part) * np.take_along_axis(by_row, low, -1) + part * np.take_along_axis(by_row, high, -1)


def forgetting(q: np.ndarray, k: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
  """Lin et al. 2025, equations 5 to 8: the product of the gates between key and query; x [t d], weight [h d], bias [h]."""
  kept = 1 / (1 + np.exp(-(x.astype(np.float64) @ weight.T.astype(np.float64) + bias)))
  left = np.zeros((len(bias), len(x), len(x)))
  for j in range(len(x)):
    left[:, j + 1 :, j] = np.log(np.cumprod(kept[j + 1 :], axis=0)).T
  return products(q, k) + left
