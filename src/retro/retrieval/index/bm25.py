"""BM25 over the chunks' token ids (extra `bm25`): chunks that share rare tokens are near."""

from pathlib import Path
from typing import Any

import numpy as np

from retro.errors import ConfigError, MissingExtraError
from retro.retrieval.index.keys import Allowed, Keys
from retro.retrieval.index.protocol import Entries, Found, Removals, save_description

VOCABULARY = "vocabulary.npy"


class Bm25Index:
    """Lucene's BM25 (k1 1.5, b 0.75). A distance is the negative score.

    A chunk without a token in common is no neighbour. Frequencies are those of the segment, so scores of
    different segments can be compared as far as their texts are alike.
    """

    kind = "bm25"

    def __init__(self) -> None:
        self.removals = Removals()
        self._tokens: list[np.ndarray] = []
        self._vocabulary = np.zeros(0, dtype=np.int64)
        self._library: Any = None

    def __len__(self) -> int:
        return len(self.removals.mask)

    @property
    def num_bytes(self) -> int:
        """What its postings take."""
        postings = self._library.scores if len(self._vocabulary) else {}
        return sum(array.nbytes for array in postings.values() if isinstance(array, np.ndarray))

    def add(self, entries: Entries) -> None:
        """Index the chunks in one piece, as bm25s has it: another `add` builds the index anew."""
        # An opened index has postings, but not the tokens that it would need to count again.
        if len(self._tokens) < len(self):
            raise ConfigError(
                "a BM25 index that was opened takes no more chunks; expected a new index for them; "
                "run: retro db compact WORK"
            )
        added = [np.asarray(tokens, dtype=np.int64) for tokens in entries.tokens]
        self._tokens += added
        self.removals.extend(len(added))
        self._library = bm25s_library().BM25(method="lucene", backend="numpy")
        if sum(map(len, self._tokens)):
            # bm25s wants numbers without gaps: the place of each token in the sorted vocabulary is its
            # number.
            self._vocabulary, numbers = np.unique(np.concatenate(self._tokens), return_inverse=True)
            ends = np.cumsum([len(tokens) for tokens in self._tokens])[:-1]
            chunks = [part.tolist() for part in np.split(numbers, ends)]
            vocabulary = {str(number): number for number in range(len(self._vocabulary))}
            self._library.index((chunks, vocabulary), create_empty_token=False, show_progress=False)

    def remove(self, rows: np.ndarray) -> None:
        self.removals.remove(rows)

    def search(self, entries: Entries, k: int, allowed: np.ndarray | Allowed | None = None) -> Found:
        within = self.removals.within(allowed)
        mask = None if within is None else within.mask
        distances = np.full((len(entries.tokens), k), np.inf, dtype=np.float32)
        rows = np.full((len(entries.tokens), k), -1, dtype=np.int64)
        for number, tokens in enumerate(entries.tokens):
            known = self._known(tokens)
            if len(known) and k:
                best, scores = highest(self._library.get_scores_from_ids(known, weight_mask=mask), k)
                distances[number, : len(best)] = -scores
                rows[number, : len(best)] = best
        return distances, rows

    def scores_of(self, tokens: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The scores of a few rows, looked up in each token's sorted list of chunks, not computed for all."""
        scores = np.zeros(len(rows), dtype=np.float32)
        for token in self._known(tokens):
            postings = self._library.scores
            part = slice(postings["indptr"][token], postings["indptr"][token + 1])
            chunks = postings["indices"][part]
            # Where a row would stand in the list; it is there only if that place holds the row itself.
            places = np.minimum(np.searchsorted(chunks, rows), len(chunks) - 1)
            scores += np.where(chunks[places] == rows, postings["data"][part][places], 0)
        return scores

    def _known(self, tokens: np.ndarray) -> np.ndarray:
        """The tokens that the index has seen, as its own numbers."""
        tokens = np.asarray(tokens, dtype=np.int64)
        places = np.searchsorted(self._vocabulary, tokens)
        seen = np.flatnonzero(places < len(self._vocabulary))
        return places[seen][self._vocabulary[places[seen]] == tokens[seen]]

    def save(self, folder: Path) -> None:
        save_description(folder, kind=self.kind, num_keys=len(self))
        self.removals.save(folder)
        np.save(folder / VOCABULARY, self._vocabulary)
        if len(self._vocabulary):
            self._library.vocab_dict = {}  # ours is sorted and numeric; theirs would be a second copy
            self._library.save(folder, show_progress=False)

    def restore(self, folder: Path, keys: Keys) -> None:
        """Read what `save` wrote; the keys say how many rows there are."""
        self.removals = Removals.open(folder, len(keys))
        self._vocabulary = np.load(folder / VOCABULARY)
        if self._vocabulary.ndim != 1 or self._vocabulary.dtype.kind not in "iu":
            raise ValueError("its vocabulary is no row of tokens")
        if len(self._vocabulary):
            self._library = bm25s_library().BM25.load(
                folder, mmap=True, load_vocab=False, show_progress=False
            )
            postings = self._library.scores
            # bm25s reads a truncated file without complaint and fails only in a search.
            num_chunks = postings["num_docs"]
            if num_chunks != len(keys) or not _fit(postings, len(self._vocabulary), num_chunks):
                raise ValueError("its postings do not fit its vocabulary")
            self._library.get_scores_from_ids([0])  # its settings are only read in a search


def _fit(postings: dict[str, np.ndarray], num_words: int, num_rows: int) -> bool:
    """Whether there is one list for each word, and every list holds scores of rows that are there."""
    data, rows, starts = postings["data"], postings["indices"], postings["indptr"]
    if not data.ndim == rows.ndim == starts.ndim == 1 or rows.dtype.kind + starts.dtype.kind != "ii":
        return False
    one_list_each = len(starts) == num_words + 1 and (np.diff(starts, prepend=0) >= 0).all()
    return bool(
        one_list_each
        and len(data) == len(rows) == starts[-1]
        and data.dtype.kind == "f"
        and 0 <= rows.min(initial=0)
        and rows.max(initial=0) < num_rows
    )


def highest(scores: np.ndarray, k: int) -> Found:
    """Rows and scores of the k highest scores above zero, equals by row."""
    if k < len(scores):
        # Everything as high as the k-th, which may be more than k: the sort below decides among equals.
        limit = max(np.partition(scores, -k)[-k], np.finfo(scores.dtype).tiny)
        rows = np.flatnonzero(scores >= limit)
    else:
        rows = np.flatnonzero(scores > 0)
    rows = rows[np.lexsort((rows, -scores[rows]))][:k]
    return rows, scores[rows]


def bm25s_library() -> Any:
    try:
        import bm25s
    except ImportError:
        raise MissingExtraError("bm25s", "bm25") from None
    return bm25s
