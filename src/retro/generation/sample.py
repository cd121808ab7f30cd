"""What sampling gives: a sample that tells where it comes from, and its tokens as they come."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from retro.retrieval.datastore import Neighbour

Finish = Literal["length", "end", "stop"]
"""Why a sample ended: it has all its tokens, the document ended, or a stop text or token was met."""


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue. Where they bring passages, every chunk from the prompt's last complete one on reads these and none is searched."""

    tokens: Sequence[int]
    text: str = ""
    passages: Sequence[Neighbour] | None = None
    """None: search as always; empty: nothing is read."""


@dataclass
class Sample:
    """The tokens of a prompt and its continuation, and the neighbours that each complete chunk retrieved."""

    tokens: list[int]
    prompt_len: int
    chunk_len: int
    neighbours: list[list[Neighbour]] = field(default_factory=list)
    """One list a complete chunk; none at all when retrieval was off."""
    prompt: str = ""
    text: str = ""
    """The continuation; it ends before a stop text."""
    finish: Finish | None = None
    log_probs: list[float] | None = None
    """Of each token of the continuation, in nats, as the model gives it: before temperature, cut-offs and penalty."""
    retrieval: bool = False

    @property
    def continuation(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    def chunks(self) -> list[list[int]]:
        """The tokens in chunks; the last may be incomplete."""
        return [
            self.tokens[start : start + self.chunk_len]
            for start in range(0, len(self.tokens), self.chunk_len)
        ]


@dataclass(frozen=True)
class Token:
    """A token as it was drawn, and the neighbours of the chunk that it completed, if it completed one.

    A character that lies across tokens comes with the one that ends it, and text that may begin a stop text is held back, so
    `text` may be empty or more than one token's. The last token of a sample tells why it ended. The end of a document and stop
    tokens are told like any other, though they are no part of the sample.
    """

    id: int
    text: str
    neighbours: list[Neighbour] | None = None
    log_prob: float | None = None
    finish: Finish | None = None
