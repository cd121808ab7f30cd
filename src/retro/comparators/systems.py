"""The rows that there are, by name: what each does with a model."""

import re
from dataclasses import dataclass

from retro.errors import ConfigError


@dataclass(frozen=True)
class RowName:
    """A row's name in its parts."""

    kind: str
    k: int = 0
    """Neighbours that are read."""
    every: int = 0
    """Tokens between two searches; 0: a chunk."""


ROWS = {
    "off": "the model without retrieval",
    "on-K": "the model with K neighbours",
    "prompt-K": "K neighbours in the prompt, read again with the text at every chunk",
    "prompt-K-every-N": "the same with those that are found every N tokens",
    "bm25-K": "K neighbours in the prompt that BM25 finds, by the tokens of each chunk",
    "plus-K": "the model with K neighbours, and the nearest of them in its prompt as well",
    "lora": "the model tuned on the training text for a given time",
    "knn": "kNN-LM, with a memory of the training tokens that are read in a given time",
    "spalm": "the same with a learned gate in place of one weight",
    "cache": "the continuous cache over the text before",
}
"""What each row is, with K for a number of neighbours and N for one of tokens."""
_PARTS = re.compile(r"(?P<kind>[a-z0-9]+)(-(?P<k>[1-9][0-9]*))?(-every-(?P<every>[1-9][0-9]*))?")


def read_row(row: str) -> RowName:
    """A row's name in its parts; a name that is none is refused."""
    found = _PARTS.fullmatch(row)
    if found is None or _pattern(found) not in ROWS:
        raise ConfigError(
            f"there is no row {row!r}; expected one of {', '.join(ROWS)}, with numbers for K and N"
        )
    return RowName(found["kind"], int(found["k"] or 0), int(found["every"] or 0))


def _pattern(found: re.Match[str]) -> str:
    return found["kind"] + ("-K" if found["k"] else "") + ("-every-N" if found["every"] else "")
