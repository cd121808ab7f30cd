"""A minute of measuring: the stages' own functions on a little real text, with one core."""

import math
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import faiss
import numpy as np
import torch

from retro import recipes
from retro.config import CorpusConfig
from retro.corpus.encode import encode_text
from retro.corpus.pack import pack
from retro.corpus.readers import Problems, read_stdlib
from retro.corpus.reading import Stream
from retro.corpus.text import write_text
from retro.corpus.tokenizers import Tokenizer
from retro.corpus.tokenizers.training import make_tokenizer
from retro.corpus.tokens import TokenStore
from retro.planning.coefficients import Coefficients
from retro.planning.operations import training_operations
from retro.planning.speed import seconds_of, time_training
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.embedder import open_embedder
from retro.retrieval.index import Entries, make_index
from retro.stages.executor import LocalExecutor
from retro.stages.progress import Progress, no_progress

TEXT_BYTES = 3_000_000
"""Text of Python's own library that is ingested."""
VOCAB_SIZE = 8192
CHUNK_LEN = 64
EMBED_SECONDS = 10.0
SIZES = (2048, 16384)
"""Keys of the two graphs that are built: how their costs grow is taken from both."""
FIRST = 1024
CODE_BYTES = 32
QUERIES = 256

Result = TypeVar("Result")


def calibrate(
    embedder: str,
    progress: Progress = no_progress,
    text_bytes: int = TEXT_BYTES,
    sizes: tuple[int, int] = SIZES,
) -> Coefficients:
    """Measure this machine with one of its cores. Beside other busy processes it seems slower than it is."""
    threads = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="retro-plan-") as folder:
            found = _measure_text(Path(folder), text_bytes, progress)
            found |= _measure_keys(Path(folder), embedder, progress)
        progress(3, 5, note="indexes")
        found |= _measure_indexes(int(found["width"]), sizes)
        progress(4, 5, note="training steps")
        run = recipes.get("tiny")
        seconds = time_training(run.model, run.training).retro
        found["train_speed"] = training_operations(run.model, run.training) / seconds
    finally:
        torch.set_num_threads(threads[0])
        faiss.omp_set_num_threads(threads[1])
    progress(5, 5)
    width = int(found.pop("width"))
    return Coefficients(
        embedder=embedder,
        width=width,
        processor=platform.processor() or platform.machine(),
        measured=datetime.now(UTC).strftime("%Y-%m-%d"),
        **found,
    )


def _measure_text(folder: Path, text_bytes: int, progress: Progress) -> dict[str, float]:
    """Read, cut and pack some files of the standard library."""
    documents = []
    size = 0
    for document in read_stdlib():
        documents.append(document)
        size += len(document.text.encode())
        if size >= text_bytes:
            break
    config = CorpusConfig(vocab_size=VOCAB_SIZE, valid_fraction=0.02, test_fraction=0.02)
    alone = LocalExecutor(1)
    progress(0, 5, note="reading")
    stream = Stream(iter(documents), Problems())
    text, reading = _timed(
        lambda: write_text(lambda _: [stream], folder / "text", config, {}, alone, Problems())
    )
    tokenizer = make_tokenizer(text, folder / "tokenizer", config)
    progress(1, 5, note="cutting into tokens")
    encoded, cutting = _timed(lambda: encode_text(text, folder / "tokenizer", folder / "encoded", alone))
    corpus, packing = _timed(lambda: pack(encoded, tokenizer, folder / "tokens", config))
    num_tokens = sum(len(store.tokens) for store in corpus.stores().values())
    return {
        "bytes_per_token": size / num_tokens,
        "tokens_per_document": num_tokens / len(documents),
        "reading": reading / size,
        "cutting": cutting / size,
        "packing": packing / size,
        "text_disk": _disk(folder / "text") / size,
        "token_disk": (_disk(folder / "encoded") + _disk(folder / "tokens")) / num_tokens,
    }


