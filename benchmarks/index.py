"""Exact search, a graph and compressed keys over real or clustered keys: what each costs as keys grow.

    python benchmarks/index.py --sizes 20000 200000
    python benchmarks/index.py --kinds compressed --sizes 2000000 5000000 10000000 --results results.json
    python benchmarks/index.py --keys WORK/datastore/segments/000000/keys.npy --sizes 270000 --width 256

Every pair of kind and size runs in a process of its own, one after the other, and is kept in the results:
what is there is not measured again, so that the long ones can be run one at a time. For each: recall@10, the
latency of one query and where it goes, bytes a key, seconds to build and peak memory; then what each step in
size costs. Queries are not among the keys: drawn anew from the same clusters, or held out of the real ones.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from retro.retrieval.index import Entries, make_index, open_index
from retro.retrieval.index.compressed import CompressedIndex, compressed_kind
from retro.retrieval.index.exact import DenseIndex, nearest
from retro.retrieval.index.hnsw import HnswIndex
from retro.retrieval.index.tuning import tune

NUM_QUERIES = 1000
NUM_SINGLE = 200
"""Queries that are timed one by one."""
K = 10
BLOCK = 65_536
TICK = 0.02


def clustered(path: Path, num_keys: int, width: int) -> None:
    """Normal clusters of about a hundred keys, whose centres lie in a few directions, as those of text do.

    Written block by block, with queries of the same clusters beside them.
    """
    rng = np.random.default_rng(0)
    num_clusters = max(1, num_keys // 100)
    spread = rng.normal(size=(16, width)) / 4
    centres = (rng.normal(size=(num_clusters, 16)) @ spread).astype(np.float32)

    def drawn(count: int) -> np.ndarray:
        noise = rng.standard_normal(size=(count, width), dtype=np.float32)
        return (centres[rng.integers(0, num_clusters, count)] + 0.7 * noise).astype(np.float16)

    keys = np.lib.format.open_memmap(path / "keys.tmp.npy", "w+", np.float16, (num_keys, width))
    for start in range(0, num_keys, BLOCK):
        keys[start : start + BLOCK] = drawn(min(BLOCK, num_keys - start))
    keys.flush()
    np.save(path / "queries.npy", drawn(NUM_QUERIES))
    (path / "keys.tmp.npy").replace(path / "keys.npy")


def held_out(path: Path, source: Path, num_keys: int) -> None:
    """The first so many keys of a file but for a sample, which are the queries."""
    keys = np.load(source, mmap_mode="r")[: num_keys + NUM_QUERIES]
    rows = np.random.default_rng(0).permutation(len(keys))
    np.save(path / "queries.npy", keys[np.sort(rows[:NUM_QUERIES])])
    np.save(path / "keys.tmp.npy", keys[np.sort(rows[NUM_QUERIES:])])
    (path / "keys.tmp.npy").replace(path / "keys.npy")


def prepare(options: argparse.Namespace, size: int) -> Path:
    """A folder with keys, queries, and the distance of each query's tenth neighbour."""
    name = options.keys.stem + "-held-out" if options.keys else f"clustered-{options.width}"
    path: Path = options.folder / f"{name}-{size}"
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "keys.npy").exists():
        if options.keys:
            held_out(path, options.keys, size)
        else:
            clustered(path, size, options.width)
    if not (path / "limits.npy").exists():
        keys = np.load(path / "keys.npy", mmap_mode="r")
        queries = np.load(path / "queries.npy").astype(np.float32)
        np.save(path / "limits.npy", nearest(keys, queries, K, None)[0][:, -1])
    return path


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """The most memory, in MB, that was this process's own: without pages of files, which can be dropped."""
    peak = 0.0
    stop = threading.Event()

    def look() -> None:
        nonlocal peak
        while not stop.wait(TICK):
            lines = Path("/proc/self/status").read_text().splitlines()
            found = next(line for line in lines if line.startswith("RssAnon"))
            peak = max(peak, int(found.split()[1]) / 1000)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield lambda: peak
    finally:
        stop.set()
        watching.join()


def measure(kind: str, path: Path) -> dict[str, Any]:
    """What one index over the keys of a folder costs and finds."""
    keys = np.load(path / "keys.npy", mmap_mode="r")
    queries = np.load(path / "queries.npy").astype(np.float32)
    limits = np.load(path / "limits.npy")
    wanted = compressed_kind(keys.shape[1], len(keys)) if kind == "compressed" else kind
    with peak_memory() as peak, tempfile.TemporaryDirectory() as folder:
        index = make_index(wanted, keys.shape[1], len(keys))
        assert isinstance(index, DenseIndex)
        started = time.perf_counter()
        index.add(Entries(keys))
        seconds = time.perf_counter() - started
        report = tune(index)
        tuned = time.perf_counter() - started - seconds
        index.save(Path(folder))
        num_bytes = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        reopened = open_index(Path(folder), keys)
        assert isinstance(reopened, DenseIndex)
        index = reopened
        building = peak()
    distances = index.search(Entries(queries), K)[0]
    started = time.perf_counter()
    index.search(Entries(queries), K)
    batch = time.perf_counter() - started
    singles = timed(lambda query: index.search(Entries(query), K), queries)
    return {
        "kind": index.kind,
        "keys": len(keys),
        "width": keys.shape[1],
        "build_seconds": seconds,
        "tuning_seconds": tuned,
        "peak_mb": building,
        "bytes_a_key": num_bytes / len(keys),
        "recall_at_10": float((distances <= limits[:, None]).mean()),
        "tuned_recall": report.recall_at_10,
        "effort": index.effort,
        "candidates": getattr(index, "candidates", 0),
        "latency_ms": statistics.median(singles),
        "latency_p95_ms": float(np.quantile(singles, 0.95)),
        "queries_per_second": len(queries) / batch,
        "where": where(index, queries),
        "threads": faiss.omp_get_max_threads(),
    }


