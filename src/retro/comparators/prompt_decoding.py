"""Token by token with neighbours in the prompt: the text is read again whenever there are new ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retro.errors import ConfigError
from retro.model.protocol import Decoding

if TYPE_CHECKING:
    from retro.comparators.in_context import InContext


class PromptDecoding:
    """A batch of sequences in progress, each with its own neighbours in front of it.

    Between two readings a token is one step of the model's own decoding. A sequence whose neighbours change
    leaves the batch, is read again from the beginning behind its new prompt, and joins the batch again.
    """

    def __init__(self, model: "InContext", window: int = 0) -> None:
        self.model = model
        self.window = window
        self.texts: list[list[int]] = []
        self.found: list[list[tuple[Tensor, Tensor]]] = []
        """[N, F] and the mask of the real ones, for every complete chunk of each sequence."""
        self.inner = model.model.begin(window)
        self.places: list[int] = []
        """Where each sequence is in the model's own batch."""

    @property
    def batch(self) -> int:
        return len(self.texts)

    @property
    def completing(self) -> list[int]:
        m = self.model.facts.chunk_len
        return [row for row, text in enumerate(self.texts) if (len(text) + 1) % m == 0]

    @torch.inference_mode()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Begin with these prompts, and return the logits of the token after each."""
        m = self.model.facts.chunk_len
        self.texts = [list(prompt) for prompt in prompts]
        self.found = [[] for _ in prompts]
        if neighbours is not None:
            mask = _all_real(neighbours) if neighbour_mask is None else neighbour_mask
            for row, text in enumerate(self.texts):
                self.found[row] = [(neighbours[row, u], mask[row, u]) for u in range(len(text) // m)]
        self.inner = self.model.model.begin(self.window)
        self.places = list(range(len(prompts)))
        return self._read_again(self.inner, self.places)

    @torch.inference_mode()
    def step(
        self,
        tokens: Sequence[int],
        neighbours: Int[Tensor, "complete neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "complete neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Feed the next token of every sequence, and return the logits of the one after."""
        completing = self.completing
        for text, token in zip(self.texts, tokens, strict=True):
            text.append(token)
        self._take(completing, neighbours, neighbour_mask)
        again = [row for row in range(self.batch) if self._is_due(row)]
        going = [row for row in range(self.batch) if row not in again]
        if not again:
            logits = self._step(going, tokens)
            return logits[self.places]
        fresh = self.model.model.begin(self.window)
        read = self._read_again(fresh, again)
        if going:
            self.inner.select([self.places[row] for row in going])
            self.places = _inverse(going, self.batch)
            logits = torch.cat([self._step(going, tokens), read])
            self.inner.join(fresh)
        else:
            logits = read
            self.inner = fresh
        self.places = _inverse([*going, *again], self.batch)
        return logits[self.places]

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences; one that is named twice is duplicated."""
        self.inner.select([self.places[row] for row in rows])
        self.texts = [list(self.texts[row]) for row in rows]
        self.found = [list(self.found[row]) for row in rows]
        self.places = list(range(len(rows)))

    def join(self, other: Decoding) -> None:
        """Take the sequences of another decoding of this model in, behind one's own."""
        if not isinstance(other, PromptDecoding) or other.model is not self.model:
            raise ConfigError("a decoding of another model was to join; expected one of the same")
        self.places += [len(self.places) + place for place in other.places]
        self.inner.join(other.inner)
        self.texts += other.texts
        self.found += other.found

    def _take(self, completing: Sequence[int], neighbours: Tensor | None, mask: Tensor | None) -> None:
        """Keep the neighbours of the chunks just completed."""
        if neighbours is None:
            return
        mask = _all_real(neighbours) if mask is None else mask
        for number, row in enumerate(completing):
            # Chunks before the first with neighbours had none; they count in the place of those to come.
            missing = len(self.texts[row]) // self.model.facts.chunk_len - 1 - len(self.found[row])
            empty = (neighbours[number], torch.zeros_like(mask[number]))
            self.found[row] += [*[empty] * missing, (neighbours[number], mask[number])]

    def _is_due(self, row: int) -> bool:
        """Whether the sequence is read again at its last token."""
        m, length = self.model.facts.chunk_len, len(self.texts[row])
        if not self.found[row] or length < m:
            return False
        return (length - m) % (self.model.every or m) == 0

    def _step(self, rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Feed the tokens of these sequences, which are all that the model's own batch holds."""
        fed = [0] * len(rows)
        for row in rows:
            fed[self.places[row]] = tokens[row]
        return self.inner.step(fed)

    def _read_again(self, inner: Decoding, rows: Sequence[int]) -> Tensor:
        """Begin a decoding with these sequences, each behind its neighbours."""
        inputs = self.model.beginnings([self.texts[row] for row in rows], [self.found[row] for row in rows])
        return inner.prefill(*inputs)


def _all_real(neighbours: Tensor) -> Tensor:
    return torch.ones(neighbours.shape[:-1], dtype=torch.bool, device=neighbours.device)


def _inverse(order: Sequence[int], number: int) -> list[int]:
    """Where each of so many rows stands in an order of some of them."""
    places = [0] * number
    for place, row in enumerate(order):
        places[row] = place
    return places