def _measure_keys(folder: Path, name: str, progress: Progress) -> dict[str, float]:
    """Embed chunks of the same text, for some seconds."""
    progress(2, 5, note=f"keys of {name}")
    store = TokenStore.open(folder / "tokens" / "train")
    tokenizer = Tokenizer.open(folder / "tokenizer")
    table = ChunkTable(store, CHUNK_LEN)
    embedder = open_embedder(name)
    order = np.random.default_rng(0).permutation(len(table))
    texts = [tokenizer.decode(table.tokens(chunk).tolist()) for chunk in order[:QUERIES]]
    embedder.embed(texts[:8])
    done, seconds = 0, 0.0
    while seconds < EMBED_SECONDS and done < 20 * QUERIES:
        seconds += seconds_of(lambda: embedder.embed(texts))
        done += len(texts)
    return {"width": embedder.width, "embedding": seconds / done}


def _measure_indexes(width: int, sizes: tuple[int, int]) -> dict[str, float]:
    """Two graphs, an exact index and one of compressed keys; the keys lie in groups as those of text do."""
    rng = np.random.default_rng(0)
    keys = _grouped(sizes[1] + QUERIES, width, rng)
    queries = Entries(keys[sizes[1] :])
    links, walks, disk = [], [], 0.0
    for size in sizes:
        graph = make_index("HNSW24", width, size)
        links.append(seconds_of(lambda: graph.add(Entries(keys[:size]))) / size)  # noqa: B023
        walks.append(seconds_of(lambda: graph.search(queries, 10)) / QUERIES)  # noqa: B023
        with tempfile.TemporaryDirectory(prefix="retro-plan-") as folder:
            graph.save(Path(folder))
            disk = _disk(Path(folder)) / size
    exact = make_index("exact", width, sizes[0])
    exact.add(Entries(keys[: sizes[0]]))
    pair = seconds_of(lambda: exact.search(queries, 10)) / QUERIES / sizes[0]
    code, scan = _measure_codes(keys[: sizes[1]], queries.keys)
    link, link_log = _grown(links, sizes)
    walk, walk_log = _grown(walks, sizes)
    return {
        "pair": pair,
        "link": link,
        "link_log": link_log,
        "walk": walk,
        "walk_log": walk_log,
        "graph_disk": disk,
        "code": code,
        "scan": scan,
    }


def _measure_codes(keys: np.ndarray, queries: np.ndarray) -> tuple[float, float]:
    """Seconds to compress a key, and to compare a query with a compressed one."""
    width = keys.shape[1]
    index = faiss.IndexPQ(width, _largest_divisor(width, CODE_BYTES), 8)
    # How well the centres fit changes nothing about the time that it takes to use them.
    index.pq.cp.niter = 1
    index.pq.cp.min_points_per_centroid = 1
    index.train(keys.astype(np.float32))
    code = seconds_of(lambda: index.add(keys.astype(np.float32))) / len(keys)
    scan = seconds_of(lambda: index.search(queries.astype(np.float32), 10)) / len(queries) / len(keys)
    return code, scan


def _largest_divisor(width: int, most: int) -> int:
    return next(number for number in range(min(width, most), 0, -1) if width % number == 0)


def _grouped(number: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Keys around centres, fifty to each."""
    centres = rng.normal(size=(number // 50 + 1, width))
    return (centres[rng.integers(len(centres), size=number)] + rng.normal(size=(number, width)) * 0.5).astype(
        np.float16
    )


def _grown(values: list[float], sizes: tuple[int, int]) -> tuple[float, float]:
    """A cost at `FIRST` keys, and what every doubling adds, from two measurements."""
    doublings = math.log2(sizes[1] / sizes[0])
    step = max(0.0, (values[1] - values[0]) / doublings)
    return max(values[0] - step * math.log2(sizes[0] / FIRST), values[0] / 2), step


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def _disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
