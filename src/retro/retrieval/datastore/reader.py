"""The reading side of a datastore: its newest version, its embedder, and searches by text or by tokens.

No lock and no transaction is held while queries are embedded or segments are scanned. A search takes the
newest snapshot, scans it, and asks the ledger about that snapshot's version alone; if a compaction has
removed what the ledger would have to say about it, the search is done again on the newest version. Short
searches of several threads are done as one (`together.py`).
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retro.config import DatastoreConfig
from retro.config.as_json import from_dict
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ArtifactError, ConfigError
from retro.retrieval.datastore.elsewhere import EngineSnapshot
from retro.retrieval.datastore.index_table import IndexRow
from retro.retrieval.datastore.joint import INDEXES, JointIndex
from retro.retrieval.datastore.ledger import FILE, CompactedError, Ledger
from retro.retrieval.datastore.segment import Segment
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.datastore.spread import SpreadSnapshot, actors_for
from retro.retrieval.datastore.together import Together
from retro.retrieval.embedder import Embedder, open_embedder
from retro.retrieval.engines import Engine, EngineSetting, open_engine
from retro.retrieval.engines.actors import Actors
from retro.retrieval.index import Entries
from retro.retrieval.queries import make_queries
from retro.retrieval.search import Neighbour, Place, Search, Version
from retro.stages.hints import with_paths

SEGMENTS, TOKENIZER = "segments", "tokenizer"
ENGINE = "engine"
"""The fact that names the search engine, if there is one."""
FORMAT = 1
MANY = 64
"""Queries of a large search."""


class Filters(NamedTuple):
    """What searches must have in common to be done as one."""

    k: int
    sources: tuple[str, ...]
    exclude: tuple[str, ...]


class DatastoreReader:
    """A folder with a ledger, segments and a tokenizer. Any number of threads may search it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger(path / FILE)
        try:
            self._open(path)
        except BaseException:
            self.ledger.close()
            raise

    def _open(self, path: Path) -> None:
        if self.ledger.fact("format") != FORMAT:
            raise ArtifactError(
                f"{path} has format {self.ledger.fact('format')}; expected {FORMAT}; "
                f"remove it and run: {with_paths('retro build WORK', path)}"
            )
        self.config = from_dict(DatastoreConfig, self.ledger.fact("config"), f"{path / FILE}: config")
        self.tokenizer = Tokenizer.open(path / TOKENIZER)
        self.tokenizer.expect(self.ledger.fact("tokenizer"), str(path), with_paths("retro build WORK", path))
        # Two locks, as a large model that loads must not keep others from the newest version.
        self._embedder: Embedder | None = None
        self._loading = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._opening = threading.Lock()
        self._engine: tuple[tuple[str, str], Engine] | None = None
        self._actors: Actors | None = None
        self._together = Together(self._search_all)
        self.snapshot()

    @property
    def chunk_len(self) -> int:
        return self.config.chunk_len

    @property
    def embedder(self) -> Embedder:
        """What made the keys, loaded when it is first needed."""
        with self._loading:
            if self._embedder is None:
                self._embedder = self._load_embedder()
            return self._embedder

    @property
    def query_precision(self) -> str:
        """What queries are embedded in: they may come from a machine without the hardware of the keys."""
        return "float32" if self.config.embedder_precision == "float32" else "auto"

    def _load_embedder(self) -> Embedder:
        embedder = open_embedder(self.config.embedder, self.query_precision)
        if embedder.fingerprint != self.ledger.fact("encoder"):
            raise ArtifactError(
                f"{self.path} was built with another {self.config.embedder!r} than is here now; expected the "
                "same embedder for keys and queries; bring it back, or remove the datastore and "
                f"run: {with_paths('retro build WORK', self.path)}"
            )
        return embedder

    def use(self, embedder: Embedder) -> None:
        """Take an embedder that is loaded already."""
        self._embedder = embedder

    def __len__(self) -> int:
        """How many chunks can be found."""
        return len(self.snapshot())

    def snapshot(self) -> Snapshot:
        """The newest version. What was committed before this call is in it, in whatever process."""
        snapshot = self._snapshot
        if snapshot is not None and snapshot.version == self.ledger.version():
            return snapshot
        # One thread opens what is new and the others wait for it, rather than each opening it for itself.
        with self._opening:
            while True:
                version, deleted, index, setting = self._newest()
                try:
                    self._snapshot = self._opened(version, deleted, index, setting)
                    return self._snapshot
                except (FileNotFoundError, ArtifactError) as error:
                    # A compaction may have removed a segment meanwhile; the ledger names what took its place.
                    if self.ledger.version() == version:
                        raise ArtifactError(
                            f"{self.path} has lost a file of version {version.number} ({error}); "
                            "restore it, or remove the datastore and "
                            f"run: {with_paths('retro build WORK', self.path)}"
                        ) from None

    def refresh(self) -> None:
        """Open the newest version again: what finds its keys has changed."""
        with self._opening:
            self._snapshot = None

    def _newest(self) -> tuple[Version, dict[str, list[int]], IndexRow | None, EngineSetting | None]:
        """The newest version, the deleted documents of each of its segments, and what finds its keys."""
        with self.ledger.transaction(write=False):
            # Within one transaction, so that version, segments and deletions belong together.
            names = [row.name for row in self.ledger.segments()]
            deleted = {name: self.ledger.deleted(name) for name in names}
            index = next(iter(self.ledger.indexes()), None)
            return self.ledger.version(), deleted, index, self.engine_setting()

    def engine_setting(self) -> EngineSetting | None:
        """The search engine that finds the keys, in place of this machine's own indexes."""
        fact = self.ledger.fact(ENGINE)
        return None if fact is None else from_dict(EngineSetting, fact, f"{self.path / FILE}: {ENGINE}")

    def engine(self, setting: EngineSetting) -> Engine:
        """The engine, connected when it is first asked."""
        place = (setting.address, setting.collection)
        if self._engine is None or self._engine[0] != place:
            self._engine = place, open_engine(*place)
        return self._engine[1]

    def actors(self, setting: EngineSetting) -> Actors:
        """The processes that hold the datastore's parts; they are reached when they are first asked."""
        if self._actors is None or self._actors.setting != setting:
            self._actors = actors_for(setting)
        return self._actors

    def spread(self, setting: EngineSetting) -> SpreadSnapshot:
        """The newest version as processes elsewhere search it, whether or not the ledger names them."""
        snapshot = self.snapshot()
        deleted = [
            segment.documents["number"][~live].tolist()
            for segment, live in zip(snapshot.segments, snapshot.live, strict=True)
        ]
        parts = snapshot.version, snapshot.segments, deleted, self.chunk_len, self.tokenizer.pad_id
        return SpreadSnapshot(self.actors(setting), self.ledger, self.tokenizer.dtype, *parts, snapshot.joint)

    @property
    def is_indexed_here(self) -> bool:
        """Whether searches are those of this datastore's own indexes, wherever they are held."""
        setting = self.engine_setting()
        return setting is None or setting.holds_files

    def _opened(
        self,
        version: Version,
        deleted: dict[str, list[int]],
        index: IndexRow | None,
        setting: EngineSetting | None,
    ) -> Snapshot:
        """A snapshot of the named segments; those that are open already are kept."""
        before = self._snapshot
        if before is not None and before.version == version:
            return before
        known = {segment.name: segment for segment in before.segments} if before is not None else {}
        joined = index.segments if index is not None else ()
        segments = {
            name: known.get(name) or self.open_segment(name, name in joined or setting is not None)
            for name in deleted
        }
        joint = self._open_joint(index, segments) if index is not None else None
        numbers = list(deleted.values())
        parts = version, list(segments.values()), numbers, self.chunk_len, self.tokenizer.pad_id, joint
        if setting is not None and setting.holds_files:
            return SpreadSnapshot(self.actors(setting), self.ledger, self.tokenizer.dtype, *parts)
        if setting is not None:
            return EngineSnapshot(self.engine(setting), setting, self.ledger, self.config.exact_below, *parts)
        snapshot = Snapshot(*parts)
        # Opened now: what is damaged is told at once, and no search has to wait for it.
        assert snapshot.indexed is not None
        return snapshot

    def open_segment(self, name: str, is_joined: bool = False) -> Segment:
        folder = self.path / SEGMENTS / name
        return Segment(folder, self.chunk_len, self.tokenizer.dtype, self.tokenizer.pad_id, is_joined)

    def _open_joint(self, index: IndexRow, segments: dict[str, Segment]) -> JointIndex:
        before = self._snapshot.joint if self._snapshot is not None else None
        if before is not None and before.name == index.name:
            return before
        unknown = [name for name in index.segments if name not in segments]
        if unknown or not index.segments:
            raise ArtifactError(
                f"{self.path / INDEXES / index.name} is an index of {unknown[:1] or 'no segment'}; "
                "expected segments of the datastore"
            )
        return JointIndex(self.path / INDEXES / index.name, [segments[name] for name in index.segments])

    def queries(self, chunks: Sequence[str | np.ndarray]) -> tuple[np.ndarray, Entries]:
        """Which of the chunks, texts or tokens, are not blank, and what those are searched with.

        `make_queries` says how they are made.
        """
        return make_queries(chunks, self.tokenizer, lambda: self.embedder)

    def search(
        self,
        chunks: Sequence[str | np.ndarray],
        k: int,
        sources: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[list[Neighbour]]:
        """The k nearest chunks of each text or chunk of tokens, nearest first.

        Fewer if there are no more, none for a blank one. Only documents of the given sources are found, if
        any are given, and none whose id or content hash is excluded. All of it is of one version: the newest,
        once the queries are embedded.
        """
        if k < 1:
            raise ConfigError(f"k is {k}; expected at least 1; switch retrieval off instead")
        filters = Filters(k, tuple(sources), tuple(exclude))
        # Nobody should wait for a large search, nor find anything else for the company he is in.
        if len(chunks) > MANY or not self.embedder.batch_invariant:
            return self._search(filters, chunks)
        return self._together(filters, chunks)

    def _search_all(
        self, filters: Filters, asked: Sequence[Sequence[str | np.ndarray]]
    ) -> list[list[list[Neighbour]]]:
        """Several searches as one, and what each has found."""
        found = iter(self._search(filters, [chunk for chunks in asked for chunk in chunks]))
        return [[next(found) for _ in chunks] for chunks in asked]

    def _search(self, filters: Filters, chunks: Sequence[str | np.ndarray]) -> list[list[Neighbour]]:
        k, sources, exclude = filters
        asked, entries = self.queries(chunks)
        k = min(k, max(1, len(self)))  # room is made for k of each, so no more than there are
        found: list[list[Neighbour]] = [[] for _ in chunks]
        if len(asked):
            answers = self.search_entries(entries, k, sources, exclude)
            for number, neighbours in zip(asked, answers, strict=True):
                found[number] = neighbours
        return found

    def search_entries(
        self, entries: Entries, k: int, sources: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[list[Neighbour]]:
        """The same for what is embedded already."""
        while True:
            try:
                return self.search_version(self.snapshot(), entries, k, sources, exclude)
            except CompactedError:
                continue  # while it was searched; the newest version is whole again

    def search_version(
        self,
        version: Search,
        entries: Entries,
        k: int,
        sources: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[list[Neighbour]]:
        """The same in a given version; a `CompactedError` if the ledger can no longer answer for it."""
        number = version.version.number
        documents = self.ledger.find("source", sources, number) if sources else None
        without = self.ledger.find_excluded(exclude, number) if exclude else ()
        # The only long step, between two short questions to the ledger: nothing is held meanwhile.
        distances, chunks = version.search(entries, k, documents, without)
        return self.describe(version, distances, chunks)

    def expect_known(self, sources: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        """Refuse names that no search could find, before there is anything to search for."""
        self.ledger.find("source", sources)
        self.ledger.find_excluded(exclude)

    def describe(self, version: Search, distances: np.ndarray, chunks: np.ndarray) -> list[list[Neighbour]]:
        """Texts and documents of found chunks (query, rank), which the version must hold; −1 is left out."""
        values = version.values(chunks)
        numbers = version.documents(chunks)
        # One question for all documents; neighbours often share one.
        rows = self.ledger.documents(np.unique(numbers[numbers >= 0]).tolist(), version.version.number)
        described: list[list[Neighbour]] = [[] for _ in chunks]
        for query, rank in np.argwhere(chunks >= 0):
            row = rows[int(numbers[query, rank])]
            neighbour = Neighbour(
                chunk=int(chunks[query, rank]),
                distance=float(distances[query, rank]),
                tokens=values[query, rank],
                text=self.tokenizer.decode(values[query, rank].tolist()),
                document=row["id"],
                title=row["title"],
                source=row["source"],
                place=self._place(int(chunks[query, rank]), row),
                content_hash=row["content_hash"],
            )
            described[query].append(neighbour)
        return described

    def _place(self, chunk: int, document: dict[str, Any]) -> Place:
        """Where a chunk lies in its document, of which the ledger's row is given."""
        number = chunk - document["first_chunk"]
        start = number * self.chunk_len
        end = min(start + self.chunk_len, document["num_tokens"])
        return Place(number, document["num_chunks"], start, end)

    def close(self) -> None:
        self.ledger.close()
        if self._engine is not None:
            self._engine[1].close()
