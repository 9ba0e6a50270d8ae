"""NoPE: no positional encoding; the base class under its catalogue name."""

from posx.encodings.base import Encoding

NoPE = Encoding

__all__ = ["NoPE"]
