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


def split_of(document: Document, config: CorpusConfig) -> str | None:
    """The split of a document, a pure function of its id; nothing if it was not sampled.

    Independent of the order and number of documents, so that a corpus can grow without moving any of them.
    """
    # Two draws from two names: which documents are sampled says nothing about their splits.
    name = f"{document.source}/{document.id}"
    if uniform("sample", config.split_seed, name) >= config.sample_fraction:
        return None
    if config.max_document_bytes and len(document.text.encode()) > config.max_document_bytes:
        return None
    # A split that the source itself gives is kept, as benchmarks are compared on theirs.
    if document.split:
        return document.split
    draw = uniform("split", config.split_seed, name)
    if draw < config.test_fraction:
        return "test"
    if draw < config.test_fraction + config.valid_fraction:
        return "valid"
    return "train"
