"""What a document was worth to a sample: the sample's bits without its neighbours, less those with them."""

import math
from collections.abc import Sequence

import torch

from retro.generation.sequence import Sample
from retro.model.protocol import LanguageModel
from retro.retrieval.retriever import stack_neighbours
from retro.retrieval.search import Neighbour


def saved_by_document(model: LanguageModel, sample: Sample) -> dict[str, float]:
    """Bits that the neighbours of each document saved on a sample's continuation, the most first.

    Documents go by their ids, as requests exclude them: editions of one page are one.
    """
    read = _read(sample)
    documents = dict.fromkeys(neighbour.document for found in read for neighbour in found)
    if not documents or not sample.continuation:
        return {}
    whole = _bits(model, sample, read)
    saved = {name: _bits(model, sample, _without(read, name)) - whole for name in documents}
    return dict(sorted(saved.items(), key=lambda entry: -entry[1]))


def _read(sample: Sample) -> list[Sequence[Neighbour]]:
    """The neighbours of the chunks that are complete before the last token is predicted."""
    return list(sample.neighbours[: (len(sample.tokens) - 1) // sample.chunk_len])


def _without(read: Sequence[Sequence[Neighbour]], document: str) -> list[Sequence[Neighbour]]:
    return [[neighbour for neighbour in found if neighbour.document != document] for found in read]


@torch.inference_mode()
def _bits(model: LanguageModel, sample: Sample, read: Sequence[Sequence[Neighbour]]) -> float:
    """Bits of the continuation with these neighbours of each complete chunk."""
    facts = model.facts
    tokens = torch.tensor([sample.tokens], device=model.device)
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    # Only the continuation is scored; what predicts the prompt is not asked for.
    targets[:, : sample.prompt_len - 1] = facts.pad_id
    retrieved = []
    if any(read):
        found = stack_neighbours(read, facts.retrieved_len, facts.pad_id)
        retrieved = [torch.from_numpy(array)[None].to(model.device) for array in found]
    log_probs = model.score(inputs, targets, *retrieved).log_probs
    return float(-log_probs.double().sum()) / math.log(2.0)
