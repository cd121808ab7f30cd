"""The datastore: segments of chunks, and a ledger that says which of them are there at which version."""

from retro.retrieval.datastore.datastore import Datastore
from retro.retrieval.search import Neighbour

__all__ = ["Datastore", "Neighbour"]
