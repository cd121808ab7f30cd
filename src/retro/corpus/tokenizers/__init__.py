"""Tokenizers that lose nothing: one protocol, and the two libraries behind it."""
