"""What retrieval was worth: an answer scored again without it, and without each neighbour alone.

The bits that a neighbour saved on a part of an answer are those that the part costs without the neighbour,
less those that it costs with it, everything else being equal. That is measured, not guessed from what the
model attends to. Each function is a generator that pauses after every pass, so that others get their turn.
"""

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from retro.generation.sequence import Sample
from retro.model.protocol import AttentiveModel, LanguageModel
from retro.retrieval.retriever import stack_neighbours
from retro.retrieval.search import Neighbour

TOKENS_AT_ONCE = 1 << 11
"""Tokens of the texts that are scored in one pass."""
MOST_LOGITS = 1 << 27
"""Logits of a prompt that are held at once: half a gigabyte."""


@dataclass
class Explanation:
    """What the tokens and neighbours of an answer were worth, in bits."""

    saved: list[float]
    """On each token of the answer: without any neighbour, less with all."""
    by_neighbour: dict[tuple[int, int], float] = field(default_factory=dict)
    """By the chunk that retrieved and the rank, on the part that reads the chunk's neighbours."""
    by_token: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    """The same on each token of that part."""
    attention: dict[tuple[int, int], float] = field(default_factory=dict)
    """The mean part of the attention to neighbours, where the model tells it."""
    passes: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Part:
    """The tokens of an answer that read the neighbours of one chunk, counted from the prompt's beginning."""

    chunk: int
    start: int
    stop: int

    def of_answer(self, prompt_len: int) -> slice:
        return slice(self.start - prompt_len, self.stop - prompt_len)


def parts_of(sample: Sample) -> list[Part]:
    """The parts of an answer; those whose chunk found nothing are left out.

    The neighbours of chunk u are read from its last token on, which predicts the first of chunk u + 1. So it
    is the tokens of chunk u + 1 that they help to predict.
    """
    m = sample.chunk_len
    parts = []
    for chunk, found in enumerate(sample.neighbours):
        start = max((chunk + 1) * m, sample.prompt_len)
        stop = min((chunk + 2) * m, len(sample.tokens))
        if found and start < stop:
            parts.append(Part(chunk, start, stop))
    return parts


def explain(model: LanguageModel, sample: Sample, neighbours: bool) -> Generator[None, None, Explanation]:
    """What each token was worth, and with `neighbours` each neighbour as well."""
    started = time.perf_counter()
    scorer = _Scorer(model, sample)
    if not sample.continuation:
        return Explanation([])
    read = any(sample.neighbours)
    without = scorer.bits(None)
    on = off = scorer.rows_of(without)[0]
    spent = time.perf_counter() - started
    if not read:
        # Nothing was read, so nothing was worth anything; it need not be scored twice.
        return Explanation([0.0] * len(sample.continuation), passes=1, tokens=scorer.tokens, seconds=spent)
    yield
    started = time.perf_counter()
    on = scorer.rows_of(scorer.bits([sample.neighbours]))[0]
    explanation = Explanation((off - on).tolist())
    spent += time.perf_counter() - started
    if neighbours:
        yield
        started = time.perf_counter()
        scorer.look(explanation)
        spent += time.perf_counter() - started
        for part in parts_of(sample):
            for ranks in scorer.groups(part):
                yield
                started = time.perf_counter()
                left_out = [_without(sample.neighbours, part.chunk, rank) for rank in ranks]
                bits = scorer.rows_of(scorer.bits(left_out, part.stop))
                place = part.of_answer(sample.prompt_len)
                for rank, row in zip(ranks, bits, strict=True):
                    saved = row[place] - on[place]
                    explanation.by_neighbour[part.chunk, rank] = float(saved.sum())
                    explanation.by_token[part.chunk, rank] = saved.tolist()
                spent += time.perf_counter() - started
    explanation.passes, explanation.tokens, explanation.seconds = scorer.passes, scorer.tokens, spent
    return explanation


def _without(neighbours: Sequence[Sequence[Neighbour]], chunk: int, rank: int) -> list[Sequence[Neighbour]]:
    left = list(neighbours)
    left[chunk] = [found for number, found in enumerate(neighbours[chunk]) if number != rank]
    return left


