"""Two minutes of measuring: the stages' own functions on a little real text, with one core.

What is measured is the processor's time, so that it is the same beside other work.
"""

import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
import torch

from retro.config import CorpusConfig, DatastoreConfig
from retro.corpus.documents import Document
from retro.corpus.encode import encode_text
from retro.corpus.pack import pack
from retro.corpus.readers import Problems, read_stdlib
from retro.corpus.reading import Stream
from retro.corpus.text import write_text
from retro.corpus.tokenizers import Tokenizer
from retro.corpus.tokenizers.training import make_tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import DataError
from retro.planning.coefficients import Coefficients, Decline, Line
from retro.planning.index_costs import measure_indexes
from retro.planning.speed import processor_seconds
from retro.planning.training_costs import measure_training
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.build import build_datastore
from retro.retrieval.embedder import open_embedder
from retro.retrieval.finding import find_neighbours
from retro.retrieval.index import Entries
from retro.stages.executor import LocalExecutor
from retro.stages.progress import Progress, no_progress

TEXT_BYTES = 8_000_000
"""Text that is ingested."""
LEAST_BYTES = 250_000
VOCAB_SIZE = 8192
CHUNK_LEN = 64
EMBED_SECONDS = 10.0
"""About how long keys are made."""
FEW_CHUNKS = 256
NUM_KEYS = 32_768
"""The most keys that indexes are measured with."""
FINDING_CHUNKS = 8192
"""Chunks whose neighbours are found."""
MOST_REPEATED = 0.9
"""In a datastore of a few documents all searches would be."""
ALONE = LocalExecutor(1)

Result = TypeVar("Result")


def calibrate(
    embedder: str,
    progress: Progress = no_progress,
    documents: Iterable[Document] | None = None,
    text_bytes: int = TEXT_BYTES,
    num_keys: int = NUM_KEYS,
) -> Coefficients:
    """Measure this machine with one of its cores, on documents like those that are planned.

    Without any, they are the modules of Python's own library.
    """
    with _one_thread(), tempfile.TemporaryDirectory(prefix="retro-plan-") as name:
        folder = Path(name)
        progress(0, 5, note="text")
        found = _measure_text(folder, _beginning_of(documents or _shuffled_library(), text_bytes))
        progress(1, 5, note=f"keys of {embedder}")
        datastore, making = _measure_keys(folder, embedder)
        keys = _keys_of_text(datastore, TokenStore.open(folder / "tokens" / "train"), num_keys)
        progress(2, 5, note="indexes")
        found |= making | measure_indexes(keys)
        progress(3, 5, note="neighbours")
        found |= _measure_finding(folder, datastore, found["scanning"])
        progress(4, 5, note="training steps")
        found |= measure_training(folder / "checkpoints", VOCAB_SIZE)
    progress(5, 5)
    return Coefficients(
        embedder=embedder,
        width=keys.shape[1],
        processor=platform.processor() or platform.machine(),
        measured=datetime.now(UTC).strftime("%Y-%m-%d"),
        **found,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads[0])
        faiss.omp_set_num_threads(threads[1])


