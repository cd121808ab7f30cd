"""Embedders: what makes keys and queries."""
