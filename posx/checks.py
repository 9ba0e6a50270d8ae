"""Every check of a configuration that needs no data: what it says must be possible before a run starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posx import positions, tracking
from posx.config import KINDS, ConfigDict, dims, encoding, kinds
from posx.data import synthetic, tokenizers
from posx.errors import UserError, unknown
from posx.fields import Kind, coerce
from posx.sections import SECTIONS

CONTROLS = ("window", "truncate")


def check(config: ConfigDict) -> None:
  """Raises UserError, naming the field, if the configuration cannot be run as it stands."""
  check_fields(config)
  for each in (_model, _data, _train, _positions, _encoding, _eval):
    each(config)


def check_fields(config: ConfigDict) -> None:
  """Raises UserError unless the configuration has exactly the fields it should have, each of its type."""
  if not isinstance(config, ConfigDict):
    raise UserError(f"get_config must return a configuration made by posx.config.default, not {type(config).__name__}")
  if set(config) != {"seed", *KINDS, *SECTIONS}:
    wrong = ", ".join(sorted(set(config) ^ {"seed", *KINDS, *SECTIONS}))
    raise UserError(f"a configuration has the sections seed, {', '.join((*KINDS, *SECTIONS))}; lacking or unknown: {wrong}")
  if coerce("config.seed", config.seed, Kind(int)) < 0:
    raise UserError(f"config.seed must not be negative, got {config.seed}")
  for part in (*KINDS, *SECTIONS):
    known = kinds(config, part)
    for field in config[part]:
      if field not in known:
        raise UserError(unknown(f"field of config.{part}", field, known))
    for field, kind in known.items():
      if field not in config[part]:
        raise UserError(f"config.{part} lacks the field {field!r}")
      coerce(f"config.{part}.{field}", config[part][field], kind)


def _require(config: ConfigDict, part: str, names: Sequence[str], allowed: Callable[[float], bool], what: str) -> None:
  for name in names:
    if not allowed(config[part][name]):
      raise UserError(f"config.{part}.{name} must be {what}, got {config[part][name]}")


def _positive(value: float) -> bool:
  return value > 0


def _not_negative(value: float) -> bool:
  return value >= 0


def _model(config: ConfigDict) -> None:
  m = config.model
  _require(config, "model", ("num_layers", "model_dim", "num_heads"), _positive, "positive")
  _require(config, "model", ("num_kv_heads", "head_dim", "mlp_dim", "window"), _not_negative, "positive, or 0 for the usual choice")
  if m.layers and m.num_layers % len(m.layers):
    raise UserError(f"config.model.layers has a period of {len(m.layers)}, which must divide num_layers={m.num_layers}; or list all")
  if not m.head_dim and m.model_dim % m.num_heads:
    raise UserError(f"config.model.num_heads={m.num_heads} must divide model_dim={m.model_dim}, or give model.head_dim")
  if m.num_kv_heads and m.num_heads % m.num_kv_heads:
    raise UserError(f"config.model.num_kv_heads={m.num_kv_heads} must divide num_heads={m.num_heads}")


def _data(config: ConfigDict) -> None:
  d = config.data
  if not d.name:
    raise UserError("config.data.name must name a text: 'sotu', 'text' (with data.path), or a tfds name")
  if (d.name == "text") != bool(d.path):
    raise UserError(f"config.data.path is the glob of your own files, with data.name='text'; got name={d.name!r}, path={d.path!r}")
  if d.tokenizer == "bytes" and d.vocab_size:
    raise UserError(f"config.data.vocab_size={d.vocab_size} has no effect on bytes; use data.tokenizer=sentencepiece, or vocab_size=0")
  tokenizers.check(d.tokenizer, d.vocab_size)
  if synthetic.is_task(d.name):
    task = synthetic.find(d.name)
    if d.tokenizer != "bytes":
      raise UserError(f"config.data.tokenizer={d.tokenizer!r} has no effect on task {task.name!r}, which has symbols of its own; leave it")
    synthetic.check_packing(d.packing)
    for length in (config.train.length, *config.eval.lengths):
      task.items(length)


def _train(config: ConfigDict) -> None:
  t = config.train
  _require(config, "train", ("length", "batch_size", "steps", "learning_rate", "accumulate", "log_every"), _positive, "positive")
  names = ("final_learning_rate", "original_length", "warmup_steps", "weight_decay", "clip_norm", "checkpoint_every", "eval_every")
  _require(config, "train", names, _not_negative, "0 or positive")
  _require(config, "train", ("b1", "b2"), lambda b: 0 <= b < 1, "at least 0 and below 1")
  if t.final_learning_rate > t.learning_rate:
    raise UserError(f"config.train.final_learning_rate={t.final_learning_rate} must not exceed learning_rate={t.learning_rate}")
  if t.warmup_steps >= t.steps:
    raise UserError(f"config.train.warmup_steps={t.warmup_steps} must be below steps={t.steps}")
  if len(t.mesh) not in (0, 2) or min(t.mesh, default=1) < 1:
    raise UserError(f"config.train.mesh={t.mesh} must be two numbers of devices, (data, model), or () for all in data")
  if t.batch_size % t.accumulate:
    raise UserError(f"config.train.accumulate={t.accumulate} must divide batch_size={t.batch_size}: a batch is what one update sees")
  tracking.check(t.track)


def _positions(config: ConfigDict) -> None:
  from posx.encodings.layers import of_period

  p, used = config.positions, positions.reach(config.positions)
  _require(config, "positions", ("range", "chunks"), _not_negative, "0 or positive")
  if not used:
    if drawn := [name for name in (p.train, positions.in_evaluation(p)) if name != positions.CONSECUTIVE]:
      raise UserError(f"config.positions.range must say from how many positions {drawn[0]!r} draws; give more than train.length")
    if p.range:
      raise UserError(f"config.positions.range={p.range} has no effect on consecutive positions; set positions.train, or leave it 0")
    return
  if p.train != positions.CONSECUTIVE and p.range <= config.train.length:
    raise UserError(f"config.positions.range={p.range} must exceed train.length={config.train.length}: there is nothing to draw otherwise")
  if "skipwise" in (p.train, p.eval) and p.chunks < 2:
    raise UserError(f"config.positions.chunks={p.chunks} leaves no skip; give at least 2")
  window = config.model.window or max((own for _, own in of_period(encoding(config))), default=0)
  for name in (p.train, positions.in_evaluation(p)):
    if window and name not in positions.GAPLESS:
      raise UserError(
        f"a window of {window} in config.model counts positions, and {name!r} leaves gaps between them, so that fewer tokens would be "
        f"seen; use one of {', '.join(positions.GAPLESS)}, or window=0"
      )


def _encoding(config: ConfigDict) -> None:
  try:
    encoding(config).check(dims(config), max(config.train.length, positions.reach(config.positions)))
  except UserError:
    raise
  except ValueError as error:
    raise UserError(f"encoding {config.encoding.name!r}: {error}") from error


def _eval(config: ConfigDict) -> None:
  e = config.eval
  if not e.lengths or min(e.lengths) < 1 or len(set(e.lengths)) < len(e.lengths):
    raise UserError(f"config.eval.lengths must be different positive numbers of tokens, got {e.lengths}")
  _require(config, "eval", ("stride", "targets", "last_k", "documents"), _not_negative, "0 or positive")
  _require(config, "eval", ("buckets",), lambda n: n >= -1, "-1 for all windows, or 0 or positive")
  if e.stride > min(e.lengths):
    raise UserError(f"config.eval.stride={e.stride} exceeds the window of {min(e.lengths)} tokens: targets between windows would be lost")
  if e.last_k > min(e.lengths):
    raise UserError(f"config.eval.last_k={e.last_k} exceeds the shortest window of {min(e.lengths)} tokens; give at most that, or 0")
  if not e.split:
    raise UserError("config.eval.split must name a split, e.g. 'test'")
  for control in e.controls:
    if control not in CONTROLS:
      raise UserError(unknown("config.eval.controls", control, CONTROLS))
  for text in e.extensions:
    with_extension(config, text)


def with_extension(config: ConfigDict, text: str) -> ConfigDict:
  """A copy of the configuration whose extension is 'name' or 'name:factor'; checked against the encoding."""
  from posx.config import from_json, section, to_json

  name, colon, factor = text.partition(":")
  copy = from_json(to_json(config))
  copy.extension = section("extension", name)
  if colon:
    if "factor" not in copy.extension:
      raise UserError(f"extension {name!r} has no factor, got {text!r}; its fields: {', '.join(copy.extension)}")
    copy.extension.factor = coerce(f"the factor of extension {name!r}", factor, Kind(float))
  encoding(copy)
  return copy
