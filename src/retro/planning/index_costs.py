"""What indexes cost: search key by key, a graph that grows, and compressed keys, each over keys of text."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import numpy as np

from retro.planning.coefficients import Growth, Line, Visits
from retro.planning.cost import TUNING_SCANS
from retro.planning.speed import processor_seconds
from retro.retrieval.index import Entries
from retro.retrieval.index.compressed import COMPRESSED, CompressedIndex, compressed_kind
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.hnsw import HnswIndex
from retro.retrieval.index.quantiser import ASSIGN_EFFORT, cluster
from retro.retrieval.index.quantiser import KEYS_A_LIST as SAMPLED_A_LIST
from retro.retrieval.index.tuning import tune

QUERIES = 1024
RUN = 128
"""Neighbouring chunks that are asked with after each other: they meet the same keys, which are then near."""
REACH = 40
"""Neighbours asked for: finding them asks for twice as many as it saves."""
CENTRES = (256, 4096)
"""Lists among which that of a key is looked for, of which the larger number is learned."""


def measure_indexes(keys: np.ndarray) -> dict[str, Any]:
    """Coefficients of all kinds of index."""
    scanning = _measure_scanning(keys)
    return {"scanning": scanning, **_measure_graph(keys, scanning), **_measure_compressed(keys, scanning)}


def _measure_scanning(keys: np.ndarray) -> Line:
    """Search key by key, in a quarter of the keys and in all."""
    sizes = (len(keys) // 4, len(keys))
    seconds = []
    for size in sizes:
        index = DenseIndex(keys.shape[1])
        index.add(Entries(keys[:size]))
        seconds.append(_time_search(index))
    return Line.through(sizes, (seconds[0], seconds[1]))


def _measure_graph(keys: np.ndarray, scanning: Line) -> dict[str, Any]:
    """Graphs of a quarter of the keys and of all, both searched with the effort that suits the larger."""
    sizes = (len(keys) // 4, len(keys))
    graphs, links = [], []
    for size in sizes:
        graph = HnswIndex(keys.shape[1])
        entries = Entries(keys[:size])
        links.append(processor_seconds(lambda: graph.add(entries)) / size)  # noqa: B023
        graphs.append(graph)
    small, large = graphs
    tuning = processor_seconds(lambda: tune(large)) - TUNING_SCANS * scanning.at(len(keys))
    small.effort = large.effort
    return {
        "linking": Growth.through(sizes, (links[0], links[1])),
        "walking": Growth.through(sizes, (_time_search(small), _time_search(large))),
        "graph_tuning": max(0.0, tuning),
        "graph_disk": _disk_of(large) / len(keys),
    }


def _measure_compressed(keys: np.ndarray, scanning: Line) -> dict[str, Any]:
    """An index of compressed keys, and by themselves the parts of it that grow with its lists."""
    index = CompressedIndex(keys.shape[1], compressed_kind(keys.shape[1], len(keys)))
    match = COMPRESSED.fullmatch(index.kind)
    assert match
    rotated = np.ascontiguousarray(keys[:, : int(match[2])], dtype=np.float32)
    clustering = _measure_clustering(rotated.shape[1])
    listing = _measure_listing(rotated)
    training = processor_seconds(lambda: index.train(keys))
    adding = processor_seconds(lambda: index.add(Entries(keys)))
    tuning = processor_seconds(lambda: tune(index))
    find_list = listing.at(index.num_lists)
    return {
        "coding": max(0.0, adding / len(keys) - find_list),
        "listing": listing,
        "tables": max(0.0, training - clustering * index.num_lists**1.5),
        "clustering": clustering,
        "visiting": _measure_visiting(index, find_list),
        "compressed_tuning": max(0.0, tuning - TUNING_SCANS * scanning.at(len(keys))),
    }


def _measure_visiting(index: CompressedIndex, find_list: float) -> Visits:
    """Searches as they were tuned, and with half as many lists."""
    lists = index.effort
    fewer = max(1, lists // 2)
    seconds = []
    for number in (fewer, lists):
        index.effort = number
        seconds.append(max(0.0, _time_search(index) - find_list))
    line = Line.through((fewer, lists), (seconds[0], seconds[1])) if lists > 1 else Line(seconds[1], 0.0)
    return Visits(len(index), lists, line)


def _measure_clustering(width: int) -> float:
    """Which keys they are changes nothing about the time, as the number of rounds is always the same."""
    number = CENTRES[1]
    points = np.random.default_rng(0).normal(size=(SAMPLED_A_LIST * number, width)).astype(np.float32)
    return processor_seconds(lambda: cluster(points, number)) / number**1.5


def _measure_listing(points: np.ndarray) -> Growth:
    """The nearest of some keys that stand for the centres of lists, in a graph as that of the centres is."""
    seconds = []
    for number in CENTRES:
        graph = faiss.IndexHNSWFlat(points.shape[1], 32)
        graph.hnsw.efSearch = ASSIGN_EFFORT
        graph.add(points[:number])
        asked = points[-QUERIES:]
        seconds.append(processor_seconds(lambda: graph.search(asked, 1)) / len(asked))  # noqa: B023
    return Growth.through(CENTRES, (seconds[0], seconds[1]))


def _time_search(index: DenseIndex) -> float:
    """Seconds of a query among others, as finding asks: neighbouring chunks after each other."""
    runs = np.linspace(0, max(0, len(index) - RUN), QUERIES // RUN).astype(np.int64)
    rows = np.minimum(runs[:, None] + np.arange(RUN), len(index) - 1).ravel()
    queries = Entries(np.asarray(index.keys[rows], dtype=np.float32))
    return processor_seconds(lambda: index.search(queries, REACH)) / len(rows)


def _disk_of(index: DenseIndex) -> int:
    with TemporaryDirectory(prefix="retro-plan-") as folder:
        index.save(Path(folder))
        return sum(file.stat().st_size for file in Path(folder).iterdir())
