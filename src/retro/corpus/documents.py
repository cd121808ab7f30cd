"""The one record that readers yield, and how documents are assigned to splits."""

import hashlib
from dataclasses import dataclass

from retro.config import CorpusConfig

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Document:
    """A text with its origin. `id` is unique within its source."""

    id: str
    text: str
    source: str
    title: str = ""
    language: str = ""
    split: str = ""
    """The split that the source itself gives it; empty where the source has none."""

    @property
    def content_hash(self) -> str:
        """Equal for equal texts, whatever they are called."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]


def uniform(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    # Joined by what names do not hold, so that ("a", "bc") and ("ab", "c") differ.
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def sample_draw(document: Document, seed: int) -> float:
    """The number in [0, 1) that decides whether a document is sampled: those below the fraction are."""
    return uniform("sample", seed, _name_of(document))


def split_draw(document: Document, seed: int) -> float:
    """The number in [0, 1) that decides about a document's split: the lowest are test, the next valid."""
    # Another draw than the sample's: which documents are sampled says nothing about their splits.
    return uniform("split", seed, _name_of(document))


def is_sampled(document: Document, config: CorpusConfig) -> bool:
    """Whether a document belongs to the part that is used, which its name alone decides."""
    return sample_draw(document, config.split_seed) < config.sample_fraction


def is_too_long(document: Document, config: CorpusConfig) -> bool:
    return 0 < config.max_document_bytes < len(document.text.encode())


def split_of(document: Document, config: CorpusConfig) -> str:
    """The split of a document, a pure function of its id.

    Independent of the order and number of documents, so that a corpus can grow without moving any of them.
    """
    # A split that the source itself gives is kept, as benchmarks are compared on theirs.
    if document.split:
        return document.split
    draw = split_draw(document, config.split_seed)
    if draw < config.test_fraction:
        return "test"
    if draw < config.test_fraction + config.valid_fraction:
        return "valid"
    return "train"


def _name_of(document: Document) -> str:
    return f"{document.source}/{document.id}"
