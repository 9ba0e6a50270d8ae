"""Studies: many runs from one file, one table of results, figures, a report. Nothing here imports JAX."""

from posx.study.frames import load

__all__ = ["load"]
