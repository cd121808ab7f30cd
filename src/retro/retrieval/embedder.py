"""The frozen BERT that makes keys and queries: the same function for both."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from retro.artifacts import Progress, make_fingerprint
from retro.corpus import catalogue
from retro.errors import DataError

MAX_WORD_PIECES = 256
TOKENS_PER_BATCH = 4096


class Embedder:
    """Mean of the last hidden states over a text's real word pieces, the two special ones included."""

    def __init__(self, name: str) -> None:
        import transformers
        from transformers.utils import logging

        logging.disable_progress_bar()  # loading takes a moment; the bar that matters is the caller's
        folder = catalogue.fetched(name).path if name in catalogue.ENTRIES else Path(name)
        where = str(folder) if folder.exists() else name
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(where)
            self._model = transformers.AutoModel.from_pretrained(where, dtype=torch.float32).eval()
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"no encoder could be loaded from {name!r} ({reason}); expected a catalogue name, a folder or a hub id; run: retro fetch minilm"
            ) from None
        self.name = name
        self.width: int = self._model.config.hidden_size
        self.fingerprint = make_fingerprint("mean-pooled", MAX_WORD_PIECES, self._tokenizer.get_vocab(), self._weights_digest())

    def _weights_digest(self) -> str:
        """Every bit of every weight, so that a fine-tuned encoder is not taken for its origin."""
        digest = hashlib.sha256()
        for name, weight in sorted(self._model.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.contiguous().numpy().data)
        return digest.hexdigest()

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """One key a text. Texts of like length are batched together; the result has the order of the input."""
        pieces = self._tokenizer(list(texts), truncation=True, max_length=MAX_WORD_PIECES)["input_ids"] if texts else []
        keys = np.zeros((len(texts), self.width), dtype=np.float32)
        done = 0
        for batch in batches_by_length([len(ids) for ids in pieces], TOKENS_PER_BATCH):
            longest = max(len(pieces[index]) for index in batch)
            ids = torch.zeros(len(batch), longest, dtype=torch.long)
            mask = torch.zeros(len(batch), longest, dtype=torch.long)
            for row, index in enumerate(batch):
                ids[row, : len(pieces[index])] = torch.tensor(pieces[index])
                mask[row, : len(pieces[index])] = 1
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask[..., None].to(hidden.dtype)
            keys[batch] = ((hidden * weights).sum(1) / weights.sum(1)).numpy()
            done += len(batch)
            if progress:
                progress(done, len(texts))
        return keys


def batches_by_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices grouped by length, longest first, so that a batch padded to its longest holds at most `budget` tokens."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
