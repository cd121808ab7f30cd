"""Compressed keys in lists (OPQ, IVF, PQ): what they propose is ranked again from the stored keys.

For datastores that outgrow a graph: 40 bytes a key in memory, and no key is looked at but those of the lists
that a query visits.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from retro.errors import ConfigError
from retro.retrieval.index import quantiser
from retro.retrieval.index.exact import DenseIndex, selector
from retro.retrieval.index.keys import Allowed, Keys
from retro.retrieval.index.protocol import Entries, Found

COMPRESSED = re.compile(r"OPQ(\d+)_(\d+),IVF(\d+)_HNSW(\d+),PQ(\d+)")
FILE = "index.faiss"
BLOCK = 65_536
"""Keys that are encoded at one time."""
KEYS_A_LIST = 128
"""About how many keys a list holds: their number grows with the keys, so that a list stays as long."""
CANDIDATES = (20, 50, 100, 200, 400, 800)
"""How many are ranked again for every ten that are wanted."""
OVERHEAD, RANKING = 40, 40
"""What visiting a list, and what ranking a candidate from its key, costs, in comparisons of codes."""
MAX_LISTS = 4096
"""The most lists that tuning has a search visit: where even they do not suffice, it is told, not paid for."""
ROUNDING = 1e-6
"""By what part of a distance, and of the query's length, distances to equal codes may differ."""
MOST_TIED = 1000
"""About how many equally near ones at the limit of the candidates are looked at beyond it."""
WIDER = 8
"""How many times as many lists are visited where the first have too few rows."""