def timed(call: Callable[[np.ndarray], object], queries: np.ndarray) -> list[float]:
    """Milliseconds of each of some queries, asked one by one, after as many that are not timed."""
    for number in range(NUM_SINGLE):
        call(queries[-number - 1 :][:1])
    milliseconds = []
    for number in range(NUM_SINGLE):
        started = time.perf_counter()
        call(queries[number : number + 1])
        milliseconds.append(1000 * (time.perf_counter() - started))
    return milliseconds


def where(index: DenseIndex, queries: np.ndarray) -> dict[str, float]:
    """Where the time of a query goes: the profile behind a growth."""
    if isinstance(index, HnswIndex):
        faiss.cvar.hnsw_stats.reset()
        index.search(Entries(queries), K)
        return {"distances computed": faiss.cvar.hnsw_stats.ndis / len(queries)}
    if not isinstance(index, CompressedIndex) or index._index is None:
        return {}
    lists = faiss.downcast_index(faiss.extract_index_ivf(index._index))
    rotated = index._index.chain.at(0).apply(queries)
    effort = faiss.SearchParametersHNSW(efSearch=max(2 * index.effort, 64))
    reach = max(K, index.candidates * K // 10)
    faiss.cvar.indexIVF_stats.reset()
    index._visit(queries, reach, index.effort, None)
    compared = faiss.cvar.indexIVF_stats.ndis / len(queries)
    centres = timed(
        lambda query: lists.quantizer.search(query, index.effort, params=effort),
        np.ascontiguousarray(rotated),
    )
    visit = timed(lambda query: index._visit(query, reach, index.effort, None), queries)
    whole = timed(lambda query: index.search(Entries(query), K), queries)
    return {
        "codes compared": compared,
        "lists": float(lists.nlist),
        "ms to find the lists": statistics.median(centres),
        "ms to compare codes": statistics.median(visit) - statistics.median(centres),
        "ms to rank again": statistics.median(whole) - statistics.median(visit),
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(
        "keys        kind                                recall@10  ms/query   p95  B/key  build s  peak MB"
    )
    for row in rows:
        print(
            f"{row['keys']:>10,}  {row['kind']:<34}  {row['recall_at_10']:>9.3f}  {row['latency_ms']:>8.3f}  "
            f"{row['latency_p95_ms']:>4.2f}  {row['bytes_a_key']:>5.0f}  {row['build_seconds']:>7.0f}  "
            f"{row['peak_mb']:>7,.0f}"
        )
        if row["where"]:
            print("            " + ", ".join(f"{value:,.3g} {name}" for name, value in row["where"].items()))
    for asked in dict.fromkeys(row["asked"] for row in rows):
        for small, large in pairwise(row for row in rows if row["asked"] == asked):
            keys = large["keys"] / small["keys"]
            growth = large["latency_ms"] / small["latency_ms"]
            print(f"{asked}: {keys:.1f} times the keys cost {growth:.2f} times the latency")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=Path, help="a float16 array of keys; clustered ones are made without")
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--width", type=int, default=64, help="of the keys that are made")
    parser.add_argument("--kinds", nargs="+", default=["exact", "HNSW24", "compressed"])
    parser.add_argument("--threads", type=int, default=faiss.omp_get_max_threads())
    parser.add_argument("--results", type=Path, help="a JSON file that keeps what was measured")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "retro-index-benchmark", help="for keys"
    )
    parser.add_argument("--one", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    faiss.omp_set_num_threads(options.threads)
    if options.one:
        kind, path = options.one
        print(json.dumps(measure(kind, Path(path))))
        return
    results = options.results or options.folder / "results.json"
    options.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    named = []
    for size in options.sizes:
        for kind in options.kinds:
            path = prepare(options, size)
            name = f"{path.name} {kind} {options.threads}"
            named.append(name)
            if name not in found:
                command = [sys.executable, __file__, "--threads", str(options.threads)]
                command += ["--one", kind, str(path)]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                found[name] = {**json.loads(output.splitlines()[-1]), "asked": kind}
                results.write_text(json.dumps(found, indent=1) + "\n")
                show([found[name]])
    print()
    show([found[name] for name in named])


if __name__ == "__main__":
    main()