def _measure_text(folder: Path, documents: Sequence[Document]) -> dict[str, Any]:
    """Read, cut and pack some documents, with tokenizers of two samples."""
    size = sum(len(document.text.encode()) for document in documents)
    if size < LEAST_BYTES:
        raise DataError(
            f"there are {size:,} bytes of text to measure with; expected at least {LEAST_BYTES:,}; "
            "name a larger source"
        )
    config = CorpusConfig(vocab_size=VOCAB_SIZE, valid_fraction=0.02, test_fraction=0.02)
    stream = Stream(iter(documents), Problems())
    text, reading = _timed(
        lambda: write_text(lambda _: [stream], folder / "text", config, {}, ALONE, Problems())
    )
    quarter = replace(config, tokenizer_sample_bytes=size // 4)
    _, learning_quarter = _timed(lambda: make_tokenizer(text, folder / "quarter", quarter))
    tokenizer, learning = _timed(lambda: make_tokenizer(text, folder / "tokenizer", config))
    encoded, cutting = _timed(lambda: encode_text(text, folder / "tokenizer", folder / "encoded", ALONE))
    corpus, packing = _timed(lambda: pack(encoded, tokenizer, folder / "tokens", config))
    num_tokens = sum(len(store.tokens) for store in corpus.stores().values())
    return {
        "bytes_per_token": size / num_tokens,
        "tokens_per_document": num_tokens / len(documents),
        "reading": reading / size,
        "learning": Line.through((size / 4, size), (learning_quarter, learning)),
        "cutting": cutting / size,
        "packing": packing / size,
        "text_disk": _disk(folder / "text") / size,
        "token_disk": (_disk(folder / "encoded") + _disk(folder / "tokens")) / num_tokens,
    }


def _shuffled_library() -> list[Document]:
    """In an order by chance, as neighbouring files are alike."""
    documents = list(read_stdlib())
    return [documents[number] for number in np.random.default_rng(0).permutation(len(documents))]


def _beginning_of(documents: Iterable[Document], num_bytes: int) -> list[Document]:
    """As many as have so much text together."""
    chosen: list[Document] = []
    size = 0
    for document in documents:
        chosen.append(document)
        size += len(document.text.encode())
        if size >= num_bytes:
            break
    return chosen


def _measure_keys(folder: Path, name: str) -> tuple[Datastore, dict[str, Any]]:
    """Build datastores of a few chunks and of as many as some seconds allow; the larger one is given back."""
    store = TokenStore.open(folder / "tokens" / "train")
    tokenizer = Tokenizer.open(folder / "tokenizer")
    table = ChunkTable(store, CHUNK_LEN)
    chosen = np.random.default_rng(0).permutation(len(table))[:FEW_CHUNKS]
    texts = [tokenizer.decode(table.tokens(chunk).tolist()) for chunk in chosen]
    embedder = open_embedder(name)
    embedder.embed(texts[:8])  # what a library does once must not count
    embedding = processor_seconds(lambda: embedder.embed(texts)) / len(texts)
    config = DatastoreConfig(embedder=name, index="exact")

    def build(num_chunks: int) -> tuple[Datastore, int, float]:
        some = _beginning(store, num_chunks)
        place = folder / f"datastore-{num_chunks}"
        made, seconds = _timed(
            lambda: build_datastore([some], folder / "tokenizer", place, config, executor=ALONE)
        )
        return made, len(ChunkTable(some, CHUNK_LEN)), seconds

    _, few, few_seconds = build(FEW_CHUNKS)
    many = min(len(table), 2 * few + round(EMBED_SECONDS / embedding))
    datastore, number, seconds = build(many)
    return datastore, {"keys": Line.through((few, number), (few_seconds, seconds)), "embedding": embedding}


def _beginning(store: TokenStore, num_chunks: int) -> TokenStore:
    """The first documents, of at least so many chunks."""
    first = ChunkTable(store, CHUNK_LEN).first
    return store.select(range(min(len(store), int(np.searchsorted(first, num_chunks)))))


def _keys_of_text(datastore: Datastore, store: TokenStore, number: int) -> np.ndarray:
    """Some keys: those of the datastore, or where an embedder is too slow for as many, others in their place.

    These are sums of random vectors of the chunks' tokens, the rare ones the longest: as those of text they
    lie the closer the more words they share.
    """
    segment = datastore.snapshot().segments[0]
    table = ChunkTable(store, CHUNK_LEN)
    number = min(number, len(table) - len(table) // 10)
    if len(segment.keys) >= number:
        return np.array(segment.keys[:number])
    counts = np.bincount(np.asarray(store.tokens[:]), minlength=VOCAB_SIZE)
    rarity = np.log(len(store.tokens) / np.maximum(counts, 1))
    vectors = np.random.default_rng(0).normal(size=(len(counts), segment.keys.shape[1])) * rarity[:, None]
    keys = np.stack([vectors[table.tokens(chunk)].sum(axis=0) for chunk in range(number)])
    return (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float16)


def _measure_finding(folder: Path, datastore: Datastore, scanning: Line) -> dict[str, Any]:
    """How many searches the neighbours of a chunk take, and what they cost beside; by the first documents."""
    num_keys = len(datastore)
    store = _beginning(TokenStore.open(folder / "tokens" / "train"), min(num_keys, FINDING_CHUNKS))
    _, seconds = _timed(lambda: find_neighbours(store, datastore, folder / "neighbours", executor=ALONE))
    num_documents = datastore.snapshot().num_documents
    (few, share_of_few), (many, share) = (
        _repeated(datastore, number) for number in (max(1, num_documents // 4), num_documents)
    )
    repeated = Decline.through((few, many), (share_of_few, share))
    gathering = seconds / len(ChunkTable(store, CHUNK_LEN)) - scanning.at(num_keys) / (1 - share)
    return {"repeated": repeated, "gathering": max(0.0, gathering)}


def _repeated(datastore: Datastore, num_documents: int) -> tuple[int, float]:
    """The keys of the first documents, and the part of them that find too few of the other documents' among
    twice as many as are wanted."""
    snapshot = datastore.snapshot()
    segment = snapshot.segments[0]
    documents = segment.documents["number"][:num_documents]
    num_keys = int((segment.places < num_documents).sum())
    asked = slice(0, min(num_keys, FINDING_CHUNKS))
    wanted = datastore.config.num_neighbours
    _, found = snapshot.search(Entries(np.asarray(segment.keys[asked])), 2 * wanted, documents.tolist())
    own = snapshot.content_hashes(np.asarray(segment.chunks[asked]))
    of_others = (found >= 0) & (snapshot.content_hashes(found) != own[:, None])
    return num_keys, min(MOST_REPEATED, float((of_others.sum(axis=1) < wanted).mean()))


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    results: list[Result] = []
    seconds = processor_seconds(lambda: results.append(work()))
    return results[0], seconds


def _disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
