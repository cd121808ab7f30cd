"""The encoder of the retrieved neighbours: bidirectional, conditioned on the chunk that
retrieved them."""

from collections.abc import Sequence
from typing import cast

from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from retro.config import EncoderConfig
from retro.model.attention import (
    FeedForward,
    RelativeAttention,
    RMSNorm,
    SelfAttention,
    falling_distances,
    padding_in,
)


class EncoderCrossAttention(nn.Module):
    """The residual operator CA of the encoder: a neighbour attends to the chunk
    that retrieved it."""

    def __init__(
        self,
        width: int,
        memory_width: int,
        num_heads: int,
        head_dim: int,
        positions: bool = True,
        first_place: int = 0,
    ) -> None:
        super().__init__()
        self.first_place = first_place
        self.norm = RMSNorm(width)
        self.attention = RelativeAttention(width, memory_width, num_heads, head_dim, positions)

    def forward(
        self,
        x: Float[Tensor, "batch chunk neighbour retrieved d_encoder"],
        chunks: Float[Tensor, "batch chunk m d_model"],
        is_token: Bool[Tensor, "batch chunk m"],
    ) -> Float[Tensor, "batch chunk neighbour retrieved d_encoder"]:
        m, (num_neighbours, retrieved_len) = chunks.shape[-2], x.shape[2:4]
        # All neighbours of a chunk attend to the same chunk, so they form one
        # long row of queries.
        rows = rearrange(
            self.norm(x), "batch chunk neighbour retrieved d -> (batch chunk) (neighbour retrieved) d"
        )
        read = self.attention.read(
            rows,
            chunks.flatten(0, 1),
            # d_enc(i', i) = i' − i, the same for every neighbour, and one more.
            falling_distances(retrieved_len, m + 1, self.first_place, like=x),
            padding_in(is_token.flatten(0, 1)),
            groups=num_neighbours,
        )
        return x + read.view(x.shape)


class EncoderLayer(nn.Module):
    """Self-attention within a neighbour, attention to the chunk if the layer has
    it, feed-forward."""

    def __init__(
        self, config: EncoderConfig, decoder_width: int, conditioned: bool, positions: bool, first_place: int
    ) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config.d_model, config.num_heads, config.head_dim, causal=False)
        self.cross_attention: EncoderCrossAttention | None = None
        if conditioned:
            self.cross_attention = EncoderCrossAttention(
                config.d_model, decoder_width, config.num_heads, config.head_dim, positions, first_place
            )
        self.feed_forward = FeedForward(config.d_model, config.ffw_dim)


class Encoder(nn.Module):
    """ENCODER of Algorithm 1, for all neighbours of all chunks at once."""

    def __init__(
        self, config: EncoderConfig, decoder_width: int, positions: bool = True, first_place: int = 0
    ) -> None:
        super().__init__()
        self.width = config.d_model
        # Layers are numbered from 1, as in the paper's P_enc.
        layers = nn.ModuleList(
            EncoderLayer(
                config, decoder_width, number in config.cross_attention_layers, positions, first_place
            )
            for number in range(1, config.num_layers + 1)
        )
        self.layers = cast(Sequence[EncoderLayer], layers)
        # The decoder's residual stream is not normalised; one norm serves all
        # layers that read it.
        self.condition_norm = RMSNorm(decoder_width) if config.cross_attention_layers else None
        self.norm = RMSNorm(config.d_model)

    def forward(
        self,
        x: Float[Tensor, "batch chunk neighbour retrieved d_encoder"],
        is_token: Bool[Tensor, "batch chunk neighbour retrieved"],
        chunks: Float[Tensor, "batch chunk m d_model"],
        chunk_is_token: Bool[Tensor, "batch chunk m"],
    ) -> Float[Tensor, "batch chunk neighbour retrieved d_encoder"]:
        """Encode the embedded neighbours `x`; `chunks` are the activations of the
        chunks that retrieved them."""
        return self.given(self.alone(x, is_token), is_token, chunks, chunk_is_token)

    def alone(
        self,
        x: Float[Tensor, "*batch retrieved d_encoder"],
        is_token: Bool[Tensor, "*batch retrieved"],
    ) -> Float[Tensor, "*batch retrieved d_encoder"]:
        """Neighbours as far as they are encoded before they attend to a chunk: whoever retrieved them."""
        for layer in self.layers:
            x = layer.self_attention(x, is_token)
            if layer.cross_attention is not None:
                break
            x = layer.feed_forward(x)
        return x

    def given(
        self,
        x: Float[Tensor, "batch chunk neighbour retrieved d_encoder"],
        is_token: Bool[Tensor, "batch chunk neighbour retrieved"],
        chunks: Float[Tensor, "batch chunk m d_model"],
        chunk_is_token: Bool[Tensor, "batch chunk m"],
    ) -> Float[Tensor, "batch chunk neighbour retrieved d_encoder"]:
        """The rest, from what `alone` gives on."""
        # Normalised once, not in every layer that reads it.
        if self.condition_norm is not None:
            chunks = self.condition_norm(chunks)
        conditioned = [layer.cross_attention is not None for layer in self.layers]
        first = conditioned.index(True) if any(conditioned) else len(self.layers)
        for number, layer in enumerate(self.layers[first:]):
            if number:
                x = layer.self_attention(x, is_token)
            if layer.cross_attention is not None:
                x = layer.cross_attention(x, chunks, chunk_is_token)
            x = layer.feed_forward(x)
        encoded: Tensor = self.norm(x)
        return encoded
