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

from retro.comparators.prompt_decoding import PromptDecoding
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
        return PromptDecoding(self, window)

    def beginnings(
        self, texts: Sequence[Sequence[int]], found: Sequence[Sequence[tuple[Tensor, Tensor]]]
    ) -> tuple[list[list[int]], Tensor | None, Tensor | None]:
        """What a decoding of the model begins with: texts behind the neighbours that each reads at its end.

        `found` are [N, F] and the mask of the real ones, for the complete chunks of each text.
        """
        prompts = [
            self._prompt(row, text, known) for row, (text, known) in enumerate(zip(texts, found, strict=True))
        ]
        num_chunks = max(map(len, found))
        if not num_chunks:
            return [list(text) for text in texts], None, None
        like = next(known[0] for known in found if known)
        k = max(values.shape[0] for known in found for values, _ in known)
        neighbours = like[0].new_full(
            (len(texts), num_chunks, k, self.facts.retrieved_len), self.facts.pad_id
        )
        mask = torch.zeros(neighbours.shape[:3], dtype=torch.bool, device=neighbours.device)
        for row, known in enumerate(found):
            for chunk, (values, exists) in enumerate(known):
                neighbours[row, chunk, : len(values)] = values
                mask[row, chunk, : len(exists)] = exists
        longest = max(map(len, texts))
        padded = [[*text, *[self.facts.pad_id] * (longest - len(text))] for text in texts]
        tokens = torch.tensor(padded, device=self.device)
        inputs, *beside = self._inputs(prompts, tokens, neighbours.to(self.device), mask.to(self.device))
        lengths = [
            len(prompt.before) + len(text) - self._kept(prompt)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        read = [row[:length] for row, length in zip(inputs.tolist(), lengths, strict=True)]
        if not beside:
            return read, None, None
        # Only as many chunks as the longest of them has.
        complete = max(lengths) // self.facts.chunk_len
        return read, beside[0][:, :complete], beside[1][:, :complete]

    def _prompt(self, row: int, text: Sequence[int], found: Sequence[tuple[Tensor, Tensor]]) -> Prompt:
        """A text with the neighbours that it reads from its last token on."""
        m = self.facts.chunk_len
        step = self.every or m
        if not found or len(text) < m:
            return Prompt(row, 0, len(text), [])
        # Where the neighbours were looked for: the end of the last chunk, or of the last stride.
        end = m + (len(text) - m) // step * step
        values, exists = found[-1]
        if self.find is not None and self.every:
            asked, real = self.find([np.array(text[end - m : end])], len(values))
            before = self._joined(asked[0][real[0]])
        else:
            before = self._joined(values[exists].cpu().numpy())
        # As much room as the text may take before it is read again.
        return Prompt(row, end - 1, end - 1 + step, before)

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
        longest = max(map(self._length, prompts))
        inputs = torch.full((len(prompts), longest), self.facts.pad_id, device=tokens.device)
        for i, prompt in enumerate(prompts):
            text = [*prompt.before, *tokens[prompt.row, self._kept(prompt) : prompt.stop].tolist()]
            inputs[i, : len(text)] = torch.tensor(text, device=tokens.device)
        return [inputs]
