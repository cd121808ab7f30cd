"""A sample as plain JSON: its chunks, their neighbours, and what they share."""

from typing import Any

from retro.corpus.tokenizer import Tokenizer
from retro.sampling.colours import ColouredNeighbour, Span, colour_sample
from retro.sampling.sample import Sample


def sample_record(sample: Sample, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything that the coloured page shows. `overlap` is the longest common prefix of every token, null where none was compared."""
    chunks = []
    for tokens, chunk in zip(sample.chunks(), colour_sample(sample, tokenizer), strict=True):
        chunks.append(
            {
                **_text(chunk.spans),
                "tokens": tokens,
                "prompt_tokens": chunk.prompt_len,
                "neighbours": [_neighbour(neighbour) for neighbour in chunk.neighbours],
            }
        )
    return {
        "prompt": sample.prompt,
        "text": sample.text,
        "finish": sample.finish,
        "retrieval": sample.retrieval,
        "log_probs": sample.log_probs,
        "chunks": chunks,
    }


def _neighbour(neighbour: ColouredNeighbour) -> dict[str, Any]:
    return {
        "document": neighbour.document,
        "title": neighbour.title,
        "source": neighbour.source,
        "distance": neighbour.distance,
        "neighbour": _text(neighbour.neighbour),
        "continuation": _text(neighbour.continuation),
    }


def _text(spans: list[Span]) -> dict[str, Any]:
    return {"text": "".join(span.text for span in spans), "overlap": [span.overlap for span in spans]}
