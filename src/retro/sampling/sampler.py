"""The sampler: one token at a time, neighbours for each chunk as it is completed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from retro.errors import ConfigError, DataError
from retro.model.retro import Retro
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Retriever
from retro.sampling.choice import Choice


@dataclass
class Sample:
    """The tokens of a prompt and its continuation, and the neighbours that each complete chunk retrieved."""

    tokens: list[int]
    prompt_len: int
    chunk_len: int
    neighbours: list[list[Neighbour]] = field(default_factory=list)

    @property
    def continuation(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    def chunks(self) -> list[list[int]]:
        """The tokens in chunks; the last may be incomplete."""
        return [self.tokens[start : start + self.chunk_len] for start in range(0, len(self.tokens), self.chunk_len)]


@dataclass(frozen=True)
class Token:
    """A sampled token, and the neighbours of the chunk that it completed, if it completed one."""

    id: int
    text: str
    neighbours: list[Neighbour] | None = None


class Sampler:
    """Continues texts with a model; with a retriever it is RETRO[ON], without it RETRO[OFF] or a baseline."""

    def __init__(self, model: Retro, retriever: Retriever, num_neighbours: int = 2, exclude: Sequence[str] = ()) -> None:
        if retriever.chunk_len != model.config.chunk_len:
            raise ConfigError(f"the datastore's chunks have {retriever.chunk_len} tokens; expected the model's {model.config.chunk_len}")
        if retriever.tokenizer.vocab_size != model.config.vocab_size:
            raise ConfigError(
                f"the datastore's tokenizer knows {retriever.tokenizer.vocab_size} tokens; expected the model's {model.config.vocab_size}"
            )
        self.model, self.retriever, self.num_neighbours, self.exclude = model.eval(), retriever, num_neighbours, exclude

    def generate(self, prompt: str, max_tokens: int = 128, choice: Choice | None = None, seed: int = 0, retrieval: bool = True) -> Sample:
        """The whole sample at once."""
        sample = self._begin(prompt)
        for _ in self._continue(sample, max_tokens, choice or Choice(), seed, retrieval):
            pass
        return sample

    def stream(
        self, prompt: str, max_tokens: int = 128, choice: Choice | None = None, seed: int = 0, retrieval: bool = True
    ) -> Iterator[Token]:
        """The tokens as they come; a token that completes a chunk brings the chunk's neighbours."""
        yield from self._continue(self._begin(prompt), max_tokens, choice or Choice(), seed, retrieval)

    def _begin(self, prompt: str) -> Sample:
        tokens = self.retriever.tokenizer.encode(prompt)
        if not tokens:
            raise DataError("the prompt is empty; expected at least one character to continue")
        return Sample(tokens, len(tokens), self.model.config.chunk_len)

    def _continue(self, sample: Sample, max_tokens: int, choice: Choice, seed: int, retrieval: bool) -> Iterator[Token]:
        retrieval = retrieval and self.model.config.uses_retrieval
        generator = torch.Generator().manual_seed(seed)
        if retrieval:
            self._retrieve(sample)
        for _ in range(max_tokens):
            token = choice.draw(self._next_logits(sample), generator)
            if token == self.retriever.tokenizer.end_id:
                return
            sample.tokens.append(token)
            completed = retrieval and self._retrieve(sample)
            yield Token(token, self.retriever.tokenizer.decode([token]), sample.neighbours[-1] if completed else None)

    def _retrieve(self, sample: Sample) -> bool:
        """Fetch the neighbours of chunks that have become complete; whether there was one."""
        before = len(sample.neighbours)
        for chunk in sample.chunks()[before:]:
            if len(chunk) == sample.chunk_len:
                sample.neighbours += self.retriever.search([np.array(chunk)], self.num_neighbours, exclude=self.exclude)
        return len(sample.neighbours) > before

    @torch.inference_mode()
    def _next_logits(self, sample: Sample) -> torch.Tensor:
        inputs = [torch.tensor([sample.tokens])]
        if sample.neighbours:
            values, mask = stack_neighbours(sample.neighbours, self.model.config.retrieved_len, self.model.config.pad_id)
            inputs += [torch.from_numpy(values)[None], torch.from_numpy(mask)[None]]
        logits = self.model.read_out(self.model.hidden(*inputs)[0, -1])
        logits[self.model.config.pad_id] = -torch.inf
        return logits


def stack_neighbours(neighbours: Sequence[Sequence[Neighbour]], retrieved_len: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrays (chunk, neighbour, retrieved) and (chunk, neighbour) from lists of unequal length; what is missing is masked."""
    k = max((len(row) for row in neighbours), default=0)
    values = np.full((len(neighbours), k, retrieved_len), pad_id, dtype=np.int64)
    mask = np.zeros((len(neighbours), k), dtype=bool)
    for row, found in enumerate(neighbours):
        for column, neighbour in enumerate(found):
            values[row, column], mask[row, column] = neighbour.tokens, True
    return values, mask
