"""Names of runs from what differs between their settings: short, safe as file names, independent of the order."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Settings = Mapping[str, Any]

_LONGEST = 80


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Nested settings as one dictionary with dotted keys; lists become tuples.

  Example:
    >>> flatten({"seed": 1, "encoding": {"name": "rope"}})
    {'seed': 1, 'encoding.name': 'rope'}
  """
  flat: dict[str, Any] = {}
  for name, value in settings.items():
    if isinstance(value, Mapping):
      flat.update(flatten(value, f"{prefix}{name}."))
    else:
      flat[prefix + name] = tuple(value) if isinstance(value, list) else value
  return flat


def without(flat: Settings, *prefixes: str) -> dict[str, Any]:
  """The settings whose key is none of `prefixes` nor inside one of these sections."""
  return {k: v for k, v in flat.items() if not any(k == p or k.startswith(p + ".") for p in prefixes)}


def digest(flat: Settings) -> str:
  """A short fingerprint of settings, the same in every process and for any order of keys."""
  return hashlib.sha256(json.dumps(flat, sort_keys=True, default=str).encode()).hexdigest()[:16]


def differing(flats: Sequence[Settings]) -> list[str]:
  """The keys whose values (or presence) are not the same in all settings, the seed last."""
  keys = sorted({key for flat in flats for key in flat}, key=lambda key: (key == "seed", key))
  return [key for key in keys if len({json.dumps(flat.get(key), default=str) if key in flat else "" for flat in flats}) > 1]


def names(flats: Sequence[Settings]) -> list[str]:
  """One name for each settings: the encoding, then what tells it from the others with that encoding (and extension).

  Example:
    >>> names([{"encoding.name": "alibi"}, {"encoding.name": "rope", "seed": 0}, {"encoding.name": "rope", "seed": 1}])
    ['alibi', 'rope-seed=0', 'rope-seed=1']
  """
  groups: dict[Any, list[Settings]] = defaultdict(list)
  for flat in flats:
    groups[flat.get("encoding.name")].append(flat)
    groups[flat.get("encoding.name"), flat.get("extension.name")].append(flat)
  keys = {name: differing(group) for name, group in groups.items()}
  made = [_name(flat, _telling(flat, keys)) for flat in flats]
  # Some file systems ignore case.
  taken = [name.lower() for name in made]
  return [name if taken.count(name.lower()) == 1 else f"{name}-{digest(flat)[:6]}" for name, flat in zip(made, flats, strict=True)]


def _telling(flat: Settings, keys: Mapping[Any, Sequence[str]]) -> list[str]:
  """The keys that differ for an encoding; an extension's own fields only where runs under this extension differ in them."""
  encoding, own = flat.get("encoding.name"), keys[flat.get("encoding.name"), flat.get("extension.name")]
  mine = [key for key in keys[encoding] if not key.startswith("extension.") or key == "extension.name" or key in own]
  return sorted(mine, key=lambda key: key != "extension.name")


def _name(flat: Settings, keys: Sequence[str]) -> str:
  parts = [_safe(str(flat.get("encoding.name", "run")))]
  lasts = [key.rpartition(".")[2] for key in keys]
  for key, last in zip(keys, lasts, strict=True):
    if key not in flat or flat[key] == "":
      continue
    short = key if lasts.count(last) > 1 else last
    parts.append(_safe(spell(flat[key])) if key == "extension.name" else f"{_safe(short)}={_safe(spell(flat[key]))}")
  name = "-".join(parts)
  return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 7]}-{digest(flat)[:6]}"


def _safe(text: str) -> str:
  return re.sub(r"[^A-Za-z0-9._+=-]+", "_", text).strip("_") or "_"


def spell(value: Any) -> str:
  """A value as a person writes it: floats short but exact, sequences with commas."""
  if isinstance(value, float):
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
  if isinstance(value, tuple | list):
    return ",".join(map(spell, value))
  return str(value)
