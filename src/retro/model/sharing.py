"""One text with several numbers of neighbours: what does not depend on the number is computed once.

Below the first layer with cross-attention nothing depends on neighbours, and neighbours are encoded without
a look at each other: the encodings of the first k are the first k of the encodings, and so are the keys and
values that a layer makes of them. They are made rank by rank, so that a score does not depend on which others
were asked for: products of other sizes round otherwise.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retro.model.layers import DecoderLayer, WholeSequences, embed
from retro.model.pointer import Vote, Voters

if TYPE_CHECKING:
    from retro.model.retro import Retro


class SharedReading:
    """A text up to the self-attention of layer min(P), and its neighbours as that layer reads them."""

    def __init__(
        self,
        model: "Retro",
        tokens: Int[Tensor, "batch seq"],
        retrieved: tuple[
            Int[Tensor, "batch chunk neighbour retrieved"], Bool[Tensor, "batch chunk neighbour retrieved"]
        ],
    ) -> None:
        """`retrieved` holds the neighbours to read, and which of their tokens are real."""
        self.model = model
        self.is_token = tokens != model.config.pad_id
        self.retrieved = retrieved
        self.first = min(model.config.cross_attention_layers) - 1
        plain = WholeSequences(model, self.is_token, None)
        x = model.dropout(embed(model.embedding, tokens))
        self.below = model.run_layers(x, plain, stop=self.first)
        self.attended = plain.attend(self.first, model.layers[self.first], self.below)
        self.matched = plain.matched
        self._projected: tuple[int, Tensor] | None = None

    def states(self, ks: Sequence[int]) -> list[tuple[Float[Tensor, "batch seq d_model"], Vote | None]]:
        """The normalised activations with the first k neighbours of each chunk, and their vote, for each k.

        Layer by layer, so that the keys and values of one layer alone are held.
        """
        model = self.model
        readings = [_FirstNeighbours(self, k) for k in ks]
        xs = [self.below] * len(ks)
        for index in range(self.first, len(model.layers)):
            xs = [
                model.run_layers(x, reading, index, index + 1)
                for x, reading in zip(xs, readings, strict=True)
            ]
        self._projected = None
        return [(model.norm(x), reading.vote()) for x, reading in zip(xs, readings, strict=True)]

    def keys_and_values(
        self, index: int, layer: DecoderLayer
    ) -> Float[Tensor, "batch chunk neighbour retrieved projected"]:
        """What the cross-attention of a layer makes of all neighbours."""
        if self._projected is None or self._projected[0] != index:
            assert layer.cross_attention is not None
            attention = layer.cross_attention.attention
            ranks = [attention.keys_and_values(encoded) for encoded in self.encoded.unbind(2)]
            self._projected = index, torch.stack(ranks, 2)
        return self._projected[1]

    @cached_property
    def encoded(self) -> Float[Tensor, "batch chunk neighbour retrieved d_encoder"]:
        """All neighbours; zeros where there is none."""
        neighbours, is_token = self.retrieved
        model, m, num_chunks = self.model, self.model.config.chunk_len, neighbours.shape[1]
        assert model.encoder is not None
        chunks = self.attended[:, : num_chunks * m].unflatten(1, (num_chunks, m))
        chunk_is_token = self.is_token[:, : num_chunks * m].unflatten(1, (num_chunks, m))
        # What is masked is padding, so that equal tokens are read alike.
        neighbours = neighbours.masked_fill(~is_token, model.config.pad_id)
        encoded = self.attended.new_zeros(*neighbours.shape, model.encoder.width)
        for rank in range(neighbours.shape[2]):
            # Chunks without a neighbour of this rank, such as incomplete ones, cost nothing.
            found = is_token[:, :, rank].any(-1)
            if not bool(found.any()):
                continue
            # Overlapping windows have the same chunks, and similar chunks the same neighbours.
            distinct, places = neighbours[:, :, rank][found].unique(dim=0, return_inverse=True)
            is_distinct = distinct != model.config.pad_id
            alone = model.encoder.alone(embed(model.neighbour_table, distinct), is_distinct)
            read = model.encoder.given(
                alone[places][None, :, None],
                is_distinct[places][None, :, None],
                chunks[found][None],
                chunk_is_token[found][None],
            )
            encoded[:, :, rank][found] = read[0, :, 0].to(encoded.dtype)
        return encoded

    @cached_property
    def voters(self) -> Voters:
        """The tokens of all neighbours as the pointer matches them."""
        neighbours, is_token = self.retrieved
        ranks = [slice(rank, rank + 1) for rank in range(neighbours.shape[2])]
        found = [self.model.voters(neighbours[:, :, rank], is_token[:, :, rank]) for rank in ranks]
        return Voters(
            torch.cat([voters.keys for voters in found], 2),
            torch.cat([voters.tokens for voters in found], 2),
            torch.cat([voters.is_voter for voters in found], 2),
        )


class _FirstNeighbours(WholeSequences):
    """Goes on where a shared reading ends, with the first k neighbours of each chunk; k may be 0."""

    def __init__(self, shared: SharedReading, k: int) -> None:
        neighbours, is_token = shared.retrieved
        retrieved = (neighbours[:, :, :k], is_token[:, :, :k]) if k else None
        super().__init__(shared.model, shared.is_token, retrieved)
        self.shared = shared
        self.matched = shared.matched

    def attend(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        return self.shared.attended if index == self.shared.first else super().attend(index, layer, x)

    def read_neighbours(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        if self.retrieved is None:
            return x
        is_token = self.retrieved[1]
        projected = self.shared.keys_and_values(index, layer)[:, :, : is_token.shape[2]]
        assert layer.cross_attention is not None
        read: Tensor = layer.cross_attention(x, projected, is_token, is_projected=True)
        return read

    def find_voters(self, neighbours: Tensor, is_token: Tensor) -> Voters:
        return self.shared.voters.at((slice(None), slice(None), slice(neighbours[0, 0].numel())))
