"""New facts: what a model gains from added documents, and whether deleting them takes it back."""

from collections.abc import Iterator, Sequence
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
from retro.retrieval.datastore.copying import copied
from retro.retrieval.finding import find_neighbours
from retro.scoring.bits_per_byte import chunk_bytes, score
from retro.scoring.intervals import Interval, bootstrap_ratio, relative_gain

ELSEWHERE = "published elsewhere"
"""The source of the added documents."""


@dataclass(frozen=True)
class NewFacts:
    """Bits per byte of the second parts of held-out documents, with intervals over documents."""

    num_documents: int
    num_neighbours: int
    off: Interval
    """RETRO[OFF], which does not depend on the datastore."""
    before: Interval
    """With the datastore as it is."""
    added: Interval
    """With the documents in the datastore."""
    deleted: Interval
    """After they were deleted again."""
    gain: Interval
    """The part of the bits of `before` that adding saves."""
    found: float
    """Of the chunks whose neighbours the second parts read, the part that found its own
    document."""
    same_neighbours: bool
    """Whether every chunk has the same neighbours after deletion as before."""
    same_bits: bool
    """Whether every token costs exactly the same bits after deletion as before."""


@dataclass(frozen=True)
class _State:
    """The documents' neighbours and bits with one state of the datastore."""

    chunks: np.ndarray
    """The neighbours of every chunk."""
    ids: np.ndarray
    """The ids of the documents that the neighbours come from; empty where there is none."""
    bits: np.ndarray
    """Bits of every token."""
    by_chunk: np.ndarray
    """Bits of every chunk."""


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
    """Score documents before they are added to the datastore, while they are in it, and after deletion.

    They are added as if they had also been published elsewhere: with other ids, another source,
    and a line after the text that says so. Retrieval drops chunks of the same document, which
    it recognises by content; the extra line makes the content differ. A chunk then finds
    itself, followed by its own continuation. With a `heading` before the text, the chunks lie
    on another grid, as in a reprint, and the model must look for what it needs. Both measure
    how well the model uses what it is given, which is what a user who adds today's news wants;
    neither measures how well it generalises.

    The second part of a document begins in the middle of its chunks; the first part lets
    retrieval find out what the document is about. All documents of the store with text in their
    second part are used, or those of them that `documents` names. The datastore itself is not
    changed: everything happens to a copy below `scratch`, or in the system's folder for
    temporary files.
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

    with copied(datastore, scratch) as copy:
        before = _state(model, copy, part, config, k, "before")
        copy.add(_elsewhere(part, copy.tokenizer, heading))
        added = _state(model, copy, part, config, k, "added")
        # Deleted by source, as a user would remove everything that came from one place.
        copy.delete(sources=[ELSEWHERE])
        deleted = _state(model, copy, part, config, k, "deleted")
    num_bytes = by_document(chunk_bytes(table, datastore.tokenizer))
    # For each chunk, the id under which its document was added to the copy.
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
        # A chunk reads the neighbours of the chunk before it, so those are the ones to look at.
        found=float((added.ids == own[:, None]).any(axis=1)[second - 1].mean()),
        same_neighbours=np.array_equal(before.chunks, deleted.chunks),
        same_bits=np.array_equal(before.bits, deleted.bits),
    )


def _usable(datastore: Datastore, store: TokenStore, documents: Sequence[int]) -> list[int]:
    """The documents with text in their second part. It is an error if the datastore holds one of them."""
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
    # A document is in the datastore if its first chunk, number 0, is.
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
    """The chunks from the middle of each document on, but never the first, which reads no neighbours."""
    # Each chunk's place in its document, and the number of chunks of that document.
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
    # Which documents were found: first as the datastore's numbers, then as their ids from the
    # ledger.
    numbers = neighbours.snapshot.documents(np.asarray(neighbours.chunks[:, :k], dtype=np.int64))
    version = neighbours.snapshot.version.number
    rows = datastore.ledger.documents(np.unique(numbers[numbers >= 0]).tolist(), version)
    ids = np.array(
        [[rows[number]["id"] if number >= 0 else "" for number in line] for line in numbers.tolist()]
    )
    return _State(np.array(neighbours.chunks), ids, scores.bits, scores.by_chunk(neighbours.table))
