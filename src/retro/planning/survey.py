"""What a study's text is like: read once, before anything is chosen."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from retro import catalogue
from retro.corpus.documents import Document, sample_draw, split_draw, uniform
from retro.corpus.readers import FieldMap, Problems
from retro.corpus.readers.sources import read_raw
from retro.corpus.readers.wikipedia import RawPage
from retro.errors import DataError
from retro.stages.progress import Progress, no_progress
from retro.wording import counted

SPLIT_SEED = 0
SAMPLED_DOCUMENTS = 256
SAMPLED_LEN = 4096
"""Characters that are kept of a sampled document."""
MIN_DOCUMENTS = 10
MIN_BYTES = 50_000
ENOUGH = f"at least {MIN_DOCUMENTS} different documents and {MIN_BYTES / 1e3:.0f} kB of text"


@dataclass(frozen=True)
class Survey:
    """The distinct documents of some sources."""

    draws: np.ndarray
    """What decides about each document's split, in rising order."""
    sizes: np.ndarray
    """Bytes of the same documents."""
    sample_draws: np.ndarray
    """What decides whether each of them is sampled."""
    num_duplicates: int
    sample: Sequence[str]
    """The beginnings of some documents, chosen by chance."""

    @property
    def num_documents(self) -> int:
        return len(self.sizes)

    @cached_property
    def num_bytes(self) -> int:
        return int(self.sizes.sum())

    def sampled(self, fraction: float) -> "Survey":
        """The documents that this fraction leaves."""
        kept = self.sample_draws < fraction
        return replace(
            self, draws=self.draws[kept], sizes=self.sizes[kept], sample_draws=self.sample_draws[kept]
        )

    def edge(self, number: int) -> float:
        """The fraction that holds so many documents: between the draws of the last one inside and the first
        one outside."""
        return round(float(self.draws[number - 1] + self.draws[number]) / 2, 9)

    def pieces(self, size: int, number: int) -> list[str]:
        """Pieces of the sampled text, each of about `size` characters, as a chunk has."""
        found = (text[start : start + size] for text in self.sample for start in range(0, len(text), size))
        return [piece for piece, _ in zip(found, range(number), strict=False)]

    def expect_enough(self, sources: Sequence[str]) -> None:
        """Refuse text from which nothing could be learned or measured."""
        named = " and ".join(sources)
        found = f"{named}: {describe(self.num_documents, self.num_bytes)}"
        if self.num_duplicates:
            found += f" besides {counted(self.num_duplicates, 'copy', 'copies')}"
        if self.num_documents >= MIN_DOCUMENTS and self.num_bytes >= MIN_BYTES:
            return
        if self.num_bytes >= MIN_BYTES:
            raise DataError(
                f"{found}; expected {ENOUGH}, as whole documents are held out to measure on; "
                "cut the text into more files, one for each chapter or article, say"
            )
        raise DataError(f"{found}; expected {ENOUGH}; add more text")


def describe(num_documents: int, num_bytes: int) -> str:
    """How much text it is."""
    size = f"{num_bytes / 1e6:,.2f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:,.1f} kB"
    return f"{counted(num_documents, 'document')}, {size}"


def survey(
    sources: Sequence[str], fields: FieldMap | None = None, progress: Progress = no_progress
) -> Survey:
    """Read the sources and note the size of every distinct text."""
    seen: set[str] = set()
    rows: list[tuple[float, int, float]] = []
    # The documents with the highest numbers so far, drawn apart from the splits.
    sample: list[tuple[float, str]] = []
    num_duplicates = 0
    for document in _documents(sources, fields, progress):
        key = document.content_hash[:16]
        if key in seen:
            num_duplicates += 1
            continue
        seen.add(key)
        size = len(document.text.encode())
        rows.append((split_draw(document, SPLIT_SEED), size, sample_draw(document, SPLIT_SEED)))
        entry = (uniform("survey", document.source, document.id), document.text[:SAMPLED_LEN])
        if len(sample) < SAMPLED_DOCUMENTS:
            heapq.heappush(sample, entry)
        else:
            heapq.heappushpop(sample, entry)
        progress(0, 0, note=counted(len(rows), "document"))
    rows.sort()
    draws, sizes, sample_draws = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    texts = [text for _, text in sorted(sample)]
    return Survey(draws, sizes.astype(np.int64), sample_draws, num_duplicates, texts)


def _documents(sources: Sequence[str], fields: FieldMap | None, progress: Progress) -> Iterator[Document]:
    """All documents with text. What cannot be read is passed over here, and told when it is ingested."""
    problems = Problems(strict=False)
    for source in sources:
        catalogue.fetch_if_missing(source, progress)
        for item in read_raw(source, fields, problems):
            if isinstance(item, RawPage):
                # Uncleaned, as cleaning takes long; markup makes it about half as large again.
                item = Document(item.id, item.wikitext, source)
            if item.text.strip():
                yield item