class _Scorer:
    """Scores an answer with other neighbours than it had."""

    def __init__(self, model: LanguageModel, sample: Sample) -> None:
        self.model = model
        self.sample = sample
        self.passes = 0
        self.tokens = 0

    def groups(self, part: Part) -> list[range]:
        """The neighbours of a part's chunk, as many together as are scored in one pass."""
        count = len(self.sample.neighbours[part.chunk])
        step = max(1, TOKENS_AT_ONCE // part.stop)
        return [range(first, min(first + step, count)) for first in range(0, count, step)]

    @torch.inference_mode()
    def bits(
        self, variants: Sequence[Sequence[Sequence[Neighbour]]] | None, stop: int | None = None
    ) -> Float[Tensor, "variant seq"]:
        """Bits of each token after the first, up to `stop`, for each choice of neighbours; None: without."""
        sample, device, pad_id = self.sample, self.model.device, self.model.facts.pad_id
        tokens = torch.tensor(sample.tokens[:stop], device=device)
        inputs, targets = tokens[:-1], tokens[1:].clone()
        # Only the answer is scored; what predicts the prompt is not asked for.
        targets[: sample.prompt_len - 1] = pad_id
        count = 1 if variants is None else len(variants)
        retrieved: list[Tensor] = []
        if variants is not None:
            retrieved = [part.to(device) for part in self._stack(variants, len(inputs))]
        scored = self.model.score(inputs.expand(count, -1), targets.expand(count, -1), *retrieved)
        self.passes += count
        self.tokens += count * len(inputs)
        return -scored.log_probs.double() / math.log(2.0)

    def rows_of(self, bits: Tensor) -> np.ndarray:
        """The part of each row that belongs to the answer."""
        rows: np.ndarray = bits[:, self.sample.prompt_len - 1 :].cpu().numpy()
        return rows

    @torch.inference_mode()
    def look(self, explanation: Explanation) -> None:
        """Ask the model how much it attends to each neighbour."""
        if not isinstance(self.model, AttentiveModel):
            return
        sample = self.sample
        tokens = torch.tensor(sample.tokens[:-1], device=self.model.device)[None]
        retrieved = [part.to(self.model.device) for part in self._stack([sample.neighbours], tokens.shape[1])]
        attention = self.model.neighbour_attention(tokens, *retrieved)[0]
        self.passes += 1
        self.tokens += tokens.shape[1]
        for part in parts_of(sample):
            # A token is predicted at the position before it.
            mean = attention[part.start - 1 : part.stop - 1].double().mean(0)
            for rank in range(len(sample.neighbours[part.chunk])):
                explanation.attention[part.chunk, rank] = float(mean[rank])

    def _stack(self, variants: Sequence[Sequence[Sequence[Neighbour]]], length: int) -> tuple[Tensor, Tensor]:
        facts = self.model.facts
        num_chunks = length // facts.chunk_len
        rows = [
            [variant[chunk] if chunk < len(variant) else () for chunk in range(num_chunks)]
            for variant in variants
        ]
        flat = [found for row in rows for found in row]
        values, mask = stack_neighbours(flat, facts.retrieved_len, facts.pad_id)
        shape = (len(variants), num_chunks)
        return (
            torch.from_numpy(values).unflatten(0, shape),
            torch.from_numpy(mask).unflatten(0, shape),
        )


@dataclass(frozen=True)
class PromptScores:
    """The log-probabilities of a prompt's tokens, in nats; the first has none."""

    log_probs: list[float]
    top: list[tuple[tuple[int, float], ...]]
    """The most probable tokens at each place; empty if they were not asked for."""


def score_prompt(
    model: LanguageModel, sample: Sample, neighbours: Sequence[Sequence[Neighbour]], top: int
) -> PromptScores:
    """What the model thinks of a prompt, which reads its neighbours as it does in training."""
    device, pad_id = model.device, model.facts.pad_id
    tokens = torch.tensor(sample.tokens[: sample.prompt_len], device=device)[None]
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if not targets.shape[1]:
        return PromptScores([], [])
    retrieved: list[Tensor] = []
    num_chunks = inputs.shape[1] // model.facts.chunk_len
    if any(neighbours[:num_chunks]):
        found = stack_neighbours(neighbours[:num_chunks], model.facts.retrieved_len, pad_id)
        retrieved = [torch.from_numpy(array)[None].to(device) for array in found]
    with torch.inference_mode():
        if not top:
            return PromptScores(model.score(inputs, targets, *retrieved).log_probs[0].tolist(), [])
        log_probs = model(inputs, *retrieved)[0].log_softmax(-1)
        best, ids = log_probs.topk(min(top, log_probs.shape[-1]))
        chosen = log_probs.gather(-1, targets[0][:, None])[:, 0].tolist()
    pairs = zip(ids.tolist(), best.tolist(), strict=True)
    return PromptScores(chosen, [tuple(zip(*pair, strict=True)) for pair in pairs])
