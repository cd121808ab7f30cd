"""Answering questions with a model that reads passages, and where the passages come from.

A source finds the passages of each question: in the question's own file, in another one, in a
datastore, by BM25, or none at all. Answers are greedy, from the cached sampler, many
questions in a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.generation.request import Choice, Prompt
from retro.generation.sampler import Sampler
from retro.model.protocol import LanguageModel
from retro.questions.examples import Question
from retro.questions.format import Format
from retro.retrieval.datastore import Datastore, Neighbour
from retro.retrieval.index import Entries
from retro.retrieval.index.bm25 import Bm25Index
from retro.retrieval.retriever import Passage
from retro.stages.progress import Progress, no_progress

# Answers are trained without line breaks, so the first one ends an answer.
GREEDY = Choice(temperature=0.0, stop=("\n",))

NUM_CANDIDATES = 100
"""Chunks of each order that are looked at where two orders become one."""
RANK_OFFSET = 60
"""What is added to a rank before its reciprocal is taken, so that the first few differ by little."""

Source = Callable[[Sequence[Question]], list[list[Passage]]]
"""The passages of each question, best first."""


def closed_book(questions: Sequence[Question]) -> list[list[Passage]]:
    """No passages at all."""
    return [[] for _ in questions]


def own_passages(k: int | None = None) -> Source:
    """The first k passages that came with each question, or all of them."""
    return lambda questions: [list(question.passages[:k]) for question in questions]


def given_passages(passages: Sequence[Passage], k: int) -> Source:
    """The same first k passages for every question."""
    return lambda questions: [list(passages[:k]) for _ in questions]


def from_datastore(datastore: Datastore, k: int, exclude: Sequence[str] = ()) -> Source:
    """The k chunks nearest to each question in the datastore, with their continuations.

    Here and below, documents whose ids are excluded are never found.
    """

    def search(questions: Sequence[Question]) -> list[list[Passage]]:
        found = datastore.search([question.text for question in questions], k, exclude=exclude)
        return [list(map(_passage, neighbours)) for neighbours in found]

    return search


class FromBm25:
    """The k chunks of a datastore with the highest BM25 score for each question.

    The index is made in memory, whatever index the datastore has, from its newest
    version at that time.
    """

    def __init__(self, datastore: Datastore, k: int, exclude: Sequence[str] = ()) -> None:
        if k < 1:
            raise ConfigError(f"k is {k}; expected at least 1; answer closed book instead")
        self.datastore = datastore
        self.k = k
        self.snapshot = datastore.snapshot()
        # Segments are immutable and still hold deleted documents, whose chunks
        # are left out here.
        without = datastore.ledger.find_excluded(exclude, self.snapshot.version.number)
        parts = [
            segment.chunks[wanted[segment.places]]
            for segment, wanted in zip(
                self.snapshot.segments, self.snapshot.wanted(None, without), strict=True
            )
        ]
        self.chunks = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        values = self.snapshot.values(self.chunks, datastore.chunk_len)
        tokens = [row[row != datastore.tokenizer.pad_id] for row in values]
        self.index = Bm25Index()
        # BM25 needs no keys, so they have width 0.
        self.index.add(Entries(np.zeros((len(values), 0)), tokens))

    def __call__(self, questions: Sequence[Question]) -> list[list[Passage]]:
        # A leading space gives the first word the token it has in running text.
        tokens = [np.array(self.datastore.tokenizer.encode(f" {question.text}")) for question in questions]
        entries = Entries(np.zeros((len(tokens), 0)), tokens)
        distances, rows = self.index.search(entries, min(self.k, len(self.chunks)))
        # Rows of the index are places in `chunks`; −1 means fewer matches than k, and stays −1.
        chunks = np.where(rows >= 0, self.chunks[rows], -1)
        found = self.datastore.describe(self.snapshot, distances, chunks)
        return [list(map(_passage, neighbours)) for neighbours in found]


def by_both_ranks(datastore: Datastore, k: int, exclude: Sequence[str] = ()) -> Source:
    """The k chunks that stand high in both orders, that of the keys and that of BM25.

    Reciprocal rank fusion: a chunk's score is the sum of 1 / (60 + rank) over the orders in which it is among
    the first hundred. It compares no distance with a score, and has nothing to tune.
    """
    depth = max(k, NUM_CANDIDATES)
    orders = (from_datastore(datastore, depth, exclude), FromBm25(datastore, depth, exclude))

    def search(questions: Sequence[Question]) -> list[list[Passage]]:
        found = zip(*(order(questions) for order in orders), strict=True)
        return [fuse_ranks(ranked)[:k] for ranked in found]

    return search


def fuse_ranks(orders: Sequence[Sequence[Passage]]) -> list[Passage]:
    """The passages of several orders by reciprocal rank fusion; of equals, the one that was met first."""
    scores: dict[tuple[str, str], float] = {}
    for order in orders:
        for rank, passage in enumerate(order, start=1):
            # Passages of the same words are one to a reader.
            name = (passage.title, passage.text)
            scores[name] = scores.get(name, 0.0) + 1 / (RANK_OFFSET + rank)
    best = sorted(scores.items(), key=lambda entry: -entry[1])
    return [Passage(text, title, score) for (title, text), score in best]


def _passage(neighbour: Neighbour) -> Passage:
    # Passages have scores, where more is better; neighbours have distances.
    return Passage(neighbour.text, neighbour.title, -neighbour.distance)


def with_passages(questions: Sequence[Question], source: Source) -> list[Question]:
    """The questions, with the passages of a source in place of their own."""
    return [
        replace(question, passages=tuple(found))
        for question, found in zip(questions, source(questions), strict=True)
    ]


@dataclass(frozen=True)
class Answer:
    """An answer, with the passages that the model read for it; none if it
    answered closed book."""

    question: Question
    text: str
    passages: tuple[Passage, ...]
    log_prob: float
    """Of the answer's tokens, in nats."""


