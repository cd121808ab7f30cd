"""Neighbours of chunks: as `retro neighbours` finds them, beside exact search and beside FAISS by itself."""

from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
from datastore import recorded_calls
from torch import float32

from retro import catalogue
from retro.config import CorpusConfig, DatastoreConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.build import build_datastore
from retro.retrieval.index import Entries
from retro.retrieval.index.exact import nearest
from retro.retrieval.index.hnsw import HnswIndex
from retro.retrieval.other_documents import search_other_documents
from speed.limits import PRODUCT, product, product_name
from speed.rows import Rounds, Row

ROUNDS, QUERIES, K = 5, 4096, 20
TEXTS = {"licences": 1.0, "enwik8": 0.25}
"""Corpora, and how much of each is read: one is searched exactly, the other by a graph."""


def prepared(work: Path, source: str, fraction: float) -> Datastore:
    """A datastore with static keys; made once."""
    folder = work / f"{source}-{fraction:g}"
    corpus = CorpusFolder(folder)
    for name in (source, "static"):
        catalogue.fetch(name)
    ingest(corpus, [source], CorpusConfig(vocab_size=4096, sample_fraction=fraction))
    if not (folder / "datastore").exists():
        print(f"  building the datastore of {source}", flush=True)
    config = DatastoreConfig(embedder="static")
    return build_datastore([corpus.store("train")], corpus.tokenizer_path, folder / "datastore", config)


def measure(work: Path, quick: bool) -> list[Row]:
    texts = {"licences": 0.1} if quick else TEXTS
    return [row for text in texts.items() for row in _of_datastore(prepared(work, *text), text[0], quick)]


def _of_datastore(datastore: Datastore, source: str, quick: bool) -> list[Row]:
    snapshot = datastore.snapshot()
    (segment,) = snapshot.segments
    index, num_keys, width = segment.index, len(segment.keys), segment.keys.shape[1]
    count = min(256 if quick else QUERIES, num_keys)
    rows = np.sort(np.random.default_rng(0).choice(num_keys, count, replace=False))
    keys = np.asarray(segment.keys[rows])
    own = snapshot.content_hashes(segment.chunks[rows])
    flat = faiss.IndexFlatL2(width)
    flat.add(np.asarray(segment.keys).astype(np.float32))
    queries = keys.astype(np.float32)
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: search_other_documents(snapshot, Entries(keys), own, K),
        "flat": lambda: flat.search(queries, 2 * K),
        "product": product(float32),
    }
    limit, limit_name = "product", product_name(float32)
    work = 2.0 * count * num_keys * width / PRODUCT
    if isinstance(index, HnswIndex):
        asked = recorded_calls(index, calls["ours"])

        def bare() -> None:
            for some, reach in asked:
                effort = faiss.SearchParametersHNSW(efSearch=max(index.effort, 2 * reach))
                index._graph.search(some, reach, params=effort)

        calls["bare"] = bare
        limit, limit_name, work = "bare", "the same searches in bare FAISS", 1.0
    sample = queries[:512]
    _, truth = nearest(segment.keys, sample, 10, None)
    _, found = index.search(Entries(keys[:512]), 10)
    pairs = zip(truth.tolist(), found.tolist(), strict=True)
    recall = float(np.mean([len(set(a) & set(b)) / 10 for a, b in pairs]))
    rounds = Rounds(calls, 1 if quick else ROUNDS, warmup=1)
    return [
        rounds.row(
            "ours",
            count,
            what=f"neighbours of chunks, {index.kind}, recall@10 {recall:.3f}",
            size=f"{num_keys:,} keys of {width} ({source})",
            unit="chunks/s",
            rival="flat",
            rival_name="FAISS, exact (IndexFlatL2)",
            limit=limit,
            limit_name=limit_name,
            work=work,
        )
    ]
