"""New facts: what a model gains from added documents, and whether the gain goes when they are deleted."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retro.config import EvaluationConfig
from retro.corpus.documents import Document
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError, DataError
from retro.model.protocol import LanguageModel
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.ledger import FILE
from retro.retrieval.neighbours import find_neighbours
from retro.scoring.bits_per_byte import chunk_bytes, score
from retro.scoring.intervals import Interval, bootstrap_ratio, relative_gain
from retro.stages.files import link_or_copy, locked

ELSEWHERE = "published elsewhere"
"""The source of the added documents."""


@dataclass(frozen=True)
class NewFacts:
    """Bits per byte of the second parts of held-out documents, with intervals over documents."""

    num_documents: int
    num_neighbours: int
    off: Interval
    """RETRO[OFF], which no change of the datastore touches."""
    before: Interval
    """With the datastore as it is."""
    added: Interval
    """With the documents in the datastore."""
    deleted: Interval
    """After they were deleted again."""
    gain: Interval
    """The part of the bits before that adding saves."""
    found: float
    """The part of the chunks whose neighbours the second parts read that found their own added document."""
    same_neighbours: bool
    """Whether every chunk has the same neighbours after deletion as before."""
    same_bits: bool
    """Whether every token costs the same bits, to the last one."""


@dataclass(frozen=True)
class _State:
    """What a datastore does to the documents."""

    chunks: np.ndarray
    """The neighbours of every chunk."""
    ids: np.ndarray
    """The ids of the documents that these come from; empty where there is none."""
    bits: np.ndarray
    """Of every token."""
    by_chunk: np.ndarray
    """Of every chunk."""


def measure_new_facts(
    model: LanguageModel,
    datastore: Datastore,
    store: TokenStore,
    config: EvaluationConfig,
    k: int = 2,
    documents: Sequence[int] | None = None,
    heading: str = "",
    scratch: Path | None = None,
) -> NewFacts:
    """Score documents new to the datastore: before it gets them, with them, and after they are deleted.

    They are added as if they had been published elsewhere as well: under other ids, of another source, and
    with a line after the text that says so. Retrieval drops chunks of the same document, which it knows by
    its content; with that line the content is another. A chunk then finds itself, and its own continuation
    behind it. With a `heading` before the text the chunks lie on another grid, as a reprint's would, and
    the model must look for what it needs. Either measures how well it uses what it is given, as a user who
    adds today's news wants it used; neither says how well it generalises.

    The second part of a document begins in the middle of its chunks: the first lets retrieval find out what
    it is about. All documents of the store with text in their second part are taken, or those of them that
    `documents` names. The datastore itself is not touched: all happens to a copy below `scratch`, or in the
    system's folder for temporary files.
    """
    if not model.facts.retrieves or not 0 < k <= datastore.config.num_neighbours:
        raise ConfigError(
            f"k is {k}, and the model {'retrieves' if model.facts.retrieves else 'does not retrieve'}; "
            f"expected a RETRO, and from 1 to the datastore's {datastore.config.num_neighbours} neighbours"
        )
    part = store.select(_usable(datastore, store, range(len(store)) if documents is None else documents))
    table = ChunkTable(part, datastore.chunk_len)
    second = _second_parts(table)

    def by_document(values: np.ndarray) -> np.ndarray:
        return np.bincount(table.documents[second], values[second], len(part))

    with _copied(datastore, scratch) as copy:
        before = _state(model, copy, part, config, k, "before")
        copy.add(_elsewhere(part, copy.tokenizer, heading))
        added = _state(model, copy, part, config, k, "added")
        # Deleted by their source, as a user would take back all that came from one place.
        copy.delete(sources=[ELSEWHERE])
        deleted = _state(model, copy, part, config, k, "deleted")
    num_bytes = by_document(chunk_bytes(table, datastore.tokenizer))
    # The id that each chunk's own document had in the copy.
    own = np.array([_other_id(row) for row in part.documents])[table.documents]
    off = score(model, part, config).by_chunk(table)
    return NewFacts(
        num_documents=len(part),
        num_neighbours=k,
        off=bootstrap_ratio(by_document(off), num_bytes),
        before=bootstrap_ratio(by_document(before.by_chunk), num_bytes),
        added=bootstrap_ratio(by_document(added.by_chunk), num_bytes),
        deleted=bootstrap_ratio(by_document(deleted.by_chunk), num_bytes),
        gain=relative_gain(by_document(added.by_chunk), by_document(before.by_chunk)),
        # A chunk reads the neighbours of the chunk before it, and those are the ones that matter.
        found=float((added.ids == own[:, None]).any(axis=1)[second - 1].mean()),
        same_neighbours=np.array_equal(before.chunks, deleted.chunks),
        same_bits=np.array_equal(before.bits, deleted.bits),
    )


def _usable(datastore: Datastore, store: TokenStore, documents: Sequence[int]) -> list[int]:
    """Those with text in their second part; that the datastore holds one of them is an error."""
    table = ChunkTable(store, datastore.chunk_len)
    second = _second_parts(table)
    has_text = chunk_bytes(table, datastore.tokenizer)[second] > 0
    with_text = set(table.documents[second[has_text]].tolist())
    usable = [int(number) for number in documents if number in with_text]
    if not usable:
        raise DataError(
            f"no document of {store.artifact.path} is longer than a chunk of {datastore.chunk_len} tokens; "
            "expected some; name another split"
        )
    # A document is there if its first chunk is.
    first_chunks = np.zeros(len(usable), dtype=np.int64)
    there = datastore.snapshot().find(content_hashes(store)[usable], first_chunks) >= 0
    if there.any():
        name = store.documents[usable[int(np.argmax(there))]]["id"]
        raise DataError(
            f"{int(there.sum())} of the documents are in {datastore.path}, {name!r} for one; "
            "expected held-out ones; name another split"
        )
    return usable


def _second_parts(table: ChunkTable) -> np.ndarray:
    """The chunks from the middle of each document on; never the first one, which sees no neighbour."""
    # The place of every chunk in its document, and how many chunks that document has.
    place = np.arange(len(table)) - table.first[table.documents]
    length = np.diff(table.first)[table.documents]
    return np.flatnonzero((2 * place >= length) & (place > 0))


def _other_id(row: dict[str, str]) -> str:
    return f"{ELSEWHERE}: {row['source']}/{row['id']}"


def _elsewhere(store: TokenStore, tokenizer: Tokenizer, heading: str) -> Iterator[Document]:
    """The documents under other ids, each with a line after its text."""
    for number, row in enumerate(store.documents):
        text = tokenizer.decode(store.document(number).tolist())
        yield Document(
            _other_id(row), f"{heading}{text}\n{ELSEWHERE}\n", ELSEWHERE, row["title"], row["language"]
        )


def _state(
    model: LanguageModel, datastore: Datastore, store: TokenStore, config: EvaluationConfig, k: int, name: str
) -> _State:
    neighbours = find_neighbours(store, datastore, datastore.path.with_name(name))
    scores = score(model, store, config, neighbours, k)
    # Whose chunks were found: first by the datastore's numbers, then by the ids that the ledger has for them.
    numbers = neighbours.snapshot.documents(np.asarray(neighbours.chunks[:, :k], dtype=np.int64))
    version = neighbours.snapshot.version.number
    rows = datastore.ledger.documents(np.unique(numbers[numbers >= 0]).tolist(), version)
    ids = np.array(
        [[rows[number]["id"] if number >= 0 else "" for number in line] for line in numbers.tolist()]
    )
    return _State(np.array(neighbours.chunks), ids, scores.bits, scores.by_chunk(neighbours.table))


@contextmanager
def _copied(datastore: Datastore, scratch: Path | None) -> Iterator[Datastore]:
    """A copy to change. Files of segments are never written twice, so that links to them will do."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = Path(folder) / "datastore"
        with locked(datastore.path):
            shutil.copytree(
                datastore.path, path, ignore=shutil.ignore_patterns(f"{FILE}*"), copy_function=link_or_copy
            )
            datastore.ledger.rows("VACUUM INTO ?", (str(path / FILE),))
        copy = Datastore.open(path)
        copy.use(datastore.embedder)
        try:
            yield copy
        finally:
            copy.close()
