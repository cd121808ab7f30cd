"""Summaries as the paper scores those of the Curation Corpus: article, "TL;DR:", summary, and only the summary counts."""

from collections.abc import Iterator

from retro.corpus.readers import FieldMap
from retro.errors import DataError
from retro.scoring.intervals import Interval
from retro.scoring.sets import documents_of
from retro.scoring.targets import TargetScores

MARK = "\n\nTL;DR:"
FIELDS = FieldMap(text="article", title="summary")
"""A summary is to a record what a title is to a document; so every format that the readers know will do."""


def summary_pairs(source: str) -> Iterator[tuple[str, str]]:
    """The prompts and summaries of records with the fields `article` and `summary`, in JSON Lines or any other format."""
    for document in documents_of(source, FIELDS):
        if not document.title.strip():
            raise DataError(
                f"{source}: record {document.id} has no summary; expected the fields article and summary in each"
            )
        yield document.text.rstrip() + MARK, " " + document.title.strip()


def summary_metrics(scores: TargetScores) -> dict[str, Interval]:
    return {
        "bits per byte": scores.bits_per_byte,
        "perplexity of a token": scores.perplexity(scores.num_tokens),
    }
