"""Attention with position: one entry point, `attend`, and the plans behind it."""

from posx.attention.attend import attend, bias_matrix, query_key
from posx.attention.features import token_features

__all__ = ["attend", "bias_matrix", "query_key", "token_features"]
