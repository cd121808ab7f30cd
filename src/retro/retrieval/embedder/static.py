"""Static embedders: a table with a vector for every token. Far faster than BERT, and far coarser."""

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
from retro.stages.progress import Progress, no_progress

TABLES = ("model.safetensors", "weights/*.safetensors")
TOKENIZERS = ("tokenizer.json", "tokenizers/*.json")
TEXTS_PER_BATCH = 4096


def find_table(folder: Path) -> tuple[Path, Path] | None:
    """The table and the tokenizer of a static embedder's folder; none where the folder is something else.

    Its weights are one matrix and nothing else, and beside them lies a tokenizer's JSON.
    """
    table = _first(folder, TABLES)
    tokenizer = _first(folder, TOKENIZERS)
    if table is None or tokenizer is None:
        return None
    try:
        with safe_open(table, framework="pt") as file:
            names = list(file.keys())
            is_table = len(names) == 1 and len(file.get_slice(names[0]).get_shape()) == 2
    except SafetensorError:
        return None
    return (table, tokenizer) if is_table else None


def _first(folder: Path, patterns: Sequence[str]) -> Path | None:
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)


class StaticEmbedder:
    """Mean of the table's rows over a text's tokens, scaled to length one; zeros for a text without tokens.

    Without the scaling, the length of a mean tells how common the text's words are rather than what it is
    about, and the squared distance would order by that. Between unit vectors it orders by the cosine, for
    which such tables are trained.
    """

    batch_invariant = True

    def __init__(self, name: str, table: Path, tokenizer: Path) -> None:
        with safe_open(table, framework="pt") as file:
            self._table = file.get_tensor(next(iter(file.keys()))).to(torch.float32)
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # noqa: BLE001 — the library raises nothing narrower
            raise DataError(
                f"{tokenizer} is no tokenizer ({error}); expected the JSON of the tokenizers library "
                f"beside {table}"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab()
        if max(vocabulary.values(), default=0) >= len(self._table):
            raise DataError(
                f"{tokenizer} knows {len(vocabulary)} tokens and {table} has {len(self._table)} rows; "
                "expected a row for every token"
            )
        self.name = name
        self.width = self._table.shape[1]
        self.precision = "float32"
        digest = hashlib.sha256(self._table.numpy().data).hexdigest()
        self.fingerprint = make_fingerprint("static, unit length", self._tokenizer.to_str(), digest)

    def embed(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """One key for each text, in their order."""
        keys = np.zeros((len(texts), self.width), dtype=np.float32)
        for start in range(0, len(texts), TEXTS_PER_BATCH):
            batch = list(texts[start : start + TEXTS_PER_BATCH])
            keys[start : start + len(batch)] = self._pool(batch)
            progress(start + len(batch), len(texts))
        return keys

    @torch.inference_mode()
    def _pool(self, texts: list[str]) -> np.ndarray:
        encoded = [
            encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
        # All texts' tokens in one row, and where each text begins: one pass over the table for the whole
        # batch.
        starts = torch.tensor([0, *(len(ids) for ids in encoded)]).cumsum(0)[:-1]
        tokens = torch.from_numpy(np.fromiter(chain.from_iterable(encoded), dtype=np.int64))
        means = F.embedding_bag(tokens, self._table, starts, mode="mean")
        unit: np.ndarray = F.normalize(means).numpy()
        return unit
