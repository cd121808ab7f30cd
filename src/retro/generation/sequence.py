"""A sample, finished or in progress: its tokens, its text and its own random numbers."""

import codecs
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.request import Choice, Retrieval
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Searcher

Finish = Literal["length", "end", "stop"]
"""Why a sample ended: at its maximal length, at the end of the document, or at a stop."""


@dataclass
class Sample:
    """The tokens of a prompt and its continuation, and the neighbours of each complete chunk."""

    tokens: list[int]
    prompt_len: int
    chunk_len: int
    neighbours: list[list[Neighbour]] = field(default_factory=list)
    """One list for each complete chunk; no lists if retrieval was off."""
    prompt: str = ""
    text: str = ""
    """The continuation; it ends before a stop text."""
    finish: Finish | None = None
    log_probs: list[float] | None = None
    """Of each token of the continuation, in nats, before temperature, cut-offs and penalty."""
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
    """A drawn token, with the neighbours of the chunk that it completes, if it completes one.

    A character spread over several tokens comes with the last of them, and text that may
    begin a stop text is held back. So `text` may be empty, or that of several tokens. The
    last token of a sample says why it ended. The end of a document and stop tokens are
    reported like others, though they are not part of the sample.
    """

    id: int
    text: str
    neighbours: list[Neighbour] | None = None
    log_prob: float | None = None
    finish: Finish | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens and their log-probabilities, if they were asked for."""


class Growing:
    """A sample in progress. It has its own random numbers, so it does not
    depend on its batch."""

    fault: Exception | None = None
    """Why it could not go on, in a batch whose other sequences did."""

    def __init__(
        self,
        sample: Sample,
        tokenizer: Tokenizer,
        choice: Choice,
        max_tokens: int,
        seed: str,
        passages: Sequence[Neighbour] | None = None,
        search: tuple[Searcher, Retrieval] | None = None,
        top_log_probs: int = 0,
    ) -> None:
        """`search` is where the neighbours of its chunks are looked for, and how; None: nowhere."""
        self.sample = sample
        self.choice = choice
        self.max_tokens = max_tokens
        self.passages = passages
        self.search = search
        self.top_log_probs = top_log_probs
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._stream = TextStream(tokenizer, choice.stop)

    @property
    def enders(self) -> tuple[int, ...]:
        """Tokens that end the sample."""
        return (self._tokenizer.end_id, *self.choice.stop_tokens)

    @property
    def wants_log_probs(self) -> bool:
        return self.sample.log_probs is not None or self.top_log_probs > 0

    @property
    def may_end(self) -> bool:
        return len(self.sample.continuation) >= self.choice.min_tokens

    def unsearched(self) -> list[tuple[int, list[int]]]:
        """Number and tokens of each complete chunk that has not been searched yet."""
        sample, chunk_len = self.sample, self.sample.chunk_len
        # Every searched chunk has its list, even an empty one, so their number is the next.
        numbers = range(len(sample.neighbours), len(sample.tokens) // chunk_len)
        return [(number, sample.tokens[number * chunk_len : (number + 1) * chunk_len]) for number in numbers]

    def read_given(self) -> None:
        """Give the prompt's own passages, if any, to its last complete chunk and
        all later ones."""
        if self.passages is None:
            return
        sample = self.sample
        # −1 if the prompt has no complete chunk; then all chunks read the passages.
        first = sample.prompt_len // sample.chunk_len - 1
        for number, _ in self.unsearched():
            sample.neighbours.append(list(self.passages) if number >= first else [])

    def uniform(self) -> float:
        """The next random number of this sequence, in [0, 1)."""
        return self._random.random()

    def take(self, token: int, log_prob: float | None, top: tuple[tuple[int, float], ...] = ()) -> Token:
        """Append a token, unless it ends the sample."""
        # A token that ends the sample is not part of it, but it releases the text held back.
        if token in self.enders:
            reason: Finish = "end" if token == self._tokenizer.end_id else "stop"
            return self._told(Token(token, self._stream.finish(), None, log_prob, reason, top))
        self.sample.tokens.append(token)
        if self.sample.log_probs is not None and log_prob is not None:
            self.sample.log_probs.append(log_prob)
        text, stopped = self._stream.push(token, self.may_end)
        # The stop text may have begun in earlier tokens, which are dropped with it.
        if stopped:
            self._cut()
            return self._told(Token(token, text, None, log_prob, "stop", top))
        if len(self.sample.continuation) >= self.max_tokens:
            text += self._stream.finish()
            return self._told(Token(token, text, None, log_prob, "length", top))
        return self._told(Token(token, text, None, log_prob, None, top))

    def _told(self, token: Token) -> Token:
        """Record in the sample what the reader of the stream is told."""
        self.sample.text += token.text
        self.sample.finish = token.finish
        return token

    def _cut(self) -> None:
        """Drop the tokens that lie wholly after the end of the text."""
        sample, num_bytes = self.sample, self._stream.num_bytes
        # A token that the end of the text cuts in two stays.
        while sample.continuation and self._tokenizer.num_bytes(sample.continuation[:-1]) >= num_bytes:
            sample.tokens.pop()
            if sample.log_probs is not None:
                sample.log_probs.pop()
        # Chunks that are no longer complete have no neighbours.
        del sample.neighbours[len(sample.tokens) // sample.chunk_len :]


class TextStream:
    """Turns tokens into text as they come, holding back what is not certain yet.

    Uncertain is what may still become a whole character or a stop text.

    It works on bytes, since both characters and stop texts may span several tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [text.encode() for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""
        self.num_bytes = 0
        """Bytes of the text so far, including what is held back, up to a stop text
        if one was met."""

    def push(self, token: int, may_stop: bool = True) -> tuple[str, bool]:
        """The text that is now certain, and whether a stop text was met; the text
        ends before it."""
        new = self._tokenizer.decode_bytes([token])
        self._held += new
        self.num_bytes += len(new)
        places = [self._held.find(stop) for stop in self._stop] if may_stop else []
        found = [place for place in places if place >= 0]
        if found:
            # If there are several stop texts, the one that begins first counts.
            self.num_bytes -= len(self._held) - min(found)
            self._held = self._held[: min(found)]
            return self.finish(), True
        certain = len(self._held) - self._may_begin()
        # The decoder itself keeps the bytes of an unfinished character.
        text = self._decoder.decode(self._held[:certain])
        self._held = self._held[certain:]
        return text, False

    def finish(self) -> str:
        """The text held back; an unfinished character becomes U+FFFD."""
        text = self._decoder.decode(self._held, final=True)
        self._held = b""
        return text

    def _may_begin(self) -> int:
        """How many bytes at the end of the held text may begin a stop text."""
        longest = 0
        for stop in self._stop:
            # From the longest prefix down, to one longer than what was found already.
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest
