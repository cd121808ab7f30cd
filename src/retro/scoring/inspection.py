"""One document in detail: what retrieval saved on each token, and what chunks share with neighbours.

`pages/inspection.py` turns it into a page.
"""

from dataclasses import dataclass

import numpy as np

from retro.config import EvaluationConfig
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError, ConfigError, DataError
from retro.model.protocol import LanguageModel
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.shared_runs import ColouredChunk, colour_chunks
from retro.scoring.bits_per_byte import chunk_bytes, score
from retro.scoring.evaluate import OFF, Evaluation, on
from retro.stages.hints import with_paths


@dataclass(frozen=True)
class DocumentGain:
    """What retrieval saved on one document. `number` is its number in the token store."""

    number: int
    id: str
    title: str
    source: str
    num_bytes: int
    off: float
    """Bits of the document with RETRO[OFF]."""
    on: float

    @property
    def gain(self) -> float:
        """The part of the bits that retrieval saved."""
        # A document of nothing but its end token costs no bits.
        return 1 - self.on / self.off if self.off else 0.0


@dataclass(frozen=True)
class InspectedChunk:
    """A chunk with its neighbours and the bits of each of its tokens."""

    coloured: ColouredChunk
    off: list[float]
    on: list[float]
    num_bytes: int

    @property
    def saved(self) -> float:
        """L_OFF − L_ON of the chunk, in bits."""
        return sum(self.off) - sum(self.on)


@dataclass(frozen=True)
class InspectedDocument:
    """A document chunk by chunk. No chunk reads the neighbours of the last one, so they are left out."""

    id: str
    title: str
    source: str
    num_neighbours: int
    chunks: list[InspectedChunk]

    @property
    def num_bytes(self) -> int:
        return sum(chunk.num_bytes for chunk in self.chunks)

    @property
    def off(self) -> float:
        """Bits of the document with RETRO[OFF]."""
        return sum(sum(chunk.off) for chunk in self.chunks)

    @property
    def on(self) -> float:
        return sum(sum(chunk.on) for chunk in self.chunks)


def document_gains(evaluation: Evaluation, store: TokenStore, k: int) -> list[DocumentGain]:
    """Every document of the evaluated split, largest gain first."""
    if on(k) not in evaluation.modes:
        command = f"retro evaluate WORK RUN --num-neighbours {k}"
        raise ArtifactError(
            f"{evaluation.artifact.path} has {', '.join(evaluation.modes)}; expected {on(k)}; "
            f"remove it and run: {with_paths(command, evaluation.artifact.path)}"
        )
    off_bits = evaluation.document_bits(OFF)
    on_bits = evaluation.document_bits(on(k))
    gains = [
        DocumentGain(
            number,
            row["id"],
            row["title"],
            row["source"],
            num_bytes=int(store.num_bytes[number]),
            off=float(off_bits[number]),
            on=float(on_bits[number]),
        )
        for number, row in enumerate(store.documents)
    ]
    return sorted(gains, key=lambda document: -document.gain)


def find_document(store: TokenStore, name: str, command: str = "retro inspect WORK RUN --list") -> int:
    """The number of the document with this id, or SOURCE/ID where several sources have it.

    `command` lists the documents.
    """
    found = [
        number
        for number, row in enumerate(store.documents)
        if name in (row["id"], f"{row['source']}/{row['id']}")
    ]
    if len(found) != 1:
        raise DataError(
            f"{len(found) or 'no'} documents of {store.artifact.path} have the id {name!r}; "
            f"expected one, named ID or SOURCE/ID; run: {command}"
        )
    return found[0]


def inspect_document(
    model: LanguageModel, neighbours: Neighbours, document: int, k: int, config: EvaluationConfig
) -> InspectedDocument:
    """Score one document with retrieval off and on, and compare it with its k neighbours."""
    if not model.facts.retrieves:
        raise ConfigError(
            "the model has no cross-attention; "
            "expected a RETRO, which can be scored with retrieval off and on; name another run"
        )
    # A store with only this document gives the same windows as the whole store, and up to
    # rounding the same bits.
    one = neighbours.select([document])
    row = one.store.documents[0]
    table = one.table
    tokenizer = one.datastore.tokenizer
    off = score(model, one.store, config).bits
    with_neighbours = score(model, one.store, config, one, k).bits
    chunks = [table.tokens(chunk).tolist() for chunk in range(len(table))]
    # Every chunk but the last has neighbours that the next chunk reads.
    coloured = colour_chunks(chunks, one.describe(np.arange(len(table) - 1), k), tokenizer)
    num_bytes = chunk_bytes(table, tokenizer)
    inspected = []
    for number, chunk in enumerate(coloured):
        own = slice(table.starts[number], table.starts[number] + table.lengths[number])
        bits = (off[own].tolist(), with_neighbours[own].tolist())
        inspected.append(InspectedChunk(chunk, *bits, num_bytes=int(num_bytes[number])))
    return InspectedDocument(row["id"], row["title"], row["source"], k, inspected)
