"""A sample as plain JSON: its chunks, their neighbours, and what they share."""

from typing import Any

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.sample import Sample
from retro.pages.record import chunk_record
from retro.pages.sample_colours import colour_sample


def sample_record(sample: Sample, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything that the coloured page shows."""
    return {
        "prompt": sample.prompt,
        "text": sample.text,
        "finish": sample.finish,
        "retrieval": sample.retrieval,
        "log_probs": sample.log_probs,
        "chunks": [
            {**chunk_record(chunk), "tokens": tokens, "prompt_tokens": chunk.prompt_len}
            for tokens, chunk in zip(sample.chunks(), colour_sample(sample, tokenizer), strict=True)
        ],
    }
