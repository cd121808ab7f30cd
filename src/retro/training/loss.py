"""The training loss as one module: what is sharded, compiled and run in lower precision is exactly this."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from retro.model.retro import Retro

WHOLE_LOGITS = 1 << 26
"""Logits of a batch that are held at once; where there are more, they are made and thrown away in parts of at most a quarter of this."""


class TokenLoss(nn.Module):
    """Cross-entropy in nats, summed over the tokens that are predicted. A sum can be divided by the tokens of other processes too."""

    def __init__(self, model: Retro, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, ""]:
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            hidden = self.model.hidden(tokens, neighbours, neighbour_mask).flatten(0, 1)
            return self._summed(hidden, targets.flatten())

    def _summed(
        self, hidden: Float[Tensor, "token d_model"], targets: Int[Tensor, " token"]
    ) -> Float[Tensor, ""]:
        vocab_size = self.model.config.vocab_size
        if len(targets) * vocab_size <= WHOLE_LOGITS:
            return self._cross_entropy(hidden, targets)
        parts = zip(
            *(tensor.split(max(1, WHOLE_LOGITS // 4 // vocab_size)) for tensor in (hidden, targets)),
            strict=True,
        )
        losses = [
            checkpoint(self._cross_entropy, *part, use_reentrant=False, preserve_rng_state=False)
            for part in parts
        ]
        return torch.stack(losses).sum()

    def _cross_entropy(
        self, hidden: Float[Tensor, "token d_model"], targets: Int[Tensor, " token"]
    ) -> Float[Tensor, ""]:
        return F.cross_entropy(
            self.model.read_out(hidden), targets, ignore_index=self.model.config.pad_id, reduction="sum"
        )
