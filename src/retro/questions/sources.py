"""Where the passages of questions come from: the questions' own file, another one, a datastore, BM25, or nowhere."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from retro.errors import ConfigError
from retro.questions.examples import Question
from retro.retrieval.datastore import Datastore, Neighbour
from retro.retrieval.index import Entries
from retro.retrieval.index.bm25 import Bm25Index
from retro.retrieval.retriever import Passage

Source = Callable[[Sequence[Question]], list[list[Passage]]]
"""The passages of each question, best first."""


def closed_book(questions: Sequence[Question]) -> list[list[Passage]]:
    """No passages at all."""
    return [[] for _ in questions]


def with_passages(questions: Sequence[Question], source: Source) -> list[Question]:
    """The questions with the passages of a source in place of their own."""
    return [
        replace(question, passages=tuple(found))
        for question, found in zip(questions, source(questions), strict=True)
    ]


def own_passages(k: int) -> Source:
    """The first k passages that came with each question."""
    return lambda questions: [list(question.passages[:k]) for question in questions]


def given_passages(passages: Sequence[Passage], k: int) -> Source:
    """The same first k passages for every question."""
    return lambda questions: [list(passages[:k]) for _ in questions]


def from_datastore(datastore: Datastore, k: int) -> Source:
    """The k chunks, with their continuations, that the datastore finds nearest to each question."""
    return lambda questions: [
        [_passage(neighbour) for neighbour in found]
        for found in datastore.search([question.text for question in questions], k)
    ]


class FromBm25:
    """The k chunks of a datastore with the highest BM25 score for each question, whatever the datastore's own index is.

    The index is made in memory, of the version that is the newest then.
    """

    def __init__(self, datastore: Datastore, k: int) -> None:
        if k < 1:
            raise ConfigError(f"k is {k}; expected at least 1; answer closed book instead")
        self.datastore, self.k = datastore, k
        self.snapshot = datastore.snapshot()
        parts = [
            segment.chunks[live[segment.places]]
            for segment, live in zip(self.snapshot.segments, self.snapshot.live, strict=True)
        ]
        self.chunks = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        values = self.snapshot.values(self.chunks, datastore.chunk_len)
        self.index = Bm25Index()
        self.index.add(
            Entries(np.zeros((len(values), 0)), [row[row != datastore.tokenizer.pad_id] for row in values])
        )

    def __call__(self, questions: Sequence[Question]) -> list[list[Passage]]:
        # With the space that a word has in running text.
        tokens = [np.array(self.datastore.tokenizer.encode(f" {question.text}")) for question in questions]
        distances, rows = self.index.search(
            Entries(np.zeros((len(tokens), 0)), tokens), min(self.k, len(self.chunks))
        )
        chunks = np.where(rows >= 0, self.chunks[rows], -1)
        return [
            [_passage(neighbour) for neighbour in found]
            for found in self.datastore.describe(self.snapshot, distances, chunks)
        ]


def _passage(neighbour: Neighbour) -> Passage:
    return Passage(neighbour.text, neighbour.title, -neighbour.distance)
