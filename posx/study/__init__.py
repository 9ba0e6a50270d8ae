"""Studies: many runs from one file, one table of results, figures. Nothing here imports JAX."""
