"""Approximate indexes against exact search and against bare FAISS calls, over real or clustered keys.

    python benchmarks/index.py --keys keys.npy --sizes 20000 200000
    python benchmarks/index.py --width 64 --sizes 20000 200000 2000000

For every size: build time, bytes a key, the tuned recall@10, the speed of finding the neighbours of a batch
of chunks against exact search with FAISS (matrix products over float32 keys) and against the bare FAISS
call with the same effort, and the latency of one query. Then what each step in size costs in latency.
"""

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import faiss
import numpy as np
from timing import interleaved_medians

from retro.retrieval.index import Entries, make_index, open_index
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.hnsw import HnswIndex
from retro.retrieval.index.tuning import tune

NUM_SINGLE = 50


def clustered_keys(num_keys: int, width: int) -> np.ndarray:
    """Normal clusters of about a hundred keys, whose centres lie in a few directions, as those of text do."""
    rng = np.random.default_rng(0)
    num_clusters = max(1, num_keys // 100)
    centres = rng.normal(size=(num_clusters, 16)) @ rng.normal(size=(16, width)) / 4
    keys = np.empty((num_keys, width), dtype=np.float16)
    for start in range(0, num_keys, 65_536):
        part = keys[start : start + 65_536]
        part[:] = centres[rng.integers(0, num_clusters, len(part))] + 0.7 * rng.normal(size=part.shape)
    return keys


def measure(keys: np.ndarray, kind: str, num_queries: int, folder: Path) -> float:
    """Print the lines of one size; returns the latency of one query."""
    index = make_index(kind, keys.shape[1], len(keys))
    assert isinstance(index, DenseIndex)
    started = time.perf_counter()
    index.add(Entries(keys))
    seconds = time.perf_counter() - started
    report = tune(index)
    index.save(folder)
    num_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    reopened = open_index(folder, keys)
    assert isinstance(reopened, DenseIndex)
    index = reopened
    print(
        f"{len(keys):,} keys, {index.kind}: built in {seconds:.1f} s, {num_bytes / len(keys):.0f} bytes a key"
    )
    print(
        f"  recall@10 {report.recall_at_10:.3f} at effort "
        f"{report.effort}{'' if report.reached else ', short of the target'}"
    )
    queries = keys[np.random.default_rng(1).choice(len(keys), num_queries)].astype(np.float32)
    flat = faiss.IndexFlatL2(keys.shape[1])
    flat.add(keys.astype(np.float32))
    candidates = {
        "ours": lambda: index.search(Entries(queries), 10),
        "exact": lambda: flat.search(queries, 10),
        "single": lambda: [
            index.search(Entries(queries[number : number + 1]), 10) for number in range(NUM_SINGLE)
        ],
    }
    if isinstance(index, HnswIndex):
        parameters = faiss.SearchParametersHNSW(efSearch=index.effort)
        candidates["bare"] = lambda: index._graph.search(queries, 10, params=parameters)
    times = interleaved_medians(candidates, rounds=5, warmup=1)
    print(
        f"  {num_queries / times['ours']:,.0f} queries/s, {times['exact'] / times['ours']:.1f} times exact "
        "search with FAISS"
    )
    if "bare" in times:
        print(f"  {100 * (times['ours'] / times['bare'] - 1):.1f} % over the bare FAISS call")
    print(f"  {1000 * times['single'] / NUM_SINGLE:.3f} ms for one query")
    return times["single"] / NUM_SINGLE


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--keys", type=Path, help="a float16 array of keys; clustered keys are made without it"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 200_000, 2_000_000])
    parser.add_argument("--width", type=int, default=64, help="of the keys that are made")
    parser.add_argument("--kind", default="auto")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=faiss.omp_get_max_threads())
    options = parser.parse_args()
    faiss.omp_set_num_threads(options.threads)
    latencies: list[float] = []
    for size in options.sizes:
        keys = (
            np.load(options.keys, mmap_mode="r")[:size]
            if options.keys
            else clustered_keys(size, options.width)
        )
        with tempfile.TemporaryDirectory() as folder:
            latencies.append(measure(keys, options.kind, options.queries, Path(folder)))
    for (small, before), (large, after) in pairwise(zip(options.sizes, latencies, strict=True)):
        print(f"one query: {small:,} → {large:,} keys costs {after / before:.2f} times")


if __name__ == "__main__":
    main()
