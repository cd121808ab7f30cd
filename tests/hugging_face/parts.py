"""What the tests of transformers' interface share."""

from collections.abc import Sequence

import torch
from torch import Tensor

M = 8


def padded(prompts: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """Prompts as a batch that is padded on the left."""
    longest = max(map(len, prompts))
    ids = [[pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def until_end(row: Sequence[int], end_id: int) -> list[int]:
    """The tokens before the end of a document."""
    return list(row[: row.index(end_id)]) if end_id in row else list(row)
