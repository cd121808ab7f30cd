"""Token by token with a fitted model: the base's own cache, and the neighbours that are read at present."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from retro.errors import ConfigError, DataError
from retro.fitting.base_cache import crop_front, join_caches
from retro.fitting.beside import Folded
from retro.fitting.growing import NewestReading, PromptReading, WatchingReading
from retro.fitting.present import Present, joined
from retro.fitting.whole import shifted
from retro.model.caches import NeighbourCache
from retro.model.chunked_cross_attention import ChunkedCrossAttention
from retro.model.protocol import Decoding

if TYPE_CHECKING:
    from retro.fitting.fitted import FittedModel
    from retro.fitting.neighbours import Retrieved


class FittedDecoding:
    """A batch of sequences in progress, each on its own chunk grid.

    Sequences end at the same slot of the base's cache, so prompts are padded on the left. With a `window`,
    self-attention sees only the last `window` tokens.
    """

    def __init__(self, model: "FittedModel", window: int = 0, *, trusted: bool = False) -> None:
        """`trusted` begins without asking whether the base's cache can be."""
        if window < 0:
            raise ConfigError(f"window is {window}; expected a number of tokens, or 0 for all")
        self.model = model
        self.window = window
        self.trusted = trusted
        self.lengths: list[int] = []
        self.tails: list[list[int]] = []
        """The last tokens of each sequence, of which the next chunk is completed."""
        self.dropped = 0
        """Slots that were taken away before the first that is there: a clock must not go back."""
        self._present: Present | None = None
        self.folded: dict[int, Folded] = {}
        """By layer, from 0, what is present, as single tokens read it."""
        self.encoded: NeighbourCache | None = None
        """The neighbours as the paper's cross-attention reads them; None if the model has none."""

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def present(self) -> Present | None:
        """The neighbours that the sequences read at present."""
        return self._present

    @present.setter
    def present(self, present: Present | None) -> None:
        self._present = present
        self.folded = {}

    @property
    def completing(self) -> list[int]:
        """The sequences whose next token completes a chunk."""
        m = self.model.config.chunk_len
        return [row for row, length in enumerate(self.lengths) if (length + 1) % m == 0]

    @property
    def turn(self) -> int:
        """Slots used since the start: a clock that all sequences share."""
        return self.mask.shape[1] + self.dropped

    @torch.no_grad()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Begin with these prompts, and return the logits of the token after each."""
        model, device = self.model, self.model.device
        self.lengths = [len(prompt) for prompt in prompts]
        self.tails = [list(prompt[-model.config.chunk_len :]) for prompt in prompts]
        self.dropped = 0
        self.present = None
        longest = max(self.lengths)
        if min(self.lengths) == 0:
            raise DataError("a prompt is empty; expected at least one token, as a base begins with none")
        rows = [[model.pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        tokens = torch.tensor(rows, dtype=torch.long, device=device)
        pads = torch.tensor([longest - length for length in self.lengths], device=device)
        places = torch.arange(longest, device=device)
        # A prompt may begin with padding of its own, which counts as a part of its chunks.
        self.mask = tokens != model.pad_id
        is_padded = not bool(self.mask.all())
        if not self.trusted:
            model.expect_cached(ragged=False)
            if is_padded:
                model.expect_cached(ragged=True)
        self.cache = self._new_cache()
        self.encoded = self._new_encoded()
        retrieved = self._retrieved(tokens, pads, neighbours, neighbour_mask)
        reading: PromptReading | WatchingReading | None = None
        if retrieved is not None:
            reading = PromptReading(self, retrieved, pads if bool(pads.any()) else None)
        elif self.encoded is not None:
            reading = WatchingReading(self)
        inputs: dict[str, Any] = {"input_ids": tokens.masked_fill(~self.mask, 0)}
        if is_padded:
            inputs["attention_mask"] = self.mask.long()
            inputs |= self._positions((places - pads[:, None]).clamp_min(0))
        output = model.run(reading, **inputs, **{model.cache_name: self.cache}, use_cache=True)
        states = output.last_hidden_state[:, -1]
        logits = model.head(states)
        if not isinstance(reading, PromptReading):
            return logits
        self._keep_last(reading.retrieved)
        vote = reading.vote()
        if vote is None:
            return logits
        assert model.pointer is not None
        # The vote is aligned on the left, where each prompt has its own length.
        last = torch.tensor(self.lengths, device=device) - 1
        return model.pointer.mix_logits(
            vote.at((torch.arange(len(rows), device=device), last)), states, logits
        )

    @torch.no_grad()
    def step(
        self,
        tokens: Sequence[int],
        neighbours: Int[Tensor, "complete neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "complete neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Feed the next token of every sequence, and return the logits of the one after."""
        model, device = self.model, self.model.device
        if len(tokens) != self.batch:
            raise DataError(f"{len(tokens)} tokens were fed to {self.batch} sequences; expected one each")
        completing = self.completing
        self.tails = [
            [*tail, token][-model.config.chunk_len :] for tail, token in zip(self.tails, tokens, strict=True)
        ]
        found: Retrieved | None = None
        if completing:
            found = self._read_completing(completing, neighbours, neighbour_mask)
        positions = torch.tensor(self.lengths, device=device)[:, None]
        self.mask = pad(self.mask, (0, 1), value=True)
        self.lengths = [length + 1 for length in self.lengths]
        inputs: dict[str, Any] = {"input_ids": torch.tensor(tokens, device=device)[:, None]}
        seen = self.mask
        if self.window:
            seen = seen & (torch.arange(seen.shape[1], device=device) >= seen.shape[1] - self.window)
        if not bool(seen.all()):
            inputs["attention_mask"] = seen.long()
        inputs |= self._positions(positions)
        reading = NewestReading(self, completing, found)
        output = model.run(reading, **inputs, **{model.cache_name: self.cache}, use_cache=True)
        states = output.last_hidden_state[:, -1]
        logits = model.head(states)
        vote = reading.vote()
        if vote is None:
            return logits
        assert model.pointer is not None
        return model.pointer.mix_logits(vote, states, logits)

    @torch.no_grad()
    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences; one that is named twice is duplicated."""
        index = torch.tensor(rows, dtype=torch.long, device=self.model.device)
        self.lengths = [self.lengths[row] for row in rows]
        self.tails = [self.tails[row] for row in rows]
        self.mask = self.mask[index]
        self.cache.batch_select_indices(index)
        if self.present is not None:
            self.present = self.present.select(index)
        if self.encoded is not None:
            self.encoded.select(rows)
        self._drop_unused()

    @torch.no_grad()
    def join(self, other: Decoding) -> None:
        """Take the sequences of another decoding of this model in, behind one's own.

        The shorter of the two is padded on the left, so a base must bear that unless both are as long.
        """
        if not isinstance(other, FittedDecoding) or other.model is not self.model:
            raise ConfigError("a decoding of another model was to join; expected one of the same")
        if other.window != self.window:
            raise ConfigError(
                f"a decoding with a window of {other.window} was to join; expected {self.window}, as here"
            )
        if not other.lengths:
            return
        if not self.lengths:
            self._become(other)
            return
        if not self.trusted and len({*self.lengths, *other.lengths}) > 1:
            self.model.expect_cached(ragged=True)
        later = self.turn - other.turn
        slots = max(self.mask.shape[1], other.mask.shape[1])
        join_caches(self.cache, other.cache, slots)
        self.dropped = self.turn - slots
        masks = [pad(mask, (slots - mask.shape[1], 0), value=False) for mask in (self.mask, other.mask)]
        self.mask = torch.cat(masks)
        self.present = joined(self.present, self.batch, other.present, other.batch)
        if self.encoded is not None and other.encoded is not None:
            self.encoded.join(other.encoded, later)
        self.lengths = self.lengths + other.lengths
        self.tails = self.tails + other.tails

    def _become(self, other: "FittedDecoding") -> None:
        self.lengths = other.lengths
        self.tails = other.tails
        self.dropped = other.dropped
        self.mask = other.mask
        self.cache = other.cache
        self.present = other.present
        self.encoded = other.encoded

    def _drop_unused(self) -> None:
        """Take away the slots before the longest sequence, which only one that has left had used."""
        unused = self.mask.shape[1] - max(self.lengths, default=0)
        if self.lengths and unused and crop_front(self.cache, unused):
            self.mask = self.mask[:, unused:]
            self.dropped += unused

    def _new_cache(self) -> Any:
        from transformers import DynamicCache

        base: Any = self.model.base
        return DynamicCache(config=base.config)

    def _new_encoded(self) -> NeighbourCache | None:
        model = self.model
        if model.cross is None or model.encoder_embedding is None:
            return None
        operators = cast(list[ChunkedCrossAttention], list(model.cross))
        like = model.encoder_embedding.weight.detach()
        return NeighbourCache(operators, model.config.chunk_len, model.facts.retrieved_len, self.batch, like)

    def last_chunks(self) -> tuple[list[int], list[int]]:
        """The rows with a complete chunk, and the number of each one's last."""
        m = self.model.config.chunk_len
        rows = [row for row, length in enumerate(self.lengths) if length >= m]
        return rows, [self.lengths[row] // m - 1 for row in rows]

    def observe(self, x: Float[Tensor, "batch seq width"]) -> None:
        """Keep the states of the last chunk's tokens at layer min(P), by which neighbours are encoded.

        All sequences end at the same slot, so a slot's place in the ring is the same for all.
        """
        assert self.encoded is not None
        kept = min(self.model.config.chunk_len, x.shape[1])
        for back in range(kept, 0, -1):
            is_token = self.mask[:, self.mask.shape[1] - back].tolist()
            self.encoded.observe(self.turn - back, x[:, x.shape[1] - back], is_token)

    def _positions(self, positions: Tensor) -> dict[str, Tensor]:
        """For bases that are told positions; others count the mask."""
        return {"position_ids": positions} if self.model.takes_positions else {}

    def _retrieved(
        self, tokens: Tensor, pads: Tensor, neighbours: Tensor | None, mask: Tensor | None
    ) -> "Retrieved | None":
        model = self.model
        if neighbours is None or neighbours.numel() == 0:
            return None
        model.facts.expect_neighbours(tokens, neighbours)
        complete = torch.tensor(self.lengths, device=tokens.device) // model.config.chunk_len
        # In a shorter prompt, those beyond its complete chunks are not read.
        real = torch.arange(neighbours.shape[1], device=tokens.device) < complete[:, None]
        mask = real[..., None].expand(neighbours.shape[:3]) if mask is None else mask & real[..., None]
        # Chunks are counted from each prompt's own first token.
        return model.retrieve(shifted(tokens[..., None], pads)[..., 0], neighbours, mask)

    def _keep_last(self, retrieved: "Retrieved") -> None:
        """Keep the neighbours of the last complete chunk of each prompt, which the next tokens read."""
        m = self.model.config.chunk_len
        chunks = torch.tensor([max(0, length // m - 1) for length in self.lengths], device=self.model.device)
        rows = torch.arange(self.batch, device=self.model.device)
        has_chunk = torch.tensor([length >= m for length in self.lengths], device=self.model.device)
        self.present = Present.of(retrieved, rows, chunks, has_chunk)

    def _read_completing(
        self, completing: Sequence[int], neighbours: Tensor | None, mask: Tensor | None
    ) -> "Retrieved | None":
        """Read the neighbours of the chunks that the next tokens complete; None if there are none."""
        model, device = self.model, self.model.device
        found = None
        if neighbours is not None and neighbours.numel():
            expected = (len(completing), model.facts.retrieved_len)
            if (len(neighbours), neighbours.shape[2]) != expected:
                raise DataError(
                    f"neighbours of {len(neighbours)} chunks with {neighbours.shape[2]} tokens each were "
                    f"fed; expected {expected[0]} chunks with {expected[1]}"
                )
            numbers = torch.tensor([self.lengths[row] // model.config.chunk_len for row in completing])
            chunks = torch.tensor([self.tails[row] for row in completing])
            found = model.read_neighbours(
                neighbours[:, None],
                None if mask is None else mask[:, None],
                numbers[:, None].to(device),
                chunks[:, None].to(device),
            )
        if self.present is None and found is not None:
            self.present = Present.empty(found, self.batch)
        if self.present is not None:
            self.present = self.present.replaced(completing, found)
        return found
