"""Choosing a kind of index, making an empty one, and opening a saved one."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from retro.errors import ArtifactError
from retro.retrieval.index.bm25 import Bm25Index
from retro.retrieval.index.compressed import COMPRESSED, CompressedIndex, compressed_kind
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.factory import FactoryIndex
from retro.retrieval.index.hnsw import HNSW, HnswIndex
from retro.retrieval.index.hybrid import HybridIndex
from retro.retrieval.index.keys import Keys
from retro.retrieval.index.protocol import DESCRIPTION, Index
from retro.retrieval.index.scann import ScannIndex
from retro.stages.files import DAMAGED
from retro.stages.hints import with_paths

EXACT_BELOW = 50_000
HNSW_UP_TO = 1_000_000
"""Above, a graph takes longer to build and more memory than compressed keys, and searches no faster."""


def make_index(kind: str, width: int, num_keys: int, exact_below: int = EXACT_BELOW) -> Index:
    """An empty index for keys of `width` numbers.

    `kind` is `auto` (chosen by the number of keys), `exact`, `scann`, `bm25`, `hybrid`, or a FAISS factory
    string such as `HNSW24`.
    """
    if kind == "bm25":
        return Bm25Index()
    if kind == "hybrid":
        return HybridIndex(_make_dense("auto", width, num_keys, exact_below), Bm25Index())
    return _make_dense(kind, width, num_keys, exact_below)


def _make_dense(kind: str, width: int, num_keys: int, exact_below: int) -> DenseIndex:
    if kind == "auto":
        kind = kind_for_size(width, num_keys, exact_below)
    if kind == "exact":
        return DenseIndex(width)
    if kind == "scann":
        return ScannIndex(width)
    if HNSW.fullmatch(kind):
        return HnswIndex(width, kind)
    if COMPRESSED.fullmatch(kind):
        return CompressedIndex(width, kind)
    return FactoryIndex(width, kind)


def kind_for_size(width: int, num_keys: int, exact_below: int = EXACT_BELOW) -> str:
    """Exact for few keys, a graph for many, compressed keys for very many."""
    if num_keys < exact_below:
        return "exact"
    if num_keys <= HNSW_UP_TO:
        return "HNSW24"
    return compressed_kind(width, num_keys)


def open_index(folder: Path, keys: Keys) -> Index:
    """Open a saved index over the keys that it was built from, which may be a memory map."""
    with _reading(folder):
        description = json.loads((folder / DESCRIPTION).read_text())
        if description["num_keys"] != len(keys):
            raise ArtifactError(
                f"{folder} indexes {description['num_keys']} keys but {len(keys)} are stored; "
                f"expected as many; remove it and run: {with_paths('retro build WORK', folder)}"
            )
        if description["kind"] == HybridIndex.kind:
            # Its halves are folders of their own, and the dense one says itself of what kind it is.
            dense, bm25 = (open_index(half, keys) for half in HybridIndex.halves(folder))
            assert isinstance(dense, DenseIndex)
            assert isinstance(bm25, Bm25Index)
            return HybridIndex(dense, bm25)
        if description["kind"] == Bm25Index.kind:
            words = Bm25Index()
            words.restore(folder, keys)
            return words
        index = _make_dense(description["kind"], keys.shape[1], len(keys), EXACT_BELOW)
        if isinstance(index, CompressedIndex) and "candidates" not in description:
            # From before the candidates were tuned; it is searched as it was then.
            index = FactoryIndex(keys.shape[1], description["kind"])
        index.restore(folder, keys, description)
        return index


def open_slice(folder: Path, keys: Keys, ranges: Sequence[tuple[int, int]]) -> CompressedIndex:
    """A saved index of compressed keys as `open_index` gives it, of which memory holds some rows alone.

    It finds nothing else, by the numbers that these rows have in the whole.
    """
    with _reading(folder):
        description = json.loads((folder / DESCRIPTION).read_text())
        kind = description["kind"]
        if not COMPRESSED.fullmatch(kind) or not description["approximate"]:
            raise ValueError(f"it is of kind {kind}, which cannot be divided")
        index = CompressedIndex(keys.shape[1], kind)
        index.restore(folder, keys, description, is_mapped=True)
        index.keep_only(ranges)
        return index


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turn whatever the libraries say about a broken file into one line."""
    try:
        yield
    except (RuntimeError, AssertionError, *DAMAGED) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArtifactError(
            f"{folder} is not a readable index ({reason}); expected the files that were saved; "
            f"remove it and run: {with_paths('retro build WORK', folder)}"
        ) from None
