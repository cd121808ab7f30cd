"""Indexes: the nearest chunks of a segment, exactly or nearly, behind one protocol."""

from retro.retrieval.index.opening import kind_for_size, make_index, open_index
from retro.retrieval.index.protocol import Entries, Found, Index

__all__ = ["Entries", "Found", "Index", "kind_for_size", "make_index", "open_index"]
