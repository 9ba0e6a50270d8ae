"""The catalogue of positional encodings. File name = catalogue name = config name = test name.

`CATALOGUE` maps a name to its class, `make` builds one from a name and fields. Classes are imported on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posx import catalogue

if TYPE_CHECKING:
  from posx.encodings.base import Encoding

CATALOGUE = catalogue.Catalogue(
  "encoding",
  __name__,
  {
    "nope": "base:Encoding",
    "sinusoidal": "sinusoidal:Sinusoidal",
    "learned": "learned:Learned",
    "shaw": "shaw:Shaw",
    "deberta": "deberta:DeBERTa",
    "transformer_xl": "transformer_xl:TransformerXL",
    "t5": "t5:T5",
    "rope": "rope:RoPE",
    "xpos": "xpos:XPos",
    "pope": "pope:PoPE",
    "alibi": "alibi:ALiBi",
    "kerple": "kerple:KERPLE",
    "sandwich": "sandwich:Sandwich",
    "fire": "fire:FIRE",
    "cope": "cope:CoPE",
    "bam": "bam:BAM",
    "forgetting": "forgetting:Forgetting",
    "cable": "cable:CABLE",
    "grape": "grape:GRAPE",
    "dape": "dape:DAPE",
  },
)


def make(name: str, **fields: Any) -> Encoding:
  """The encoding of that name.

  Args:
    name: a name of `CATALOGUE`, or 'package.module:Class' for an encoding that lives outside posx.
    **fields: hyper-parameters; the others keep their defaults.

  Raises:
    UserError: (a ValueError) for an unknown name or field, and for a value of the wrong type, nan or infinity.

  Example:
    >>> make("rope", base=5e5)
    RoPE(base=500000.0, rotary_dim=0, layout='half', partial=1.0, scaling=None)
  """
  return catalogue.make(CATALOGUE, name, fields)


__all__ = ["CATALOGUE", "make"]
