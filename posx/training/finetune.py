"""Fine-tuning: a run that starts from the parameters of another one, under an extension or another encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posx import config as configs
from posx import decoder, positions
from posx.checkpoint import flatten, restore_params, unflatten
from posx.config import ConfigDict
from posx.encodings.layers import PerLayer, of_period
from posx.errors import UserError
from posx.files import read_json
from posx.rundir import RunDir
from posx.training import optimiser

_LAYERS = "params/layers/"


def resolve(config: ConfigDict, workdir: str | Path, init_from: str = "") -> ConfigDict:
  """The configuration with what it takes from the run it starts from: where that is, and the length it was first trained at.

  An extension counts from that original length, whatever `train.length` is now; an automatic factor becomes the one that training
  has, for that is what the weights will be made for.

  Args:
    config: a checked configuration; `train.init_from` names the other run.
    workdir: the folder of this run; if it has begun, it knows where from.
    init_from: in place of `train.init_from`.

  Raises:
    UserError: if the other folder is no run or none is given where one must be, or the configuration does not fit what was taken over.
  """
  begun = read_json(Path(workdir) / "origin.json") or {}
  source = next((x for x in (init_from, config.train.init_from, begun.get("init_from", "")) if x not in ("", "?")), "")
  if not source:
    if config.train.init_from == "?":
      raise UserError("this configuration fine-tunes; give --init_from=RUN, the folder of the run to start from")
    if config.train.original_length:
      raise UserError(f"config.train.original_length={config.train.original_length} is for runs with --init_from, which sets it")
    return config
  source = str(Path(source).absolute())
  resumed = begun.get("init_from") == source and (Path(workdir) / "config.json").exists()
  taken = RunDir(workdir if resumed else source).config().train
  resolved = configs.from_json(configs.to_json(config))
  resolved.train.init_from = source
  resolved.train.original_length = taken.original_length or taken.length
  factor = max(config.train.length, positions.reach(config.positions)) / resolved.train.original_length
  if factor > 1 and resolved.extension.get("factor") == 0:
    resolved.extension.factor = factor
  configs.check(resolved)
  return resolved.lock()


def parameters(config: ConfigDict, model: Any) -> tuple[Any, dict[str, Any]]:
  """(the parameters that a resolved configuration starts from, what to note of where they are from).

  All but those of the encoding must be there in the shapes that the model needs. If the encoding is another one, its own start anew:
  RoPE taken off a trained model is `encoding.name=nope`.

  Raises:
    UserError: if the architecture, the tokens or a shape differs; names what.
  """
  source = config.train.init_from
  params, other, step = restore_params(source)
  what = f"--init_from={source}"
  _same(what, config, other, model.vocab_size)
  flat = flatten(params if "params" in params else {"params": params})
  before = decoder.from_config(other, model.vocab_size)
  start = lambda: model.init(jax.random.key(config.seed), jnp.zeros((1, config.train.length), jnp.int32))
  changed = _kinds(before) != _kinds(model)
  if changed:
    flat = {path: x for path, x in flat.items() if not optimiser.of_encoding(path.split("/"))}
  flat = _restacked(flat, before, model)
  if changed:
    own = {path: x for path, x in flatten(jax.jit(start)()).items() if optimiser.of_encoding(path.split("/"))}
    flat |= own
    anew = f"the encoding's own {sum(x.size for x in own.values()):,} parameters start anew" if own else "it has nothing to learn"
    spelled = lambda each: ",".join(each.model.layers) or each.encoding.name
    print(f"encoding   {spelled(other)} -> {spelled(config)}: {anew}")
  return unflatten(jax.eval_shape(start), flat, what), {"init_from": source, "init_step": step}


def _kinds(model: Any) -> list[type]:
  """The encodings of the input and of every layer, up to their fields."""
  layers = [type(encoding.split()[1]) for encoding, _ in of_period(model.encoding)]
  return [type(model.encoding.split()[0]), *layers * (model.num_layers // len(layers))]


def _restacked(flat: dict[str, Any], before: Any, after: Any) -> dict[str, Any]:
  """Parameters of layers that are all alike, stacked one way, as layers of another period stack them."""
  old, new = (model.period if isinstance(model.encoding, PerLayer) else 0 for model in (before, after))
  if old == new:
    return flat
  found, layers = {}, {}
  for path, stacked in flat.items():
    if not path.startswith(_LAYERS):
      found[path] = stacked
      continue
    place, _, name = path.removeprefix(_LAYERS).partition("/") if old else ("0", "", path.removeprefix(_LAYERS))
    for group, x in enumerate(stacked):
      layers[group * (old or 1) + int(place), name] = x
  for n, name in layers:
    place = f"{n % new}/" if new else ""
    found[f"{_LAYERS}{place}{name}"] = np.stack([layers[at, name] for at in range(n % (new or 1), after.num_layers, new or 1)])
  return found


def _same(what: str, config: ConfigDict, other: ConfigDict, vocab_size: int) -> None:
  """Refuses another architecture, also one whose arrays happen to have the same shapes, and other tokens."""
  one, two = (decoder.from_config(each, vocab_size) for each in (other, config))
  for name in ("num_layers", "model_dim", "head_shape", "hidden_dim", "mlp", "tied", "share_encoding"):
    if getattr(one, name) != getattr(two, name):
      raise UserError(f"{what} has a model with {name}={getattr(one, name)!r}, this configuration one with {getattr(two, name)!r}")
  was, now = other.data, config.data
  text = was.tokenizer != "bytes" and (was.name, was.path) != (now.name, now.path)
  if (was.tokenizer, was.vocab_size) != (now.tokenizer, now.vocab_size) or text:
    raise UserError(
      f"{what} reads tokens of {was.tokenizer} of {was.name!r}, this configuration those of {now.tokenizer} of {now.name!r}: "
      "the same numbers would stand for other text"
    )
