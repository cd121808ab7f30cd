"""Several sequences sampled together, each as if it were alone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from retro.generation.choice import Choice
from retro.generation.growing import Growing
from retro.generation.sample import Token
from retro.generation.search import Retrieval
from retro.model.decoding import Decoding
from retro.model.retro import Retro
from retro.retrieval.retriever import Searcher, stack_neighbours


class Batch:
    """The loop of sampling: draw, retrieve for the chunks that became complete, tell, feed.

    Groups are the samples of one prompt, which is read once for all of them. A sequence that ends leaves the batch.
    """

    def __init__(
        self,
        model: Retro,
        groups: Sequence[Sequence[Growing]],
        choice: Choice,
        search: tuple[Searcher, Retrieval] | None,
        window: int,
    ) -> None:
        self.model, self.choice, self.search = model, choice, search
        self.groups, self.sequences = groups, [sequence for group in groups for sequence in group]
        self.decoding = Decoding(model, window)
        self.wants_log_probs = any(sequence.sample.log_probs is not None for sequence in self.sequences)

    def run(self) -> Iterator[tuple[Growing, Token]]:
        """Tokens as they are drawn, with the sequence that each belongs to."""
        logits, seen = self._read_prompts(), self._seen()
        while self.sequences:
            drawn = self._draw(logits, seen)
            searched = self._retrieve(self.sequences)
            for number, (sequence, token) in enumerate(zip(self.sequences, drawn, strict=True)):
                yield (
                    sequence,
                    replace(token, neighbours=sequence.sample.neighbours[-1])
                    if number in searched
                    else token,
                )
            going = [number for number, token in enumerate(drawn) if token.finish is None]
            if len(going) < len(drawn):
                self.sequences = [self.sequences[number] for number in going]
                self.decoding.select(going)
                seen = None if seen is None else seen[going]
            if going:
                logits = self._feed(seen)

    def _read_prompts(self) -> Float[Tensor, "sequence vocab"]:
        first = [group[0] for group in self.groups]
        self._retrieve(first)
        for group in self.groups:
            for sequence in group[1:]:
                sequence.sample.neighbours = list(group[0].sample.neighbours)
        prompts = [sequence.sample.tokens for sequence in first]
        longest = max(map(len, prompts)) // self.model.config.chunk_len
        rows = [sequence.sample.neighbours[:] for sequence in first]
        flat = [found for row in rows for found in row + [[]] * (longest - len(row))]
        neighbours, mask = self._stack(flat)
        shape = (len(prompts), longest)
        logits = self.decoding.prefill(
            prompts,
            None if neighbours is None else neighbours.unflatten(0, shape),
            None if mask is None else mask.unflatten(0, shape),
        )
        rows_of = [row for row, group in enumerate(self.groups) for _ in group]
        self.decoding.select(rows_of)
        return logits[rows_of]

    def _feed(self, seen: Tensor | None) -> Float[Tensor, "sequence vocab"]:
        """The logits after each sequence's newest token."""
        tokens = [sequence.sample.tokens[-1] for sequence in self.sequences]
        if seen is not None:
            seen[range(len(tokens)), tokens] = True
        completing = [self.sequences[row].sample for row in self.decoding.completing]
        return self.decoding.step(
            tokens,
            *self._stack([sample.neighbours[-1] if sample.neighbours else [] for sample in completing]),
        )

    def _retrieve(self, sequences: Sequence[Growing]) -> set[int]:
        """Fetch the neighbours of all complete chunks that have none yet, in one search; which sequences had such chunks."""
        for sequence in sequences:
            sequence.read_given()
        if self.search is None:
            return set()
        due = [
            (number, chunk) for number, sequence in enumerate(sequences) for chunk in sequence.unsearched()
        ]
        searcher, retrieval = self.search
        for (number, _), found in zip(
            due, retrieval.find(searcher, [chunk for _, chunk in due]), strict=True
        ):
            sequences[number].sample.neighbours.append(found)
        return {number for number, _ in due}

    def _stack(self, neighbours: Sequence[Sequence]) -> tuple[Tensor, Tensor] | tuple[None, None]:
        if not any(neighbours):
            return None, None
        config, device = self.model.config, self.model.embedding.weight.device
        values, mask = stack_neighbours(neighbours, config.retrieved_len, config.pad_id)
        return torch.from_numpy(values).to(device), torch.from_numpy(mask).to(device)

    def _seen(self) -> Bool[Tensor, "sequence vocab"] | None:
        """Which tokens each sequence holds, where the choice asks for it."""
        if self.choice.repetition_penalty == 1:
            return None
        config, device = self.model.config, self.model.embedding.weight.device
        seen = torch.zeros(len(self.sequences), config.vocab_size, dtype=torch.bool, device=device)
        for row, sequence in enumerate(self.sequences):
            seen[row, sequence.sample.tokens] = True
        return seen

    @torch.inference_mode()
    def _draw(self, logits: Float[Tensor, "sequence vocab"], seen: Tensor | None) -> list[Token]:
        log_probs = logits.log_softmax(-1) if self.wants_log_probs else None
        logits = logits.clone() if seen is None else self.choice.penalise(logits, seen)
        logits[:, self.model.config.pad_id] = -torch.inf
        for row, sequence in enumerate(self.sequences):
            if not sequence.may_end:
                logits[row, list(sequence.enders)] = -torch.inf
        tokens = self.choice.draw(
            logits, torch.tensor([sequence.uniform() for sequence in self.sequences], dtype=torch.float64)
        )
        told = (
            [None] * len(tokens)
            if log_probs is None
            else log_probs.gather(-1, tokens[:, None])[:, 0].tolist()
        )
        return [
            sequence.take(*pair)
            for sequence, *pair in zip(self.sequences, tokens.tolist(), told, strict=True)
        ]
