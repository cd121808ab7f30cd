"""Queries: what chunks or texts are searched with. They are all made here, by one function."""

from collections.abc import Callable, Sequence

import numpy as np

from retro.config.checks import require_utf8
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.retrieval.embedder import Embedder
from retro.retrieval.index import Entries


def make_queries(
    chunks: Sequence[str | np.ndarray], tokenizer: Tokenizer, embedder: Callable[[], Embedder]
) -> tuple[np.ndarray, Entries]:
    """Which of the chunks, texts or tokens, are not blank, and what those are searched with.

    Keys are rounded to float16 as the stored ones are, so that a chunk finds the same live and beforehand;
    tokens that are given are searched with as they are, not cut anew from their text. The embedder is asked
    for only if it is needed.
    """
    texts = [chunk if isinstance(chunk, str) else tokenizer.decode(chunk.tolist()) for chunk in chunks]
    for text in texts:
        require_utf8("the text to search for", text)
    asked = [number for number, text in enumerate(texts) if text.strip()]
    if not asked:
        return np.zeros(0, dtype=np.int64), Entries(np.zeros((0, 0), dtype=np.float16))
    keys = embedder().embed([texts[number] for number in asked]).astype(np.float16)
    tokens = [_tokens_of(chunks[number], tokenizer) for number in asked]
    return np.array(asked), Entries(keys, tokens)


def _tokens_of(chunk: str | np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    return np.array(tokenizer.encode(chunk)) if isinstance(chunk, str) else chunk
