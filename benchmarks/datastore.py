"""A whole datastore of real text: neighbours for its chunks against exact search and bare FAISS, bytes a
token, memory of building.

    python benchmarks/datastore.py [--source enwik8] [--embedder static] [--work FOLDER]

The first run ingests and builds in FOLDER, which takes some minutes; later runs use what is there.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
from timing import interleaved_medians

from retro import catalogue
from retro.config import CorpusConfig, DatastoreConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.build import build_datastore
from retro.retrieval.datastore.info import describe
from retro.retrieval.index import Entries, Found
from retro.retrieval.index.exact import nearest
from retro.retrieval.index.hnsw import HnswIndex
from retro.retrieval.index.keys import Allowed
from retro.retrieval.other_documents import search_other_documents

QUERIES = 8192


def prepared(work: Path, source: str, encoder: str) -> Datastore:
    for name in (source, encoder):
        if name in catalogue.ENTRIES:
            catalogue.fetch(name)
    corpus = CorpusFolder(work)
    ingest(corpus, [source], CorpusConfig(vocab_size=8192))
    started = time.perf_counter()
    datastore = build_datastore(
        [corpus.store("train")], corpus.tokenizer_path, work / "datastore", DatastoreConfig(embedder=encoder)
    )
    print(f"built or opened in {time.perf_counter() - started:.0f} s")
    return datastore


def neighbours_of_chunks(datastore: Datastore) -> None:
    """Neighbours of a sample of chunks as `retro neighbours` finds them, against exact search, and against
    FAISS alone."""
    snapshot = datastore.snapshot()
    (segment,) = snapshot.segments
    index = segment.index
    assert isinstance(index, HnswIndex)
    rows = np.sort(np.random.default_rng(0).choice(len(segment.keys), QUERIES, replace=False))
    keys = segment.keys[rows]
    own = snapshot.content_hashes(segment.chunks[rows])
    k = 10
    queries = keys.astype(np.float32)
    calls = recorded_calls(index, lambda: search_other_documents(snapshot, Entries(keys), own, k))

    def bare() -> None:
        for asked, reach in calls:
            parameters = faiss.SearchParametersHNSW(efSearch=max(index.effort, 2 * reach))
            index._graph.search(asked, reach, params=parameters)

    seconds = interleaved_medians(
        {
            "retro": lambda: search_other_documents(snapshot, Entries(keys), own, k),
            "faiss": bare,
            "exact": lambda: nearest(segment.keys, queries[: QUERIES // 8], 2 * k, None),
        },
        rounds=3,
        warmup=1,
    )
    exact = seconds["exact"] * 8
    _, truth = nearest(segment.keys, queries[:1000], k, None)
    _, found = index.search(Entries(keys[:1000]), k)
    recall = np.mean([len(set(a) & set(b)) / k for a, b in zip(truth.tolist(), found.tolist(), strict=True)])
    print(
        f"{len(segment.keys):,} keys of {segment.keys.shape[1]} numbers, {index.kind}, effort {index.effort}"
    )
    print(
        f"neighbours of chunks: {QUERIES / seconds['retro']:,.0f} a second, {exact / seconds['retro']:.1f} "
        f"times exact search, recall@10 {recall:.3f}"
    )
    print(f"over the same calls to bare FAISS: {seconds['retro'] / seconds['faiss']:.3f} of their time")


def searches_by_threads(datastore: Datastore, num_searches: int = 80, num_threads: int = 8) -> None:
    """The time of so many searches by several threads over that by one: below 1 they are faster together."""
    snapshot = datastore.snapshot()
    chunks = np.random.default_rng(0).choice(snapshot.segments[0].chunks, num_searches)
    queries = [row[row != snapshot.pad_id] for row in snapshot.values(chunks, datastore.chunk_len)]

    def search(tokens: np.ndarray) -> None:
        datastore.search([tokens], 10)

    def by_one() -> None:
        for tokens in queries:
            search(tokens)

    # Threads that stay, as a server's do.
    with ThreadPoolExecutor(num_threads) as pool:
        seconds = interleaved_medians(
            {"threads": lambda: list(pool.map(search, queries)), "one": by_one}, rounds=9, warmup=2
        )
    ratio = seconds["threads"] / seconds["one"]
    print(
        f"{num_searches} searches: {seconds['one']:.3f} s by one thread, {seconds['threads']:.3f} s by "
        f"{num_threads}, ratio {ratio:.2f}"
    )


def recorded_calls(index: HnswIndex, work: Callable[[], object]) -> list[tuple[np.ndarray, int]]:
    """The queries and the number of neighbours of every search that the work makes."""
    calls: list[tuple[np.ndarray, int]] = []
    found = index._found

    def recording(queries: np.ndarray, k: int, allowed: Allowed | None, share: float) -> Found:
        calls.append((queries, k))
        return found(queries, k, allowed, share)

    index._found = recording  # type: ignore[method-assign]
    work()
    index._found = found  # type: ignore[method-assign]
    return calls


def memory_of_building(work: Path, encoder: str, parts: tuple[float, ...] = (0.5, 1.0)) -> None:
    """Peak memory of building from half and from all of the documents, with segments of a fixed size."""
    peaks = []
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--child", str(work), folder, encoder, str(part)]
            peaks.append(
                float(
                    subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[
                        -1
                    ]
                )
            )
    print(
        "peak memory of building, segments of 50,000 chunks: "
        f"{peaks[0]:,.0f} MB of half the text, {peaks[1]:,.0f} MB of all, "
        f"ratio {peaks[1] / peaks[0]:.2f}"
    )


def child(work: str, folder: str, encoder: str, part: str) -> None:
    store = CorpusFolder(Path(work)).store("train")
    kept = int(len(store) * float(part))
    store.documents, store.ends, store.starts = store.documents[:kept], store.ends[:kept], store.starts[:kept]
    config = DatastoreConfig(embedder=encoder, segment_chunks=50_000, exact_below=10_000)
    build_datastore([store], Path(work) / "tokenizer", Path(folder) / "datastore", config)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", default="enwik8")
    parser.add_argument("--embedder", default="static")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "retro-datastore-benchmark"
    )
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    datastore = prepared(options.work, options.source, options.embedder)
    for name, value in describe(datastore).facts:
        print(f"{name}: {value}")
    neighbours_of_chunks(datastore)
    searches_by_threads(datastore)
    memory_of_building(options.work, options.embedder)


if __name__ == "__main__":
    main()
