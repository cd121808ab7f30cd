"""Retrieval for a model that is there already."""
