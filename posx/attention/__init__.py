"""Attention with position: one entry point, `attend`, and the plans behind it."""

from posx.attention.attend import attend, bias_matrix, query_key

__all__ = ["attend", "bias_matrix", "query_key"]
