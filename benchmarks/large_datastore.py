"""A datastore of any size, as it is: opening it, its first search, the latency of one query, and its recall.

    python benchmarks/large_datastore.py WORK [--split test] [--queries 500] [--threads 1]

WORK is a workspace whose datastore is built. Queries are chunks of a split that the datastore does not hold.
Of their true ten nearest, which are found by looking at every key, the recall is the part that a search
finds. Times are medians of queries that are asked one by one; *own memory* is what cannot be given back.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import faiss
import numpy as np
import torch

from retro.retrieval.chunks import ChunkTable
from retro.retrieval.datastore.info import describe
from retro.retrieval.datastore.segment import Segment
from retro.retrieval.index import Entries
from retro.retrieval.index.exact import nearest
from retro.workspace import Workspace

K = 10


def own_megabytes() -> float:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


def timed(call: Callable[[], object]) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    before = own_megabytes()
    work = Workspace(options.work)
    opening = timed(lambda: work.datastore().snapshot())
    print(f"opened in {opening:.0f} ms, own memory {own_megabytes() - before:.0f} MB more")
    datastore = work.datastore()
    table = ChunkTable(work.store(options.split), datastore.chunk_len)
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(len(table), min(options.queries, len(table)), replace=False))
    pad_id = table.store.pad_id
    chunks = [row[row != pad_id] for row in table.gather(chosen, table.chunk_len)]
    first = timed(lambda: datastore.search(chunks[:1], K))
    print(f"first search, its embedder loaded: {first:.0f} ms")
    for name, value in describe(datastore).facts:
        print(f"{name}: {value}")
    snapshot = datastore.snapshot()
    _, entries = datastore.queries(chunks)
    singles = [Entries(entries.keys[number : number + 1]) for number in range(len(entries.keys))]
    for entry in singles:  # pages of the index and of keys that are read again
        snapshot.search(entry, K)
    keys_alone = [timed(lambda entry=entry: snapshot.search(entry, K)) for entry in singles]  # type: ignore[misc]
    whole = [timed(lambda chunk=chunk: datastore.search([chunk], K)) for chunk in chunks]  # type: ignore[misc]
    print(f"one query from its key: {spread(keys_alone)}")
    print(f"one query from its tokens to its neighbours' text: {spread(whole)}")
    found = snapshot.search(entries, K)[0]
    recall = (found <= limits(snapshot.segments, entries)[:, None]).mean()
    print(f"recall@10 of {len(found)} queries: {recall:.3f}")


def limits(segments: Sequence[Segment], entries: Entries) -> np.ndarray:
    """The distance of the tenth nearest of all keys."""
    queries = entries.keys.astype(np.float32)
    distances = [nearest(segment.keys, queries, min(K, len(segment.keys)), None)[0] for segment in segments]
    tenth: np.ndarray = np.sort(np.concatenate(distances, axis=1), axis=1)[:, K - 1]
    return tenth


def spread(milliseconds: list[float]) -> str:
    return f"{statistics.median(milliseconds):.2f} ms, 95 % below {np.quantile(milliseconds, 0.95):.2f}"


if __name__ == "__main__":
    main()
