"""The datastore: the key-value memory of the paper, exact about what it holds, that can grow and forget while it is read."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retro.config import DatastoreConfig
from retro.config_json import from_dict
from retro.corpus.documents import Document
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ArtifactError, ConfigError
from retro.retrieval.datastore.ledger import FILE, Ledger, Version
from retro.retrieval.datastore.segment import Segment
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.embedder import Embedder, open_embedder
from retro.retrieval.index import Entries
from retro.stages.progress import Progress

SEGMENTS, TOKENIZER = "segments", "tokenizer"
FORMAT = 1


@dataclass(frozen=True)
class Neighbour:
    """A retrieved chunk with its continuation, and where it comes from."""

    chunk: int
    """Its number in the datastore."""
    distance: float
    tokens: np.ndarray
    """[N, F], padded."""
    text: str
    document: str
    title: str
    source: str


class Datastore:
    """A folder with a catalogue, segments and a tokenizer. Every search is of one version, the newest when it starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger(path / FILE)
        if self.ledger.fact("format") != FORMAT:
            raise ArtifactError(
                f"{path} has format {self.ledger.fact('format')}; expected {FORMAT}; remove it and run: retro build"
            )
        self.config = from_dict(DatastoreConfig, self.ledger.fact("config"), f"{path / FILE}: config")
        self.tokenizer = Tokenizer.open(path / TOKENIZER)
        self.tokenizer.expect(self.ledger.fact("tokenizer"), str(path), "retro build")
        self._embedder: Embedder | None = None
        self._snapshot: Snapshot | None = None
        self._turn = threading.RLock()
        self.snapshot()

    @staticmethod
    def open(path: str | Path) -> "Datastore":
        """Open a finished datastore."""
        path = Path(path)
        if not (path / FILE).exists():
            raise ArtifactError(
                f"{path} is no finished datastore; expected a folder with {FILE}; run: retro build WORK"
            )
        return Datastore(path)

    @property
    def chunk_len(self) -> int:
        return self.config.chunk_len

    @property
    def embedder(self) -> Embedder:
        """The encoder of the keys, loaded when it is first needed."""
        if self._embedder is None:
            # Queries may come from a machine without the hardware that made the keys.
            precision = "float32" if self.config.encoder_precision == "float32" else "auto"
            embedder = open_embedder(self.config.encoder, precision)
            if embedder.fingerprint != self.ledger.fact("encoder"):
                raise ArtifactError(
                    f"{self.path} was built with another {self.config.encoder!r} than is here now; "
                    "expected the same encoder for keys and queries; bring it back, or remove the datastore and run: retro build"
                )
            self._embedder = embedder
        return self._embedder

    def use(self, embedder: Embedder) -> None:
        """Take an encoder that is loaded already."""
        self._embedder = embedder

    def __len__(self) -> int:
        """How many chunks can be found."""
        return len(self.snapshot())

    def snapshot(self) -> Snapshot:
        """The newest version."""
        with self.reading() as snapshot:
            return snapshot

    @contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """The newest version, while all that is read from the catalogue is of that version too."""
        with ExitStack() as held:
            held.enter_context(self._turn)
            while True:
                transaction = held.enter_context(ExitStack())
                transaction.enter_context(self.ledger.transaction(write=False))
                version = self.ledger.version()
                try:
                    self._snapshot = self._current(version)
                except (FileNotFoundError, ArtifactError) as error:
                    transaction.close()
                    if self.ledger.version() != version:
                        continue  # compacted while it was being opened; the catalogue knows what took its place
                    raise ArtifactError(
                        f"{self.path} has lost a file of version {version.number} ({error}); restore it, or remove the datastore and run: retro build"
                    ) from None
                yield self._snapshot
                return

    def _current(self, version: Version) -> Snapshot:
        """A snapshot of what the catalogue says now; segments that are open already are kept."""
        if self._snapshot is not None and self._snapshot.version == version:
            return self._snapshot
        opened = {
            segment.name: segment
            for segment in (self._snapshot.segments if self._snapshot is not None else ())
        }
        names = [row.name for row in self.ledger.segments()]
        folder = self.path / SEGMENTS
        segments = [
            opened.get(name) or Segment(folder / name, self.chunk_len, self.tokenizer.dtype) for name in names
        ]
        return Snapshot(
            version,
            segments,
            [self.ledger.deleted(name) for name in names],
            self.chunk_len,
            self.tokenizer.pad_id,
        )

    def search(
        self, texts: Sequence[str], k: int, sources: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[list[Neighbour]]:
        """The k nearest chunks of each text, nearest first; fewer if there are no more, none for a text without words.

        Only documents of the given sources are found, if any are given, and none whose id is excluded.
        """
        if k < 1:
            raise ConfigError(f"k is {k}; expected at least 1; switch retrieval off instead")
        asked = [number for number, text in enumerate(texts) if text.strip()]
        found: list[list[Neighbour]] = [[] for _ in texts]
        if asked:
            keys = self.embedder.embed([texts[number] for number in asked])
            tokens = [np.array(self.tokenizer.encode(texts[number])) for number in asked]
            for number, neighbours in zip(
                asked, self.search_entries(Entries(keys, tokens), k, sources, exclude), strict=True
            ):
                found[number] = neighbours
        return found

    def search_entries(
        self, entries: Entries, k: int, sources: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[list[Neighbour]]:
        """The same for what is embedded already."""
        with self.reading() as snapshot:
            documents = self.ledger.find("source", sources) if sources else None
            without = self.ledger.find("id", exclude, deleted=True) if exclude else ()
            distances, chunks = snapshot.search(entries, k, documents, without)
            return self.describe(snapshot, distances, chunks)

    def describe(
        self, snapshot: Snapshot, distances: np.ndarray, chunks: np.ndarray
    ) -> list[list[Neighbour]]:
        """Texts and documents of found chunks (query, rank), which the snapshot must hold; −1 is left out."""
        values, numbers = snapshot.values(chunks), snapshot.documents(chunks)
        documents = self.ledger.documents(np.unique(numbers[numbers >= 0]).tolist())
        return [
            [
                self._neighbour(
                    int(chunks[place]), float(distances[place]), values[place], documents[int(numbers[place])]
                )
                for place in ((query, rank) for rank in range(chunks.shape[1]))
                if chunks[place] >= 0
            ]
            for query in range(len(chunks))
        ]

    def _neighbour(
        self, chunk: int, distance: float, tokens: np.ndarray, document: dict[str, Any]
    ) -> Neighbour:
        text = self.tokenizer.decode(tokens.tolist())
        return Neighbour(chunk, distance, tokens, text, document["id"], document["title"], document["source"])

    def add(self, documents: Iterable[Document], progress: Progress | None = None) -> int:
        """Add documents, all or none, and return the new version. An id that is there already is an error."""
        from retro.retrieval.datastore.writer import Writer

        with Writer(self) as writer:
            return writer.add(documents, progress)

    def delete(self, ids: Sequence[str] = (), sources: Sequence[str] = (), titles: Sequence[str] = ()) -> int:
        """Delete documents by id, source or title, and return how many. No search that starts from now on returns them."""
        from retro.retrieval.datastore.writer import Writer

        with Writer(self) as writer:
            return writer.delete(ids, sources, titles)

    def compact(self) -> int:
        """Remove what was deleted from every file, join small segments, and return the new version."""
        from retro.retrieval.datastore.writer import Writer

        with Writer(self) as writer:
            return writer.compact()

    def close(self) -> None:
        self.ledger.close()
