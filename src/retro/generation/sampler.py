"""The sampler, which continues texts with retrieval at each chunk's end, and its loop."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.generation.drawing import draw, penalise
from retro.generation.request import Prompt, Request, Retrieval
from retro.generation.sequence import Growing, Sample, Token
from retro.model.protocol import LanguageModel
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Passages, Searcher, stack_neighbours


class Sampler:
    """Continues texts with a model: RETRO[ON] with a retriever, RETRO[OFF] or
    a baseline without.

    Without a retriever it needs a tokenizer. With a `window`, self-attention sees only the
    last `window` tokens: memory and time per token stay bounded, and results are the same
    until a text outgrows the window.

    Every method takes a `Request`, or a prompt with the request's fields as keywords:
    `sampler.generate("The licence", max_tokens=64, retrieval=False)`. Fields given beside a
    request replace its own.
    """

    def __init__(
        self,
        model: LanguageModel,
        retriever: Searcher | None = None,
        tokenizer: Tokenizer | None = None,
        window: int = 0,
    ) -> None:
        if tokenizer is None and retriever is not None:
            tokenizer = retriever.tokenizer
        if tokenizer is None:
            raise ConfigError("neither a retriever nor a tokenizer was given; expected one of them")
        facts = model.facts
        if retriever is not None and retriever.chunk_len != facts.chunk_len:
            raise ConfigError(
                f"the datastore's chunks have {retriever.chunk_len} tokens; "
                f"expected the model's {facts.chunk_len}"
            )
        # Token ids mean nothing to a model with another vocabulary.
        if not facts.fits(tokenizer.vocab_size):
            raise ConfigError(
                f"the tokenizer knows {tokenizer.vocab_size} tokens; expected the model's {facts.num_ids}"
            )
        self.model = model
        self.retriever = retriever
        self.tokenizer = tokenizer
        self.window = window

    def generate(self, request: Request | str | Prompt, **fields: Any) -> Sample:
        """One finished sample."""
        return self._run(_one(request, fields))[0][0]

    def generate_all(
        self, request: Request | str | Prompt | Sequence[str | Prompt], **fields: Any
    ) -> list[list[Sample]]:
        """All samples of every prompt, in one batch. The first of each is what
        `generate` gives."""
        return self._run(Request.of(request, **fields))

    def stream(self, request: Request | str | Prompt, **fields: Any) -> Iterator[Token]:
        """One sample, token by token; a token that completes a chunk brings the
        chunk's neighbours."""
        batch = self._begin(_one(request, fields))
        return (token for _, token in batch.run())

    def _run(self, request: Request) -> list[list[Sample]]:
        batch = self._begin(request)
        for _ in batch.run():
            pass
        return [[sequence.sample for sequence in group] for group in batch.groups]

    def _begin(self, request: Request) -> "Batch":
        strange = [
            token for token in request.choice.stop_tokens if not 0 <= token < self.tokenizer.vocab_size
        ]
        if strange:
            raise ConfigError(
                f"stop_tokens holds {strange[0]}; expected tokens from 0 to {self.tokenizer.vocab_size - 1}"
            )
        search = self._search(request.retrieval)
        groups = [self._group(prompt, request, search is not None) for prompt in request.prompts]
        for group in groups:
            self._expect_room(group[0].sample.prompt_len, request.max_tokens)
        return Batch(self.model, groups, request, search, self.window)

    def _expect_room(self, prompt_len: int, max_tokens: int) -> None:
        """Refuse a sample that would outgrow what the model reads, before the first token is drawn."""
        facts = self.model.facts
        facts.expect_context(prompt_len, "the prompt has", "give a shorter one")
        if facts.slides and facts.max_context is not None and 0 < self.window <= facts.max_context:
            return
        way_out = "ask for fewer: --max-tokens"
        if facts.slides:
            way_out += f"; or let it see the last {facts.max_context:,} alone: --window {facts.max_context}"
        # The last token is drawn, and not read.
        facts.expect_context(prompt_len + max_tokens - 1, "prompt and sample have", way_out)

    def _group(self, prompt: str | Prompt, request: Request, searches: bool) -> list[Growing]:
        """The sequences that begin with one prompt."""
        if isinstance(prompt, str):
            prompt = Prompt(self.tokenizer.encode(prompt), prompt)
        group = []
        for number in range(request.samples):
            sample = Sample(
                tokens=list(prompt.tokens),
                prompt_len=len(prompt.tokens),
                chunk_len=self.model.facts.chunk_len,
                prompt=prompt.text,
                log_probs=[] if request.log_probs else None,
                retrieval=searches if prompt.passages is None else bool(prompt.passages),
            )
            # Random numbers depend on the seed and the sample's number alone, so that no
            # other prompt changes them.
            seed = f"{request.seed}/{number}"
            group.append(
                Growing(sample, self.tokenizer, request.choice, request.max_tokens, seed, prompt.passages)
            )
        return group

    def _search(self, retrieval: bool | Retrieval) -> tuple[Searcher, Retrieval] | None:
        """Where to look for neighbours, and how; None if retrieval is off."""
        facts = self.model.facts
        settings = retrieval if isinstance(retrieval, Retrieval) else Retrieval()
        searcher = self.retriever
        # Passages take the place of a retriever, so a sampler without one can read them, too.
        if settings.passages and facts.retrieves:
            searcher = Passages(settings.passages, self.tokenizer, facts.chunk_len)
        if searcher is not None and facts.retrieves:
            return (searcher, settings) if retrieval else None
        # `True` alone is no demand: a baseline, or a sampler without a datastore, simply goes
        # on without neighbours.
        if isinstance(retrieval, Retrieval):
            missing = "a retriever" if facts.retrieves else "a model with cross-attention"
            raise ConfigError(f"retrieval was asked for without {missing}; expected one, or retrieval off")
        return None


