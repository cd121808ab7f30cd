"""Samples beside the neighbours that they used."""

from dataclasses import replace

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.sample import Sample
from retro.retrieval.shared_runs import ColouredChunk, colour_chunks


def colour_sample(sample: Sample, tokenizer: Tokenizer) -> list[ColouredChunk]:
    """The sample chunk by chunk."""
    coloured = colour_chunks(sample.chunks(), sample.neighbours, tokenizer)
    prompt_lens = (
        max(0, min(len(chunk.spans), sample.prompt_len - u * sample.chunk_len))
        for u, chunk in enumerate(coloured)
    )
    return [
        replace(chunk, prompt_len=prompt_len) for chunk, prompt_len in zip(coloured, prompt_lens, strict=True)
    ]
