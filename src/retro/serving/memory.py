"""The datastore while it serves: it may grow, forget, be compacted, and even be taken away."""

import sqlite3
import threading
from collections.abc import Sequence

import numpy as np

from retro import catalogue
from retro.corpus.documents import Document
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import DataError, RetroError
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.ledger import FILE
from retro.retrieval.datastore.listing import (
    Listing,
    Passage,
    SourceSize,
    are_live,
    count_sources,
    list_documents,
    read_document,
)
from retro.retrieval.search import Neighbour


class GoneError(RetroError):
    """The datastore was taken away, or cannot be read at the moment."""

    def __init__(self) -> None:
        super().__init__("the datastore is not there any more; expected it back; ask without retrieval")


class Memory:
    """A datastore as answers search it and as readers look at it; a `Searcher`.

    Every call is of the newest version. Names that are known no longer are no error while an answer is being
    written: what is gone cannot be found, and need not be left out.
    """

    def __init__(self, datastore: Datastore, num_neighbours: int = 2) -> None:
        self.datastore = datastore
        self.num_neighbours = num_neighbours
        self._writing = threading.Lock()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.datastore.tokenizer

    @property
    def chunk_len(self) -> int:
        return self.datastore.chunk_len

    @property
    def version(self) -> int:
        self._expect_there()
        return self.datastore.ledger.version().number

    def search(
        self,
        chunks: Sequence[np.ndarray | str],
        k: int,
        sources: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[list[Neighbour]]:
        self._expect_there()
        try:
            return self.datastore.search(chunks, k, sources, exclude)
        except DataError:
            known = [name for name in sources if self.knows_source(name)]
            if sources and not known:
                return [[] for _ in chunks]
            left_out = [name for name in exclude if self.knows(name)]
            if len(known) == len(sources) and len(left_out) == len(exclude):
                raise
            return self.datastore.search(chunks, k, known, left_out)

    def knows(self, name: str) -> bool:
        """Whether a document of this id or content hash is there, or was and is not compacted yet."""
        try:
            return bool(self.datastore.ledger.find_excluded([name]))
        except DataError:
            return False

    def knows_source(self, name: str) -> bool:
        try:
            return bool(self.datastore.ledger.find("source", [name]))
        except DataError:
            return False

    def live(self, chunks: Sequence[int]) -> set[int]:
        """Which of the chunks may still be shown."""
        self._expect_there()
        alive = are_live(self.datastore, list(chunks))
        return {chunk for chunk, is_live in zip(chunks, alive, strict=True) if is_live}

    def documents(self, limit: int, after: int, source: str, text: str) -> Listing:
        self._expect_there()
        return list_documents(self.datastore, limit, after, source, text)

    def sources(self) -> tuple[int, list[SourceSize]]:
        self._expect_there()
        return count_sources(self.datastore)

    def read(self, name: str, start: int, length: int) -> Passage:
        self._expect_there()
        return read_document(self.datastore, name, start, length)

    def add(self, document: Document) -> int:
        """Add a document, and return the new version."""
        self._expect_there()
        with self._writing:
            version = self.datastore.add([document])
            # Opened here, so that no answer has to wait for it.
            self.datastore.snapshot()
            return version

    def delete(self, name: str) -> tuple[int, int]:
        """Delete all documents with this content hash or id: how many, and the new version."""
        self._expect_there()
        with self._writing:
            ledger = self.datastore.ledger
            try:
                ledger.find("content_hash", [name])
            except DataError:
                count = self.datastore.delete(ids=[name])
            else:
                count = self.datastore.delete(content_hashes=[name])
            return count, ledger.version().number

    def _expect_there(self) -> None:
        """Refuse to go on with files that were taken away: what is still open of them may be old."""
        if not (self.datastore.path / FILE).exists():
            raise GoneError


UNREADABLE = (sqlite3.Error, OSError)
"""What a datastore that is being taken away may fail with."""


def licence_of(source: str) -> str:
    """The licence of a source of the catalogue; empty for text of one's own."""
    entry = catalogue.ENTRIES.get(source)
    return "" if entry is None else entry.licence
