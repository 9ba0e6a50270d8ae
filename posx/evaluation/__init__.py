"""Loss per token, and every length protocol as a pure function of it. The protocol is part of the number."""

from posx.evaluation.protocols import Measure, buckets, last_k, nonoverlapping, sliding
from posx.evaluation.windows import Windows, place

__all__ = ["Measure", "Windows", "buckets", "last_k", "nonoverlapping", "place", "sliding"]
