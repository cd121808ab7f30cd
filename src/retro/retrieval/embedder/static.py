"""Static-table encoders: a vector for every token, no network. Far faster than BERT, and far coarser."""

import hashlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch.nn import functional as F

from retro.errors import DataError
from retro.stages.files import make_fingerprint
from retro.stages.progress import Progress

TABLES = ("model.safetensors", "weights/*.safetensors")
TOKENIZERS = ("tokenizer.json", "tokenizers/*.json")
TEXTS_PER_BATCH = 4096


def find_table(folder: Path) -> tuple[Path, Path] | None:
    """The table and the tokenizer of a static encoder's folder: weights that are one matrix and nothing else, and a tokenizer's JSON."""
    table, tokenizer = (
        next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)
        for patterns in (TABLES, TOKENIZERS)
    )
    if table is None or tokenizer is None:
        return None
    try:
        with safe_open(table, framework="pt") as file:
            names = list(file.keys())
            return (
                (table, tokenizer)
                if len(names) == 1 and len(file.get_slice(names[0]).get_shape()) == 2
                else None
            )
    except SafetensorError:
        return None


class StaticEmbedder:
    """Mean of the table's rows over a text's tokens, scaled to length one; a text without tokens has a key of zeros.

    Without the scaling, the length of a mean tells how common the text's words are rather than what it is about, and the squared
    distance would order by that; between unit vectors it orders by the cosine, for which such tables are trained.
    """

    def __init__(self, name: str, table: Path, tokenizer: Path) -> None:
        with safe_open(table, framework="pt") as file:
            self._table = file.get_tensor(next(iter(file.keys()))).to(torch.float32)
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # noqa: BLE001 — the library raises nothing narrower
            raise DataError(
                f"{tokenizer} is no tokenizer ({error}); expected the JSON of the tokenizers library beside {table}"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab()
        if max(vocabulary.values(), default=0) >= len(self._table):
            raise DataError(
                f"{tokenizer} knows {len(vocabulary)} tokens and {table} has {len(self._table)} rows; expected a row for every token"
            )
        self.name, self.width, self.precision = name, self._table.shape[1], "float32"
        digest = hashlib.sha256(self._table.numpy().data).hexdigest()
        self.fingerprint = make_fingerprint("static, unit length", self._tokenizer.to_str(), digest)

    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """One key a text, in the order of the input."""
        keys = np.zeros((len(texts), self.width), dtype=np.float32)
        for start in range(0, len(texts), TEXTS_PER_BATCH):
            batch = list(texts[start : start + TEXTS_PER_BATCH])
            keys[start : start + len(batch)] = self._pool(batch)
            if progress:
                progress(start + len(batch), len(texts))
        return keys

    @torch.inference_mode()
    def _pool(self, texts: list[str]) -> np.ndarray:
        encoded = [
            encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
        starts = torch.tensor([0, *(len(ids) for ids in encoded)]).cumsum(0)[:-1]
        tokens = torch.from_numpy(np.fromiter(chain.from_iterable(encoded), dtype=np.int64))
        means = F.embedding_bag(tokens, self._table, starts, mode="mean")
        unit: np.ndarray = F.normalize(means).numpy()
        return unit
