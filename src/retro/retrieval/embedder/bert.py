"""BERT-like embedders: keys are mean-pooled last hidden states.

Nearly all the time goes into the linear layers, so three things help: less padding (batches by length),
activations that stay in the cache and in memory that is already mapped (small batches), and layers laid out
for oneDNN's kernels (`packed.py`). All of it is float32 and exact but for the order of the sums, unless
bfloat16 products are asked for; `benchmarks/embedding.py` shows what each brings.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from retro.catalogue import hub
from retro.errors import DataError
from retro.machine import product_dtype
from retro.retrieval.embedder.packed import PackedBert, pack_linear_layers
from retro.stages.files import make_fingerprint
from retro.stages.progress import Progress, no_progress

MAX_WORD_PIECES = 256
TOKENS_PER_BATCH = 1024


class BertEmbedder:
    """Mean of the last hidden states over a text's real word pieces, the special ones included.

    A text without any word piece has a key of zeros.
    """

    batch_invariant = False
    """Products of matrices are summed in another order for other shapes."""

    def __init__(self, name: str, where: str, precision: str = "float32") -> None:
        import transformers
        from safetensors import SafetensorError
        from transformers.utils import logging

        logging.disable_progress_bar()  # loading takes a moment; the bar that matters is the caller's
        # A folder needs no hub, and without a connection only the hub's cache is looked into.
        local = Path(where).exists() or not hub.is_reachable()
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(where, local_files_only=local)
            model = transformers.AutoModel.from_pretrained(where, dtype=torch.float32, local_files_only=local)
            model = model.eval()
        except (OSError, ValueError, SafetensorError) as error:
            reason = str(error).splitlines()[0]
            if not Path(where).exists() and local:
                reason = hub.UNREACHABLE
            raise DataError(
                f"no embedder could be loaded from {name!r} ({reason}); expected a catalogue name, a folder "
                "or a hub id; run: retro fetch minilm"
            ) from None
        # Of a T5-like model only the half that reads the text makes keys.
        self._model: nn.Module = model.get_encoder() if model.config.is_encoder_decoder else model
        self._max_len = min(
            MAX_WORD_PIECES,
            self._tokenizer.model_max_length,
            getattr(model.config, "max_position_embeddings", None) or MAX_WORD_PIECES,
        )
        self.name = name
        self.fingerprint = make_fingerprint(
            "mean-pooled", self._max_len, self._tokenizer.get_vocab(), weights_digest(self._model)
        )
        self.precision = precision
        self._dtype = product_dtype(precision, torch.device("cpu"))
        with torch.inference_mode():
            if PackedBert.can_stand_for(self._model):
                self._model = PackedBert(self._model, self._dtype)
            elif self._dtype == torch.float32:
                pack_linear_layers(self._model)
        try:
            self.width = self._pool([[0]]).shape[1]
        except (AttributeError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"{name!r} is a {model.config.model_type!r} model that does not read text alone ({reason}); "
                "expected a BERT-like model; run: retro fetch minilm"
            ) from None

    def embed(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """One key for each text, in their order; texts of like length are batched together."""
        pieces = self._word_pieces(texts) if texts else []
        keys = np.zeros((len(texts), self.width), dtype=np.float32)
        done = 0
        for batch in batches_by_length([len(ids) for ids in pieces], TOKENS_PER_BATCH):
            keys[batch] = self._pool([pieces[index] for index in batch])
            done += len(batch)
            progress(done, len(texts))
        return keys

    def _word_pieces(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._tokenizer(list(texts), truncation=True, max_length=self._max_len)[
            "input_ids"
        ]
        return ids

    @torch.inference_mode()
    def _pool(self, pieces: Sequence[Sequence[int]]) -> np.ndarray:
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in pieces], batch_first=True)
        mask = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in pieces])[:, None]
        hidden = self._hidden_states(ids, mask).float()
        # The mean over the real word pieces alone: padding has weight zero and is not counted.
        weights = mask[..., None].to(hidden.dtype)
        pooled: np.ndarray = ((hidden * weights).sum(1) / weights.sum(1)).numpy()
        return pooled

    def _hidden_states(self, ids: Tensor, is_real: Tensor) -> Tensor:
        if isinstance(self._model, PackedBert):
            found: Tensor = self._model(ids, is_real)
        else:
            with torch.autocast("cpu", self._dtype, enabled=self._dtype != torch.float32):
                found = self._model(input_ids=ids, attention_mask=is_real.long()).last_hidden_state
        return found


def weights_digest(model: nn.Module) -> str:
    """A hash of every bit of every weight, so that a fine-tuned model is not taken for its origin."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.contiguous().numpy().data)
    return digest.hexdigest()


def batches_by_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in batches of like length, longest first.

    A batch that is padded to its longest holds at most `budget` tokens. What has no length is in no batch.
    """
    batches: list[list[int]] = []
    # Sorted by length, so that neighbours in the list need hardly any padding to become one batch.
    for index in sorted(np.flatnonzero(lengths).tolist(), key=lambda index: (-lengths[index], index)):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
