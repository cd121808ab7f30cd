"""RETRO++ (Wang et al., 2023): the nearest neighbour in the prompt, and all of them read by the model, too.

The text is read again before every chunk, as with any neighbour in the prompt. What the model reads beside it
are the neighbours of the text's own chunks; those of the prompt have none.
"""

import numpy as np
import torch
from torch import Tensor

from retro.comparators.in_context import InContext, Prompt
from retro.errors import ConfigError
from retro.model.protocol import LanguageModel


class RetroPlusPlus(InContext):
    """A model with retrieval that has the nearest neighbour in its prompt, too."""

    def __init__(self, model: LanguageModel) -> None:
        if not model.facts.retrieves:
            raise ConfigError(
                "the model reads no neighbours; expected a RETRO or a fitted base, as RETRO++ is one; "
                "put them into the prompt alone"
            )
        super().__init__(model)

    def _joined(self, neighbours: np.ndarray) -> list[int]:
        """The nearest one, cut at its beginning to whole chunks, which keeps the text on the model's grid."""
        tokens = super()._joined(neighbours[:1])
        return tokens[len(tokens) % self.facts.chunk_len :]

    def _kept(self, prompt: Prompt) -> int:
        """As much less of the text as makes whole chunks."""
        m = self.facts.chunk_len
        return -(-super()._kept(prompt) // m) * m

    def _inputs(
        self, prompts: list[Prompt], tokens: Tensor, neighbours: Tensor, mask: Tensor | None
    ) -> list[Tensor]:
        (inputs,) = super()._inputs(prompts, tokens, neighbours, mask)
        m = self.facts.chunk_len
        shape = (len(prompts), inputs.shape[1] // m, *neighbours.shape[2:])
        read = neighbours.new_full(shape, self.facts.pad_id)
        exists = torch.zeros(shape[:3], dtype=torch.bool, device=neighbours.device)
        for i, prompt in enumerate(prompts):
            own = slice(self._kept(prompt) // m, prompt.stop // m)
            first = len(prompt.before) // m
            places = slice(first, first + own.stop - own.start)
            read[i, places] = neighbours[prompt.row, own]
            exists[i, places] = True if mask is None else mask[prompt.row, own]
        return [inputs, read, exists]
