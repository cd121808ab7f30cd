"""Token stores of documents that are written in the test, one token for every byte."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retro.corpus.documents import Document
from retro.corpus.encode import EncodedDocument
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore, write_tokens

TEXTS = ("", "ab", "two words", "x" * 41, "naïve „Grüße“ 雨", "", " \n ", "six is a few words more\n")


class ByteTokenizer(Tokenizer):
    """Splits every character that has more than one byte."""

    def __init__(self) -> None:
        super().__init__(
            [b"", b"", *(bytes([value]) for value in range(256))], pad_id=0, end_id=1, fingerprint="bytes"
        )

    def encode(self, text: str) -> list[int]:
        return [value + 2 for value in text.encode()]


def store_of(texts: Sequence[str], path: Path) -> TokenStore:
    tokenizer, rows, documents = ByteTokenizer(), [], []
    for number, text in enumerate(texts):
        tokens, made = (
            np.array(tokenizer.encode(text), dtype=tokenizer.dtype),
            Document(str(number), text, "test"),
        )
        rows.append(
            {
                "id": made.id,
                "source": made.source,
                "title": "",
                "language": "",
                "content_hash": made.content_hash,
            }
            | {"num_tokens": len(tokens), "num_bytes": len(text.encode())}
        )
        documents.append(EncodedDocument(number, rows[-1], tokens))
    return write_tokens(documents, rows, path, tokenizer, {}, {})