def _one(asked: Request | str | Prompt, fields: dict[str, Any]) -> Request:
    """A request for exactly one sample."""
    request = Request.of(asked, **fields)
    number = len(request.prompts) * request.samples
    if number != 1:
        raise ConfigError(f"the request is for {number} samples; expected one; use generate_all for several")
    return request


class Batch:
    """The sampling loop and its state: sequences sampled together, each as if it were alone.

    Row r of the decoding, of `logits` and of `seen` belongs to `sequences[r]`. A group holds
    the samples of one prompt, which is read once for all of them. A sequence that ends is
    removed from all four.
    """

    logits: Float[Tensor, "sequence vocab"]
    """Of each sequence's next token."""
    seen: Bool[Tensor, "sequence vocab"] | None
    """Which tokens each sequence contains; only kept for a repetition penalty."""

    def __init__(
        self,
        model: LanguageModel,
        groups: Sequence[Sequence[Growing]],
        request: Request,
        search: tuple[Searcher, Retrieval] | None,
        window: int,
    ) -> None:
        self.model = model
        self.groups = groups
        self.request = request
        self.search = search
        self.decoding = model.begin(window)
        self.sequences = [sequence for group in groups for sequence in group]

    def run(self) -> Iterator[tuple[Growing, Token]]:
        """Yield tokens as they are drawn, each with its sequence."""
        if not self.sequences:
            return
        self.logits = self._read_prompts()
        self.seen = self._seen()
        while self.sequences:
            drawn = self._draw()
            # Before the tokens are fed, since the last token of a chunk already reads that
            # chunk's neighbours.
            searched = self._retrieve(self.sequences)
            for row, (sequence, token) in enumerate(zip(self.sequences, drawn, strict=True)):
                if row in searched:
                    token = replace(token, neighbours=sequence.sample.neighbours[-1])
                yield sequence, token
            self._keep([row for row, token in enumerate(drawn) if token.finish is None])
            if self.sequences:
                self.logits = self._feed()

    def _read_prompts(self) -> Float[Tensor, "sequence vocab"]:
        """The logits after each sequence's prompt."""
        # Only the first sequence of each group searches and reads the prompt; the others go
        # on from its state.
        first = [group[0] for group in self.groups]
        self._retrieve(first)
        for group in self.groups:
            for sequence in group[1:]:
                sequence.sample.neighbours = list(group[0].sample.neighbours)
        prompts = [sequence.sample.tokens for sequence in first]
        # Shorter prompts get empty chunks up to the longest, so that all fit into one array.
        num_chunks = max(map(len, prompts)) // self.model.facts.chunk_len
        rows = [sequence.sample.neighbours for sequence in first]
        padded = [row + [[]] * (num_chunks - len(row)) for row in rows]
        neighbours, mask = self._stack([found for row in padded for found in row])
        if neighbours is not None and mask is not None:
            neighbours = neighbours.unflatten(0, (len(prompts), num_chunks))
            mask = mask.unflatten(0, (len(prompts), num_chunks))
        logits = self.decoding.prefill(prompts, neighbours, mask)
        # From a row for each prompt to a row for each sequence.
        prompt_of = [number for number, group in enumerate(self.groups) for _ in group]
        self.decoding.select(prompt_of)
        return logits[prompt_of]

    def _feed(self) -> Float[Tensor, "sequence vocab"]:
        """The logits after each sequence's newest token."""
        tokens = [sequence.sample.tokens[-1] for sequence in self.sequences]
        if self.seen is not None:
            self.seen[range(len(tokens)), tokens] = True
        # The chunks that these tokens complete were searched just now, so their neighbours
        # are the last in the list.
        completing = [self.sequences[row].sample for row in self.decoding.completing]
        neighbours, mask = self._stack(
            [sample.neighbours[-1] if sample.neighbours else [] for sample in completing]
        )
        return self.decoding.step(tokens, neighbours, mask)

    def _keep(self, rows: list[int]) -> None:
        """Go on with these sequences only."""
        if len(rows) == len(self.sequences):
            return
        self.sequences = [self.sequences[row] for row in rows]
        self.decoding.select(rows)
        if self.seen is not None:
            self.seen = self.seen[rows]

    def _retrieve(self, sequences: Sequence[Growing]) -> set[int]:
        """Find the neighbours of all complete chunks not searched yet, in one search.

        Returns the rows of the sequences that were searched for.
        """
        for sequence in sequences:
            sequence.read_given()
        if self.search is None:
            return set()
        due = [(row, chunk) for row, sequence in enumerate(sequences) for chunk in sequence.unsearched()]
        found = retrieve(*self.search, [chunk for _, chunk in due])
        for (row, _), neighbours in zip(due, found, strict=True):
            sequences[row].sample.neighbours.append(neighbours)
        return {row for row, _ in due}

    def _stack(self, neighbours: Sequence[Sequence[Neighbour]]) -> tuple[Tensor, Tensor] | tuple[None, None]:
        # Without any neighbour the model runs as RETRO[OFF]; a baseline would refuse
        # even empty ones.
        if not any(neighbours):
            return None, None
        facts, device = self.model.facts, self.model.device
        values, mask = stack_neighbours(neighbours, facts.retrieved_len, facts.pad_id)
        return torch.from_numpy(values).to(device), torch.from_numpy(mask).to(device)

    def _seen(self) -> Bool[Tensor, "sequence vocab"] | None:
        if self.request.choice.repetition_penalty == 1:
            return None
        facts, device = self.model.facts, self.model.device
        seen = torch.zeros(len(self.sequences), facts.vocab_size, dtype=torch.bool, device=device)
        for row, sequence in enumerate(self.sequences):
            seen[row, sequence.sample.tokens] = True
        return seen

    @torch.inference_mode()
    def _draw(self) -> list[Token]:
        """Draw the next token of every sequence, and append it."""
        # A copy: the log-probabilities below need the logits as the model gave them.
        choice, logits = self.request.choice, self.logits.clone()
        if self.seen is not None:
            logits = penalise(logits, self.seen, choice.repetition_penalty)
        # A pad id behind the vocabulary has no logit to begin with.
        logits[:, self.model.facts.pad_id :][:, :1] = -torch.inf
        # What must not come yet gets no probability, which is surer than drawing again.
        for row, sequence in enumerate(self.sequences):
            if not sequence.may_end:
                logits[row, list(sequence.enders)] = -torch.inf
        uniforms = [sequence.uniform() for sequence in self.sequences]
        tokens = draw(logits, torch.tensor(uniforms, dtype=torch.float64), choice)
        log_probs: list[float | None] = [None] * len(tokens)
        if self.request.log_probs:
            # From the model's own logits, before temperature, cut-offs and penalty.
            log_probs = self.logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0].tolist()
        rows = zip(self.sequences, tokens.tolist(), log_probs, strict=True)
        return [sequence.take(token, log_prob) for sequence, token, log_prob in rows]


def retrieve(
    searcher: Searcher, retrieval: Retrieval, chunks: Sequence[tuple[int, Sequence[int]]]
) -> list[list[Neighbour]]:
    """Neighbours of numbered chunks, in one search; the first chunk of a sequence has number
    0."""
    found: list[list[Neighbour]] = [[] for _ in chunks]
    # Every n-th chunk: with `every` = 2 the second, the fourth and so on.
    due = [place for place, (number, _) in enumerate(chunks) if (number + 1) % retrieval.every == 0]
    if not due:
        return found
    k = retrieval.num_neighbours or searcher.num_neighbours
    tokens = [np.array(chunks[place][1]) for place in due]
    answers = searcher.search(tokens, k, retrieval.sources, retrieval.exclude)
    for place, neighbours in zip(due, answers, strict=True):
        found[place] = neighbours
    return found
