"""A sample, and what it is made of while it grows: its tokens, its text
and its own random numbers."""

import codecs
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.request import Choice
from retro.retrieval.datastore import Neighbour

Finish = Literal["length", "end", "stop"]
"""Why a sample ended: it has all its tokens, the document ended, or a
stop text or token was met."""


@dataclass
class Sample:
    """The tokens of a prompt and its continuation, and the neighbours that
    each complete chunk retrieved."""

    tokens: list[int]
    prompt_len: int
    chunk_len: int
    neighbours: list[list[Neighbour]] = field(default_factory=list)
    """One list for each complete chunk; none at all when retrieval was off."""
    prompt: str = ""
    text: str = ""
    """The continuation; it ends before a stop text."""
    finish: Finish | None = None
    log_probs: list[float] | None = None
    """Of each token of the continuation, in nats, as the model gives it: before
    temperature, cut-offs and penalty."""
    retrieval: bool = False

    @property
    def continuation(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    def chunks(self) -> list[list[int]]:
        """The tokens in chunks; the last may be incomplete."""
        starts = range(0, len(self.tokens), self.chunk_len)
        return [self.tokens[start : start + self.chunk_len] for start in starts]


@dataclass(frozen=True)
class Token:
    """A token as it was drawn, and the neighbours of the chunk that it
    completed, if it completed one.

    A character that lies across tokens comes with the token that ends it, and text that may
    begin a stop text is held back, so `text` may be empty or more than one token's. The last
    token of a sample says why it ended. The end of a document and stop tokens come like any
    other, though they are no part of the sample.
    """

    id: int
    text: str
    neighbours: list[Neighbour] | None = None
    log_prob: float | None = None
    finish: Finish | None = None


class Growing:
    """A sample in progress. Its random numbers are its own: it does not
    depend on the rest of the batch."""

    def __init__(
        self,
        sample: Sample,
        tokenizer: Tokenizer,
        choice: Choice,
        max_tokens: int,
        seed: str,
        passages: Sequence[Neighbour] | None = None,
    ) -> None:
        self.sample = sample
        self.choice = choice
        self.max_tokens = max_tokens
        self.passages = passages
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._stream = TextStream(tokenizer, choice.stop)

    @property
    def enders(self) -> tuple[int, ...]:
        """Tokens that end the sample."""
        return (self._tokenizer.end_id, *self.choice.stop_tokens)

    @property
    def may_end(self) -> bool:
        return len(self.sample.continuation) >= self.choice.min_tokens

    def unsearched(self) -> list[tuple[int, list[int]]]:
        """Number and tokens of the complete chunks that have not retrieved yet."""
        sample, chunk_len = self.sample, self.sample.chunk_len
        numbers = range(len(sample.neighbours), len(sample.tokens) // chunk_len)
        return [(number, sample.tokens[number * chunk_len : (number + 1) * chunk_len]) for number in numbers]

    def read_given(self) -> None:
        """Give the prompt's own passages, if it has any, to the complete
        chunks from its last one on."""
        if self.passages is None:
            return
        sample = self.sample
        # Where the prompt has no complete chunk this is −1, and all chunks read the passages.
        first = sample.prompt_len // sample.chunk_len - 1
        for number, _ in self.unsearched():
            sample.neighbours.append(list(self.passages) if number >= first else [])

    def uniform(self) -> float:
        """The next random number of this sequence, in [0, 1)."""
        return self._random.random()

    def take(self, token: int, log_prob: float | None) -> Token:
        """Append a token, unless it only ends the sample."""
        # A token that ends the sample is no part of it, but what the
        # stream holds back comes with it.
        if token in self.enders:
            reason: Finish = "end" if token == self._tokenizer.end_id else "stop"
            return self._told(Token(token, self._stream.finish(), None, log_prob, reason))
        self.sample.tokens.append(token)
        if self.sample.log_probs is not None and log_prob is not None:
            self.sample.log_probs.append(log_prob)
        text, stopped = self._stream.push(token, self.may_end)
        if stopped:
            self._cut()
            return self._told(Token(token, text, None, log_prob, "stop"))
        if len(self.sample.continuation) >= self.max_tokens:
            text += self._stream.finish()
            return self._told(Token(token, text, None, log_prob, "length"))
        return self._told(Token(token, text, None, log_prob, None))

    def _told(self, token: Token) -> Token:
        """The sample knows what its reader is told."""
        self.sample.text += token.text
        self.sample.finish = token.finish
        return token

    def _cut(self) -> None:
        """Drop the tokens that lie wholly behind the text's end."""
        sample, num_bytes = self.sample, self._stream.num_bytes
        while sample.continuation and self._tokenizer.num_bytes(sample.continuation[:-1]) >= num_bytes:
            sample.tokens.pop()
            if sample.log_probs is not None:
                sample.log_probs.pop()
        # Chunks that are no longer complete have no neighbours.
        del sample.neighbours[len(sample.tokens) // sample.chunk_len :]


class TextStream:
    """Turns tokens into text as they come; what may still become a
    character or a stop text is held back.

    It works on bytes, because both characters and stop texts may lie across tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [text.encode() for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""
        self.num_bytes = 0
        """Bytes of the text so far, what is held back included; up to
        a stop text if one was met."""

    def push(self, token: int, may_stop: bool = True) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop text was
        met; the text ends before that."""
        new = self._tokenizer.decode_bytes([token])
        self._held += new
        self.num_bytes += len(new)
        places = [self._held.find(stop) for stop in self._stop] if may_stop else []
        found = [place for place in places if place >= 0]
        if found:
            # Of several stop texts the one that begins first counts.
            self.num_bytes -= len(self._held) - min(found)
            self._held = self._held[: min(found)]
            return self.finish(), True
        certain = len(self._held) - self._may_begin()
        # The decoder itself keeps the bytes of a character that is not whole yet.
        text = self._decoder.decode(self._held[:certain])
        self._held = self._held[certain:]
        return text, False

    def finish(self) -> str:
        """What was held back; a character that will never be whole becomes U+FFFD."""
        text = self._decoder.decode(self._held, final=True)
        self._held = b""
        return text

    def _may_begin(self) -> int:
        """How many bytes at the end of the held text begin a stop text."""
        longest = 0
        for stop in self._stop:
            # From the longest beginning down; one that is no longer than what
            # was found need not be tried.
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest
