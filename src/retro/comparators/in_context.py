"""Neighbours in the prompt: what a user would do with any model, as In-Context RALM does it.

Before every chunk the context is read again, with the neighbours of the chunk before in front of it, the
nearest one last. RETRO's own timing is kept: the neighbours of a chunk are there for the token after its last
one. It needs no training, and reads a token as many times as there are chunks behind it. With `every` it
searches more often, by the last chunk's worth of tokens, and reads more often still.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retro.errors import ConfigError
from retro.model.protocol import Decoding, LanguageModel, ModelFacts, Scored

TOKENS_AT_ONCE = 1 << 12
"""Tokens of the prompts that are read together."""

Find = Callable[[Sequence[np.ndarray], int], tuple[np.ndarray, np.ndarray]]
"""`Retriever.values`: [N, F] of the k nearest neighbours of chunks, and the mask of the real ones."""


@dataclass(frozen=True)
class Prompt:
    """A sequence from its beginning to the end of one chunk, with neighbours in front of it."""

    row: int
    first: int
    """The first position that this prompt predicts from, in the sequence."""
    stop: int
    before: list[int]
    """The neighbours' tokens."""


class InContext:
    """A model without retrieval that has neighbours in its prompt: a language model with retrieval."""

    def __init__(self, model: LanguageModel, every: int = 0, find: Find | None = None) -> None:
        """`every` so many tokens `find` is asked for neighbours; 0: those that are given are read."""
        if every and find is None:
            raise ConfigError(f"every is {every} and there is no datastore to search; expected one")
        self.model = model
        self.every = every
        self.find = find

    @property
    def facts(self) -> ModelFacts:
        return replace(self.model.facts, retrieves=True)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        if neighbours is None:
            return self.model(tokens)
        parts = []
        for prompts in self._batches(tokens, neighbours, neighbour_mask):
            logits = self.model(*self._inputs(prompts, tokens, neighbours, neighbour_mask))
            parts += [(prompt, logits[i, self._places(prompt)]) for i, prompt in enumerate(prompts)]
        result = parts[0][1].new_zeros(*tokens.shape, parts[0][1].shape[-1])
        for prompt, found in parts:
            result[prompt.row, prompt.first : prompt.stop] = found
        return result

    def score(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> Scored:
        if neighbours is None:
            return self.model.score(tokens, targets, greedy=greedy)
        log_probs = torch.zeros(tokens.shape, device=tokens.device)
        best = torch.ones_like(tokens, dtype=torch.bool) if greedy else None
        wanted = targets != self.facts.pad_id
        for prompts in self._batches(tokens, neighbours, neighbour_mask, wanted):
            inputs = self._inputs(prompts, tokens, neighbours, neighbour_mask)
            asked = torch.full_like(inputs[0], self.facts.pad_id)
            for i, prompt in enumerate(prompts):
                asked[i, self._places(prompt)] = targets[prompt.row, prompt.first : prompt.stop]
            scored = self.model.score(inputs[0], asked, *inputs[1:], greedy=greedy)
            for i, prompt in enumerate(prompts):
                place = (prompt.row, slice(prompt.first, prompt.stop))
                log_probs[place] = scored.log_probs[i, self._places(prompt)].to(log_probs.dtype)
                if best is not None and scored.greedy is not None:
                    best[place] = scored.greedy[i, self._places(prompt)]
        return Scored(log_probs, best)

    def begin(self, window: int = 0) -> Decoding:
        raise ConfigError(
            "neighbours in the prompt are read again at every chunk, and are not sampled token by token; "
            "expected a model that reads them beside the text"
        )

    def _batches(
        self, tokens: Tensor, neighbours: Tensor, mask: Tensor | None, wanted: Tensor | None = None
    ) -> Iterator[list[Prompt]]:
        """Prompts of similar length together; those that predict nothing that is wanted are left out."""
        self.facts.expect_neighbours(tokens, neighbours)
        found = [
            prompt
            for prompt in self._prompts(tokens, neighbours, mask)
            if wanted is None or bool(wanted[prompt.row, prompt.first : prompt.stop].any())
        ]
        batch: list[Prompt] = []
        for prompt in sorted(found, key=lambda prompt: -self._length(prompt)):
            if batch and (len(batch) + 1) * self._length(batch[0]) > TOKENS_AT_ONCE:
                yield batch
                batch = []
            batch.append(prompt)
        if batch:
            yield batch

    def _prompts(self, tokens: Tensor, neighbours: Tensor, mask: Tensor | None) -> Iterator[Prompt]:
        m, length = self.facts.chunk_len, tokens.shape[1]
        for row in range(len(tokens)):
            # The first m − 1 positions have no neighbours; those of chunk u serve from its last position on.
            yield Prompt(row, 0, min(m - 1, length), [])
            if self.find is not None and self.every:
                ends = range(m, length + 1, self.every)
                chunks = [tokens[row, end - m : end].cpu().numpy() for end in ends]
                found, real = self.find(chunks, neighbours.shape[2])
                for end, values, exists in zip(ends, found, real, strict=True):
                    yield Prompt(
                        row, end - 1, min(end - 1 + self.every, length), self._joined(values[exists])
                    )
                continue
            for chunk in range(neighbours.shape[1]):
                first = (chunk + 1) * m - 1
                values = neighbours[row, chunk] if mask is None else neighbours[row, chunk][mask[row, chunk]]
                yield Prompt(row, first, min(first + m, length), self._joined(values.cpu().numpy()))

    def _joined(self, neighbours: np.ndarray) -> list[int]:
        """Neighbours one after the other without padding, the nearest one last."""
        return [token for one in neighbours[::-1].tolist() for token in one if token != self.facts.pad_id]

    def _kept(self, prompt: Prompt) -> int:
        """The first token of the sequence that still fits behind the neighbours."""
        longest = self.facts.max_context
        if longest is None:
            return 0
        kept = max(0, len(prompt.before) + prompt.stop - longest)
        if kept > prompt.first:
            raise ConfigError(
                f"neighbours of {len(prompt.before):,} tokens leave no room for the text that they are read "
                f"with; expected fewer, as the model reads at most {longest:,} tokens"
            )
        return kept

    def _length(self, prompt: Prompt) -> int:
        return len(prompt.before) + prompt.stop - self._kept(prompt)

    def _places(self, prompt: Prompt) -> slice:
        """Where the predicting positions stand in the prompt."""
        shift = len(prompt.before) - self._kept(prompt)
        return slice(prompt.first + shift, prompt.stop + shift)

    def _inputs(
        self, prompts: list[Prompt], tokens: Tensor, neighbours: Tensor, mask: Tensor | None
    ) -> list[Tensor]:
        """What the model is called with: the prompts' tokens, padded on the right."""
        longest = self._length(prompts[0])
        inputs = torch.full((len(prompts), longest), self.facts.pad_id, device=tokens.device)
        for i, prompt in enumerate(prompts):
            text = [*prompt.before, *tokens[prompt.row, self._kept(prompt) : prompt.stop].tolist()]
            inputs[i, : len(text)] = torch.tensor(text, device=tokens.device)
        return [inputs]
