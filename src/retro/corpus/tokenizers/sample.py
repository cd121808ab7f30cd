"""The text that a tokenizer is trained on: training documents alone, as much of each source as its weight says."""

from collections.abc import Iterator, Mapping

from retro.corpus.documents import Document, uniform
from retro.corpus.text import TextStore
from retro.errors import ConfigError


def sample_text(
    text: TextStore, max_bytes: int, weights: Mapping[str, float] | None = None
) -> Iterator[Document]:
    """Training documents of about `max_bytes` in all, or as many as there are, chosen by their ids."""
    sizes = text.train_bytes()
    shares = {
        source: wanted / sizes[source]
        for source, wanted in bytes_by_source(sizes, max_bytes, weights or {}).items()
    }
    for document in text.documents():
        if (
            document.split == "train"
            and uniform("tokenizer", document.source, document.id) < shares[document.source]
        ):
            yield document


def bytes_by_source(
    sizes: Mapping[str, int], max_bytes: int, weights: Mapping[str, float]
) -> dict[str, float]:
    """How many bytes each source gives. A source that has less than its weight asks for gives all, and the others share the rest."""
    if not weights:
        weights = sizes
    if unknown := sorted(set(weights) - set(sizes)):
        raise ConfigError(
            f"tokenizer_weights name {unknown}; expected sources of the corpus: {sorted(sizes)}"
        )
    if any(weight < 0.0 for weight in weights.values()) or not sum(weights.values()) > 0.0:
        raise ConfigError(f"tokenizer_weights are {dict(weights)}; expected none below 0 and one above")
    given = dict.fromkeys(sizes, 0.0)
    left, open_sources = float(max_bytes), {source for source, weight in weights.items() if weight > 0.0}
    while open_sources:
        total = sum(weights[source] for source in open_sources)
        full = {source for source in open_sources if sizes[source] <= left * weights[source] / total}
        for source in full or open_sources:
            given[source] = sizes[source] if full else left * weights[source] / total
        left -= sum(given[source] for source in full)
        open_sources = open_sources - full if full else set()
    return given
