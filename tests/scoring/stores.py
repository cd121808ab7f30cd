"""Token stores of documents that are written in the test, one token for every byte."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retro.config import FILE_BYTES
from retro.corpus.documents import Document
from retro.corpus.encode import EncodedDocument, row_of
from retro.corpus.table import DocumentTable
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


def store_of(texts: Sequence[str], path: Path, file_bytes: int = FILE_BYTES) -> TokenStore:
    tokenizer, documents = ByteTokenizer(), []
    for number, text in enumerate(texts):
        made = Document(str(number), text, "test")
        tokens = np.array(tokenizer.encode(text), dtype=tokenizer.dtype)
        documents.append(EncodedDocument(number, row_of(made, len(tokens)), tokens))
    return write_tokens(documents, path, tokenizer, {}, {}, file_bytes=file_bytes)


def alternate_sources(store: TokenStore) -> None:
    """Have every other document come from another source."""
    rows = enumerate(store.documents)
    store.documents = DocumentTable.of({**row, "source": ("even", "odd")[index % 2]} for index, row in rows)
