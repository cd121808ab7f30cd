"""A decoder layer, and how layers read the past and the neighbours of whole sequences."""

import math
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from retro.config import ModelConfig, RetrievalConfig
from retro.model.attention import FeedForward, SelfAttention
from retro.model.chunked_cross_attention import ChunkedCrossAttention
from retro.model.pointer import Vote, Voters, in_place, rows_of

if TYPE_CHECKING:
    from retro.model.retro import Retro


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention to neighbours if the layer has it, and feed-forward."""

    def __init__(self, config: ModelConfig, retrieval: RetrievalConfig | None) -> None:
        super().__init__()
        self.self_attention = SelfAttention(
            config.d_model, config.num_heads, config.head_dim, causal=True, dropout=config.dropout
        )
        # Only the layers in P have it.
        self.cross_attention: ChunkedCrossAttention | None = None
        if retrieval is not None:
            self.cross_attention = ChunkedCrossAttention(
                config.d_model,
                retrieval.encoder.d_model,
                config.num_heads,
                config.head_dim,
                config.chunk_len,
                retrieval.places_read(config.chunk_len).start,
                retrieval.cross_attention_positions,
                config.dropout,
            )
        self.feed_forward = FeedForward(config.d_model, config.ffw_dim, config.dropout)


@runtime_checkable
class Reading(Protocol):
    """How a layer reads the past and the neighbours: whole sequences at once, or
    token by token."""

    def attend(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        """ATTN of the layer with this index, residual."""
        ...

    def read_neighbours(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        """CCA of a layer that has it, residual; without neighbours `x` is unchanged."""
        ...


class WholeSequences:
    """Whole sequences at once, as in training and scoring."""

    def __init__(self, model: "Retro", is_token: Tensor, retrieved: tuple[Tensor, Tensor] | None) -> None:
        """`retrieved` holds the neighbours to read, and which of their tokens are real."""
        self.model = model
        self.is_token = is_token
        self.retrieved = retrieved
        self.encoded: Tensor | None = None
        self.matched: Tensor | None = None
        """The states that the pointer compares with those of the neighbours."""
        self.voters: Voters | None = None

    def attend(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        attended: Tensor = layer.self_attention(x, self.is_token)
        if index + 1 == self.model.config.pointer_layer:
            self.matched = attended
        return attended

    def read_neighbours(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        # RETRO[OFF]: cross-attention is skipped, and the layer is a plain one.
        if self.retrieved is None:
            return x
        neighbours, is_neighbour_token = self.retrieved
        if self.encoded is None:
            # Only at layer min(P): the encoder is conditioned on the activations after this
            # layer's self-attention, and later layers read the same encoding.
            self.encoded = self.model.encode(neighbours, is_neighbour_token, x, self.is_token)
        assert layer.cross_attention is not None
        read: Tensor = layer.cross_attention(x, self.encoded, is_neighbour_token)
        return read

    def vote(self) -> Vote | None:
        """What the neighbours vote for at every position, once all layers have been run; None if there is no
        pointer, or nothing to read."""
        pointer = self.model.pointer
        if pointer is None or self.retrieved is None:
            return None
        assert self.matched is not None
        m, (_, length, _) = self.model.config.chunk_len, self.matched.shape
        self.voters = voters = self.find_voters(*self.retrieved)
        # In full precision, as similarities are multiplied by a large number.
        with torch.autocast(self.matched.device.type, enabled=False):
            queries = rows_of(pointer.standardise(self.matched), m, voters.tokens.shape[1])
            return in_place(pointer.vote(queries, voters.keys, voters.tokens, voters.is_voter), m, length)

    def find_voters(self, neighbours: Tensor, is_token: Tensor) -> Voters:
        return self.model.voters(neighbours, is_token)


class Watched(WholeSequences):
    """Whole sequences, with a look at what their cross-attention reads."""

    def __init__(self, model: "Retro", is_token: Tensor, retrieved: tuple[Tensor, Tensor] | None) -> None:
        super().__init__(model, is_token, retrieved)
        self.attention: list[Tensor] = []
        """Of each layer, the part of the attention that goes to each neighbour (batch, seq, neighbour)."""

    def read_neighbours(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        read = super().read_neighbours(index, layer, x)
        if self.retrieved is not None:
            assert layer.cross_attention is not None
            assert self.encoded is not None
            self.attention.append(layer.cross_attention.attention_to(x, self.encoded, self.retrieved[1]))
        return read


def embed(table: nn.Embedding, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
    """Token vectors of unit variance.

    The table is the output matrix too, so its rows have about unit length; the factor
    makes up for that.
    """
    embedded: Tensor = table(tokens) * math.sqrt(table.embedding_dim)
    return embedded
