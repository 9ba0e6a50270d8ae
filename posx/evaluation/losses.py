"""The loss of every token of every window: computed once per (weights, encoding, length, documents), then stored.

Constants of the encoding (frequencies, gains, tables) are arguments of the compiled function, so all extensions of a
model that differ only there share one executable per length.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from posx.attention.pieces import round_up
from posx.attention.sharded import uncut
from posx.decoder import Decoder
from posx.evaluation.windows import Windows
from posx.sizes import TOKENS_AT_ONCE

_SPLIT_FROM = 2048
"""A few windows of at least so many tokens are cut over the devices where that is faster than a device for each."""


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _run(model: Decoder, scored: int, mesh: Mesh | None, params, constants, tokens, targets, drawn):
  def local(params, constants, tokens, targets, drawn):
    how: dict[str, Any] = {"scored": scored} if scored else {}
    return model.apply(params, tokens, targets, constants=constants, method="token_losses", **how, **drawn)

  if mesh is None:
    return local(params, constants, tokens, targets, drawn)
  cut = P("rows") if "rows" in mesh.axis_names else P(None, "context")
  mapped = jax.shard_map(local, mesh=mesh, in_specs=(P(), P(), cut, cut, cut), out_specs=cut, check_vma=False)
  return mapped(params, constants, tokens, targets, drawn)


def mesh_of(model: Decoder, windows: int, length: int) -> Mesh | None:
  """The devices of this process that share the work: whole windows each ('rows'), or pieces of one ('context'); None for one device.

  Heads of a window in pieces are dealt out for the attention, so the number of pieces divides the heads. Encodings that mix heads,
  or sum over the tokens of a sequence, are not cut.
  """
  devices = jax.local_devices()
  pieces, whole = 1, min(len(devices), windows)
  if length >= _SPLIT_FROM:
    possible = (n for n in range(2, len(devices) + 1) if length % n == 0 and not uncut(model.encoding, *model.head_shape[:2], n))
    pieces = max(possible, default=1)
  padded = lambda sharers: round_up(windows, _at_once(windows, length, sharers))
  n, axis = (pieces, "context") if padded(1) / pieces < padded(whole) / whole else (whole, "rows")
  return None if n == 1 else jax.make_mesh((n,), (axis,), axis_types=(AxisType.Auto,), devices=devices[:n])


def _at_once(windows: int, length: int, sharers: int) -> int:
  """Windows in a batch, a multiple of the devices that have whole ones."""
  return sharers * max(1, min(TOKENS_AT_ONCE // length, windows) // sharers)


def chips_of(model: Decoder, windows: int, length: int) -> int:
  """How many chips share the work; the devices of a CPU are its cores, and it is one chip."""
  mesh = mesh_of(model, windows, length)
  return 1 if mesh is None or jax.default_backend() == "cpu" else mesh.size


def window_losses(
  model: Decoder,
  params: Any,
  tokens: np.ndarray,
  windows: Windows,
  progress: Callable[[int], None] = lambda n: None,
  positions: Callable[[int, int], np.ndarray] | None = None,
  scored: int = 0,
) -> np.ndarray:
  """Losses in nats, float32 [documents, windows, length].

  Args:
    model: with the encoding, extended or not, to evaluate under.
    params: its parameters.
    tokens: int32 [documents, total + 1].
    windows: where the windows lie.
    progress: called with the number of tokens done each time some are.
    positions: (document, first token) -> int32 [length] of that window; None for 0, 1, 2, ... in each.
    scored: how many of a window's last targets are needed; the others are nan, and the last layer is spared theirs. 0 for all.

  Raises:
    ValueError: if the encoding cannot serve windows of this length.
  """
  length = max(windows.length, model.reach if positions else 0)
  model.encoding.check(model.dims, length)
  places = [(d, s) for d in range(len(tokens)) for s in windows.starts]
  mesh = mesh_of(model, len(places), windows.length)
  whole = None if mesh is None else NamedSharding(mesh, P())
  constants = jax.device_put(model.constants(length), whole)
  params = jax.device_put(params, whole)
  pieces = mesh is not None and "context" in mesh.axis_names
  program = dataclasses.replace(model, encoding=model.encoding.program(), context="context" if pieces else model.context)
  devices = 1 if mesh is None else mesh.size
  rows = _at_once(len(places), windows.length, 1 if pieces else devices)
  asked = round_up(scored, devices if pieces else 1)  # every device has as many
  asked = asked if asked < windows.length else 0
  losses = np.full((len(places), windows.length), np.nan, np.float32)
  for first in range(0, len(places), rows):
    batch = places[first : first + rows]
    real = len(batch)
    batch = batch + batch[-1:] * (rows - real)  # one shape, one executable
    cut = np.stack([tokens[d, s : s + windows.length + 1] for d, s in batch])
    drawn = {"positions": np.stack([positions(d, s) for d, s in batch])} if positions else {}
    out = _run(program, asked, mesh, params, constants, cut[:, :-1], cut[:, 1:], drawn)
    losses[first : first + real, -scored:] = np.asarray(out)[:real, -scored:]
    progress(real * windows.length)
  return losses.reshape(len(tokens), len(windows.starts), windows.length)
