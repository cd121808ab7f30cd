"""What documents were worth to a sample, against bits that are counted by hand."""

import math

import numpy as np
import pytest
import torch

from retro.comparators.leaving_out import saved_by_document
from retro.generation.sequence import Sample
from retro.model.retro import Retro
from retro.retrieval.search import Neighbour
from tests.model.models import random_inputs, small_model


def bits(model: Retro, sample: Sample, without: str) -> float:
    """Of the continuation, with the neighbours of all documents but one."""
    m, pad = model.facts.chunk_len, model.facts.pad_id
    tokens = torch.tensor([sample.tokens])
    chunks = (tokens.shape[1] - 1) // m
    values = torch.full((1, chunks, 2, 2 * m), pad)
    mask = torch.zeros(1, chunks, 2, dtype=torch.bool)
    for chunk in range(chunks):
        for rank, neighbour in enumerate(sample.neighbours[chunk]):
            if neighbour.document != without:
                values[0, chunk, rank] = torch.from_numpy(neighbour.tokens)
                mask[0, chunk, rank] = True
    with torch.no_grad():
        log_probs = model(tokens[:, :-1], values, mask).log_softmax(-1)
    found = log_probs[0].gather(-1, tokens[0, 1:, None])[sample.prompt_len - 1 :]
    return float(-found.sum()) / math.log(2)


def test_a_document_is_worth_what_is_lost_without_it() -> None:
    model = small_model()
    m = model.facts.chunk_len
    tokens, values, _ = random_inputs(model.config, 1, 3 * m + 2, 2)
    names = [["a", "b"], ["b", "c"], ["a", "a"]]
    rows = [
        [
            Neighbour(0, 0.0, value.numpy().astype(np.int64), "", name, "", "s")
            for name, value in zip(row, found, strict=True)
        ]
        for row, found in zip(names, values[0], strict=True)
    ]
    sample = Sample(tokens[0].tolist(), prompt_len=m + 1, chunk_len=m, neighbours=rows)
    saved = saved_by_document(model, sample)
    whole = bits(model, sample, "none")
    assert saved == pytest.approx({name: bits(model, sample, name) - whole for name in "abc"}, abs=1e-6)
    assert list(saved.values()) == sorted(saved.values(), reverse=True)
    assert saved_by_document(model, Sample(sample.tokens, m + 1, m)) == {}
    assert saved_by_document(model, Sample(sample.tokens, len(sample.tokens), m, rows)) == {}