def withheld(answer: Answer, least_log_prob: float) -> Answer:
    """The answer, or an empty one in its place if it is less probable than this."""
    return replace(answer, text="") if answer.log_prob < least_log_prob else answer


class Answerer:
    """Answers questions with a model; the source finds their passages."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        source: Source,
        max_tokens: int = 32,
        batch_size: int = 16,
        lead: Sequence[int] = (),
    ) -> None:
        """`lead` are tokens before every question."""
        self.model = model
        self.tokenizer = tokenizer
        self.source = source
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self.sampler = Sampler(model, tokenizer=tokenizer)
        self.form = Format(tokenizer, model.facts.chunk_len, lead)

    def having(self, model: LanguageModel, source: Source) -> "Answerer":
        """The same answerer with another model and source."""
        return Answerer(model, self.tokenizer, source, self.max_tokens, self.batch_size, self.form.lead)

    def answer(self, questions: Sequence[Question], progress: Progress = no_progress) -> list[Answer]:
        """The answers, in the order of the questions."""
        answers: list[Answer] = []
        for start in range(0, len(questions), self.batch_size):
            answers += self._answer(questions[start : start + self.batch_size])
            progress(len(answers), len(questions))
        return answers

    def _answer(self, questions: Sequence[Question]) -> list[Answer]:
        passages = self.source(questions)
        if any(passages) and not self.model.facts.retrieves:
            raise ConfigError(
                "the model has no cross-attention to read passages with; expected a RETRO, or closed book"
            )
        # Each prompt brings its own passages, so the sampler searches nothing.
        prompts = [
            Prompt(self.form.prompt(question.text), question.text, self.form.passages(found))
            for question, found in zip(questions, passages, strict=True)
        ]
        samples = self.sampler.generate_all(
            prompts, max_tokens=self.max_tokens, choice=GREEDY, log_probs=True
        )
        return [
            Answer(question, sample.text.strip(), tuple(found), sum(sample.log_probs or ()))
            for question, found, [sample] in zip(questions, passages, samples, strict=True)
        ]