def compressed_kind(width: int, num_keys: int) -> str:
    """Lists of about `KEYS_A_LIST` keys and 32 bytes a code, or fewer where keys are narrow or few."""
    num_lists = 2 ** max(2, round(np.log2(max(1, num_keys) / KEYS_A_LIST)))
    num_bytes = next((size for size in (32, 16, 8) if size <= width // 2), 1)
    rotated = num_bytes * min(4, width // num_bytes)
    return f"OPQ{num_bytes}_{rotated},IVF{num_lists}_HNSW32,PQ{num_bytes}"


def limits_of(estimates: np.ndarray, queries: np.ndarray, reach: int) -> np.ndarray:
    """The distance up to which candidates count, for each query: that of the last, and what rounds to it.

    FAISS sums four codes at a time, and the last few of a list one by one: equal codes may differ in a bit.
    """
    last = np.partition(estimates, reach - 1, axis=1)[:, reach - 1 : reach]
    lengths = np.einsum("nd,nd->n", queries, queries)[:, None]
    return last + np.float32(ROUNDING) * (last + lengths)


def _widened(array: np.ndarray, width: int, missing: float) -> np.ndarray:
    """The same with columns of what is missing."""
    more = max(0, width - array.shape[1])
    return np.pad(array, ((0, 0), (0, more)), constant_values=missing)


class CompressedIndex(DenseIndex):
    """Exact if there are too few keys to train on. `effort` is how many lists a search visits."""

    effort = 16
    candidates = 200
    """How many are ranked again for every ten that are wanted."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__(width)
        self.kind = kind
        match = COMPRESSED.fullmatch(kind)
        assert match
        try:
            self._index: faiss.Index | None = faiss.index_factory(width, kind, faiss.METRIC_L2)
        except RuntimeError:
            raise ConfigError(
                f"{kind!r} is no index of keys of {width} numbers; expected codes of at most as many bytes, "
                "and a rotation to a multiple of them"
            ) from None

    @property
    def is_trained(self) -> bool:
        return self._index is not None and self._index.is_trained

    @property
    def num_lists(self) -> int:
        return int(faiss.extract_index_ivf(self._index).nlist) if self._index is not None else 0

    def train(self, keys: Keys) -> None:
        """Train on a sample of these keys. With too few of them search will be exact."""
        if self._index is not None and not quantiser.train(self._index, keys):
            self._index = None

    def add(self, entries: Entries) -> None:
        if self._index is not None and not self.is_trained:
            self.train(entries.keys)
        if self._index is not None:
            for start in range(0, len(entries.keys), BLOCK):
                self.add_codes(self.encode(entries.keys[start : start + BLOCK]))
        super().add(entries)

    def encode(self, keys: np.ndarray) -> np.ndarray:
        """The list and the code of every key, in bytes; any process with the same training makes the same."""
        assert self._index is not None
        codes: np.ndarray = self._index.sa_encode(keys.astype(np.float16).astype(np.float32))
        return codes

    def add_codes(self, codes: np.ndarray) -> None:
        """Take the next rows from their codes; `attach` gives their keys."""
        assert self._index is not None
        if len(codes):
            first = self._index.ntotal
            ivf = faiss.downcast_index(faiss.extract_index_ivf(self._index))
            ivf.add_sa_codes(codes, np.arange(first, first + len(codes)))
            # What rotates keys on their way to the lists does not notice what reaches them by another way.
            self._index.ntotal = ivf.ntotal

    def attach(self, keys: Keys) -> None:
        """The keys of the rows whose codes were added."""
        self.keys = keys
        self.removals.extend(len(keys) - len(self.removals.mask))

    def codes(self) -> np.ndarray:
        """The codes of all rows, in their order, as `encode` made them."""
        assert self._index is not None
        ivf = faiss.downcast_index(faiss.extract_index_ivf(self._index))
        coarse = ivf.coarse_code_size()
        found = np.empty((self._index.ntotal, ivf.sa_code_size()), dtype=np.uint8)
        for number in range(ivf.nlist):
            size = ivf.invlists.list_size(number)
            if size:
                rows = faiss.rev_swig_ptr(ivf.invlists.get_ids(number), size)
                codes = faiss.rev_swig_ptr(ivf.invlists.get_codes(number), size * ivf.code_size)
                # A code begins with the number of its list, the lowest byte first.
                found[rows, :coarse] = np.frombuffer(number.to_bytes(coarse, "little"), dtype=np.uint8)
                found[rows, coarse:] = codes.reshape(size, -1)
        return found

    def emptied(self) -> "CompressedIndex":
        """The same training without any row."""
        other = CompressedIndex(self.keys.shape[1], self.kind)
        other._index = faiss.clone_index(self._index)
        other._index.reset()
        return other

    def efforts(self) -> list[int]:
        if self._index is None:
            return []
        powers = [2**power for power in range(self.num_lists.bit_length())]
        # Half steps between the powers of two: doubling the lists doubles the time.
        between = [3 * power // 2 for power in powers[1:]]
        return sorted(number for number in {*powers, *between} if number <= min(self.num_lists, MAX_LISTS))

    def settings(self) -> list[dict[str, int]]:
        pairs = [
            {"effort": effort, "candidates": number} for effort in self.efforts() for number in CANDIDATES
        ]
        return sorted(pairs, key=self._cost)

    def _cost(self, setting: dict[str, int]) -> float:
        """What a search costs, counted and not timed: the choice must be the same on every machine."""
        keys_a_list = len(self) / max(1, self.num_lists)
        return setting["effort"] * (keys_a_list + OVERHEAD) + RANKING * setting["candidates"]

    def query_rows(self, num_queries: int) -> np.ndarray:
        """Keys that the quantiser was not trained on, if they are enough."""
        rows = quantiser.held_out(len(self))
        rows = rows[~self.removals.mask[rows]]
        return rows if len(rows) >= num_queries else super().query_rows(num_queries)

    def _candidates(self, queries: np.ndarray, k: int, allowed: Allowed | None, share: float) -> np.ndarray:
        rows = self.proposed(queries, k, allowed, share)[1]
        # Lists may be short, or hold few rows that are allowed: visit more before all keys are looked at.
        short = np.flatnonzero((rows >= 0).sum(axis=1) < k)
        if len(short):
            wider = self.proposed(queries[short], k, allowed, share, WIDER)[1]
            rows = _widened(rows, wider.shape[1], -1)
            rows[short] = _widened(wider, rows.shape[1], -1)
        return rows

    def reach(self, k: int) -> int:
        """How many candidates there are for the k nearest."""
        return min(max(k, -(-self.candidates * k // 10)), len(self))

    def proposed(
        self, queries: np.ndarray, k: int, allowed: Allowed | None, share: float, wider: int = 1
    ) -> Found:
        """The candidates for the k nearest with their distances as the codes give them, in any order.

        `share` is the part of all rows that is allowed. Of several that are equally near at the limit all are
        candidates: FAISS keeps those that it meets first, which are others where the rows are divided.
        """
        reach = self.reach(k)
        num_lists = min(wider * self._lists_for(k, share), self.num_lists)
        width = min(reach + 1, len(self))
        estimates, rows = self._visit(queries, width, num_lists, allowed)
        tied = np.arange(len(queries))
        while True:
            is_tied = estimates[tied, width - 1] <= limits_of(estimates[tied], queries[tied], reach)[:, 0]
            tied = tied[is_tied & (rows[tied, width - 1] >= 0)]
            if not len(tied) or width >= min(reach + MOST_TIED, len(self)):
                break
            width = min(2 * width, len(self))
            estimates, rows = _widened(estimates, width, np.inf), _widened(rows, width, -1)
            estimates[tied], rows[tied] = self._visit(queries[tied], width, num_lists, allowed)
        beyond = estimates > limits_of(estimates, queries, reach)
        return np.where(beyond, np.inf, estimates), np.where(beyond, -1, rows)

    def keep_only(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Let go of the codes of all rows but these; whatever stays has the number that it had."""
        ivf = faiss.downcast_index(faiss.extract_index_ivf(self._index))
        lists = faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size)
        for begin, end in ranges:
            ivf.invlists.copy_subset_to(lists, faiss.InvertedLists.SUBSET_TYPE_ID_RANGE, begin, end)
        ivf.replace_invlists(lists, True)
        lists.this.disown()  # they are the index's now

    def _lists_for(self, k: int, share: float) -> int:
        """So many lists that they hold enough: the fewer rows are allowed, the more must be visited."""
        keys_a_list = len(self) / self.num_lists
        enough = 2 * k / (keys_a_list * share)
        return min(max(round(self.effort / share), int(enough) + 1), self.num_lists)

    def _visit(self, queries: np.ndarray, reach: int, num_lists: int, allowed: Allowed | None) -> Found:
        options: dict[str, Any] = {} if allowed is None else {"sel": selector(allowed)}
        centres = faiss.SearchParametersHNSW(efSearch=max(2 * num_lists, quantiser.ASSIGN_EFFORT))
        lists = faiss.SearchParametersIVF(nprobe=num_lists, quantizer_params=centres, **options)
        assert self._index is not None
        parameters = faiss.SearchParametersPreTransform(index_params=lists)
        estimates, rows = self._index.search(queries, reach, params=parameters)
        return np.where(rows < 0, np.float32(np.inf), estimates), rows

    def description(self) -> dict[str, Any]:
        return {**super().description(), "candidates": self.candidates}

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self._index is not None:
            faiss.write_index(self._index, str(folder / FILE))

    def restore(self, folder: Path, keys: Keys, description: dict[str, Any], is_mapped: bool = False) -> None:
        """With `is_mapped` the codes stay on disk, until `keep_only` has taken some of them."""
        super().restore(folder, keys, description)
        self.candidates = int(description["candidates"])
        if not 0 < self.candidates < 1 << 31:
            raise ValueError(f"{self.candidates} candidates")
        flags = faiss.IO_FLAG_MMAP if is_mapped else 0
        self._index = faiss.read_index(str(folder / FILE), flags) if description["approximate"] else None
        if self._index is not None and (self._index.ntotal, self._index.d) != keys.shape:
            raise ValueError(f"an index of {self._index.ntotal} keys of width {self._index.d}")
        if self._index is not None and faiss.try_extract_index_ivf(self._index) is None:
            raise ValueError("it has no lists")
