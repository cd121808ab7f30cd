"""LAMBADA: the last word of a passage, guessed from all that stands before it."""

from collections.abc import Iterator

import numpy as np

from retro.errors import DataError
from retro.scoring.intervals import Interval, bootstrap_ratio
from retro.scoring.sets import documents_of
from retro.scoring.targets import TargetScores

SOURCE = "lambada"


def last_words(source: str = SOURCE) -> Iterator[tuple[str, str]]:
    """Each document as its text before the last word, and the last word with the space in front of it."""
    for document in documents_of(source):
        prompt, space, word = document.text.rstrip().rpartition(" ")
        if not prompt.strip():
            raise DataError(
                f"{source}: document {document.id} has fewer than two words; expected a passage and its last word"
            )
        yield prompt, space + word


def last_word_metrics(scores: TargetScores) -> dict[str, Interval]:
    """The part of the words that greedy generation gets right, every token of them; and the perplexity of a word."""
    words = np.ones(len(scores.bits))
    return {
        "accuracy": bootstrap_ratio(scores.greedy.astype(np.float64), words),
        "perplexity of a word": scores.perplexity(words),
    }
