"""One sequence while it is sampled."""

import random
from collections.abc import Sequence

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.choice import Choice
from retro.generation.sample import Finish, Sample, Token
from retro.generation.text import TextStream
from retro.retrieval.datastore import Neighbour


class Growing:
    """A sample in progress with its own random numbers, so that it does not depend on what else is in the batch."""

    def __init__(
        self,
        sample: Sample,
        tokenizer: Tokenizer,
        choice: Choice,
        max_tokens: int,
        seed: str,
        passages: Sequence[Neighbour] | None = None,
    ) -> None:
        self.sample, self.choice, self.max_tokens, self.passages = sample, choice, max_tokens, passages
        self._tokenizer, self._random, self._stream = (
            tokenizer,
            random.Random(seed),
            TextStream(tokenizer, choice.stop),
        )

    @property
    def enders(self) -> tuple[int, ...]:
        """Tokens that end the sample."""
        return (self._tokenizer.end_id, *self.choice.stop_tokens)

    @property
    def may_end(self) -> bool:
        return len(self.sample.continuation) >= self.choice.min_tokens

    def unsearched(self) -> list[tuple[int, list[int]]]:
        """Number and tokens of the complete chunks that have not retrieved yet."""
        sample = self.sample
        complete = range(len(sample.neighbours), len(sample.tokens) // sample.chunk_len)
        return [
            (number, sample.tokens[number * sample.chunk_len : (number + 1) * sample.chunk_len])
            for number in complete
        ]

    def read_given(self) -> None:
        """Give the passages that came with the prompt, if any did, to the complete chunks from the prompt's last one on."""
        sample = self.sample
        if self.passages is not None:
            first = sample.prompt_len // sample.chunk_len - 1
            sample.neighbours += [
                list(self.passages) if number >= first else [] for number, _ in self.unsearched()
            ]

    def uniform(self) -> float:
        return self._random.random()

    def take(self, token: int, log_prob: float | None) -> Token:
        """Append a token, unless it only ends the sample."""
        if token in self.enders:
            return self._end(
                Token(
                    token,
                    self._stream.finish(),
                    None,
                    log_prob,
                    "end" if token == self._tokenizer.end_id else "stop",
                )
            )
        self.sample.tokens.append(token)
        if self.sample.log_probs is not None and log_prob is not None:
            self.sample.log_probs.append(log_prob)
        text, stopped = self._stream.push(token, self.may_end)
        if stopped:
            self._cut()
        finish: Finish | None = (
            "stop" if stopped else "length" if len(self.sample.continuation) >= self.max_tokens else None
        )
        if finish == "length":
            text += self._stream.finish()
        return self._end(Token(token, text, None, log_prob, finish))

    def _end(self, token: Token) -> Token:
        self.sample.text += token.text
        self.sample.finish = token.finish
        return token

    def _cut(self) -> None:
        """Drop tokens that lie behind the text's end."""
        sample = self.sample
        while (
            sample.continuation
            and self._tokenizer.num_bytes(sample.continuation[:-1]) >= self._stream.num_bytes
        ):
            sample.tokens.pop()
            if sample.log_probs is not None:
                sample.log_probs.pop()
        # Chunks that are no longer complete have no neighbours.
        del sample.neighbours[len(sample.tokens) // sample.chunk_len :]
