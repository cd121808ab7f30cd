"""Text and what is made of it: the corpus and the datastore."""

from dataclasses import dataclass, field
from typing import Any

from retro.config.checks import require, require_one_of, require_positive

FILE_BYTES = 1 << 30
"""The most bytes of tokens, or of neighbours, in one file. It is no setting of what is written: however it is
cut, the files hold the same together."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Which text is used, how it is tokenised, and how its documents are split."""

    sources: tuple[str, ...] = ()
    """What is read if a command names no source."""
    tokenizer: str = ""
    """The folder or hub id of a Hugging Face tokenizer, a model of the catalogue, or a run or workspace
    whose tokenizer is taken; empty: a SentencePiece tokenizer is trained on the corpus."""
    vocab_size: int = 2048
    """Vocabulary of the tokenizer, if one is trained."""
    tokenizer_model: str = "bpe"
    """`bpe` or `unigram`."""
    tokenizer_sample_bytes: int = 32 << 20
    """At most this much text is used to train the tokenizer."""
    tokenizer_weights: dict[str, float] = field(default_factory=dict)
    """Each source's share of that text; empty: its share of the corpus."""
    split_seed: int = 0
    valid_fraction: float = 0.02
    test_fraction: float = 0.05
    max_document_bytes: int = 0
    """Longer documents are left out; 0 keeps all."""
    sample_fraction: float = 1.0
    """Part of the documents that is used, chosen by their ids."""
    decontaminate_ngram: int = 13
    decontaminate_threshold: float = 0.8
    """Training documents at or above this Jaccard similarity with a held-out
    document are removed."""

    def __post_init__(self) -> None:
        require_positive(self, "vocab_size", "tokenizer_sample_bytes", "decontaminate_ngram")
        require(self.vocab_size < 1 << 31, f"vocab_size is {self.vocab_size}; expected less than 2^31")
        require(
            self.max_document_bytes >= 0,
            f"max_document_bytes is {self.max_document_bytes}; expected a positive number, or 0 to keep all",
        )
        require_one_of("tokenizer_model", self.tokenizer_model, "bpe", "unigram")
        for name in ("valid_fraction", "test_fraction"):
            require(
                0.0 <= getattr(self, name) < 1.0, f"{name} is {getattr(self, name)}; expected 0 ≤ {name} < 1"
            )
        require(
            self.valid_fraction + self.test_fraction < 1.0,
            "valid_fraction and test_fraction leave no training documents",
        )
        require(
            0.0 < self.sample_fraction <= 1.0,
            f"sample_fraction is {self.sample_fraction}; expected 0 < sample_fraction ≤ 1",
        )
        require(0.0 < self.decontaminate_threshold <= 1.0, "decontaminate_threshold must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class DatastoreConfig:
    """How keys and index are made, and how many neighbours are saved."""

    embedder: str = "minilm"
    """What makes the keys: a name in the catalogue, or the folder or hub id of a
    BERT-like model."""
    embedder_precision: str = "float32"
    """`float32`; `bfloat16`, twice as fast on hardware that has it, with nearly the same
    neighbours; or `auto`."""
    chunk_len: int = 64
    num_neighbours: int = 20
    """Neighbours saved for each chunk, K; training and evaluation use the first k of them."""
    index: str = "auto"
    """`auto` chooses by the number of keys; or `exact`, `bm25`, `hybrid`, `scann`, or a FAISS
    factory string such as HNSW24 or IVF1024,Flat."""
    exact_below: int = 50_000
    """With `auto`, fewer keys than these are searched exactly."""
    target_recall: float = 0.95
    """Part of the true 10 nearest that a search is tuned to find."""
    segment_chunks: int = 1_000_000
    """The most chunks in a segment, which building holds in memory at once."""

    def __post_init__(self) -> None:
        require_positive(self, "chunk_len", "num_neighbours", "segment_chunks")
        require_one_of("embedder_precision", self.embedder_precision, "auto", "float32", "bfloat16")
        require(
            0.0 < self.target_recall <= 1.0,
            f"target_recall is {self.target_recall}; expected 0 < target_recall ≤ 1",
        )

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Read JSON from when the embedder was called an encoder."""
        names = {"encoder": "embedder", "encoder_precision": "embedder_precision"}
        return {names.get(name, name): value for name, value in values.items()}
