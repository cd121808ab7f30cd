"""RETRO itself: Algorithm 1 of the paper. Without cross-attention layers it is the baseline transformer."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from retro.config import ModelConfig
from retro.errors import ConfigError, DataError
from retro.model.attention import FeedForward, RMSNorm, SelfAttention
from retro.model.chunked_cross_attention import ChunkedCrossAttention
from retro.model.encoder import Encoder
from retro.model.start import initialise


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, retrieves: bool) -> None:
        super().__init__()
        self.self_attention = SelfAttention(
            config.d_model, config.num_heads, config.head_dim, causal=True, dropout=config.dropout
        )
        self.cross_attention = (
            ChunkedCrossAttention(
                config.d_model,
                config.encoder.d_model,
                config.num_heads,
                config.head_dim,
                config.chunk_len,
                config.read_places.start,
                config.cross_attention_positions,
                config.dropout,
            )
            if retrieves
            else None
        )
        self.feed_forward = FeedForward(config.d_model, config.ffw_dim, config.dropout)


class Retro(nn.Module):
    """A decoder that reads neighbours through chunked cross-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        numbers = range(1, config.num_layers + 1)
        layers = nn.ModuleList(
            DecoderLayer(config, number in config.cross_attention_layers) for number in numbers
        )
        self.layers = cast(Sequence[DecoderLayer], layers)
        self.norm = RMSNorm(config.d_model)
        self.encoder_embedding: nn.Embedding | None = None
        self.encoder: Encoder | None = None
        if config.uses_retrieval:
            self.encoder = Encoder(
                config.encoder, config.d_model, config.cross_attention_positions, config.read_places.start
            )
            if not config.share_embeddings:
                self.encoder_embedding = nn.Embedding(config.vocab_size, config.encoder.d_model)
        initialise(self)

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Logits of the next token at every position.

        `neighbours` holds [N, F] for each complete chunk, padded with the config's pad id; `neighbour_mask` is true where a
        neighbour is real. Without neighbours this is RETRO[OFF], or the baseline.
        """
        return self.read_out(self.hidden(tokens, neighbours, neighbour_mask))

    def hidden(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq d_model"]:
        """The normalised activations that `read_out` turns into logits."""
        is_token = tokens != self.config.pad_id
        x = self.dropout(embed(self.embedding, tokens))
        retrieved = self._check_neighbours(tokens, neighbours, neighbour_mask)
        encoded = None
        for layer in self.layers:
            x = layer.self_attention(x, is_token)
            if retrieved is not None and layer.cross_attention is not None:
                if encoded is None:
                    encoded = self.encode(*retrieved, x, is_token)
                x = layer.cross_attention(x, encoded, retrieved[1])
            x = layer.feed_forward(x)
        normed: Tensor = self.norm(x)
        return normed

    def read_out(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits; the output matrix is the input embedding."""
        return F.linear(hidden, self.embedding.weight)

    def encode(self, neighbours: Tensor, is_neighbour_token: Tensor, x: Tensor, is_token: Tensor) -> Tensor:
        """The encoded neighbours of complete chunks; `x` are the activations at layer min(P) after self-attention."""
        assert self.encoder is not None
        m, num_chunks = self.config.chunk_len, neighbours.shape[1]
        chunks = rearrange(x[:, : num_chunks * m], "batch (chunk m) d -> batch chunk m d", m=m)
        chunk_is_token = rearrange(is_token[:, : num_chunks * m], "batch (chunk m) -> batch chunk m", m=m)
        table = self.embedding if self.encoder_embedding is None else self.encoder_embedding
        encoded: Tensor = self.encoder(embed(table, neighbours), is_neighbour_token, chunks, chunk_is_token)
        return encoded

    def _check_neighbours(
        self, tokens: Tensor, neighbours: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """The neighbours and which of their tokens may be attended, or nothing if there is nothing to read."""
        if neighbours is None:
            return None
        if self.encoder is None:
            raise ConfigError(
                "neighbours were given to a model without cross-attention layers; expected a RETRO config, or no neighbours"
            )
        expected = (tokens.shape[0], tokens.shape[1] // self.config.chunk_len, self.config.retrieved_len)
        found = (neighbours.shape[0], neighbours.shape[1], neighbours.shape[3])
        if found != expected:
            raise DataError(
                f"neighbours have (batch, complete chunks, retrieved length) {found}; expected {expected}"
            )
        if neighbours.numel() == 0:
            return None
        neighbours = neighbours[..., self.config.read_places]
        is_token = neighbours != self.config.pad_id
        return neighbours, is_token if mask is None else is_token & mask[..., None]

    def save(self, path: str | Path) -> None:
        """Write weights and config into a folder; `retro.load` reads it back."""
        from retro.model.checkpoint import save

        save(self, Path(path))

    def num_parameters(self, embeddings: bool = False) -> int:
        """How many numbers are learned; the paper counts without the embedding matrices."""
        tables = {id(table.weight) for table in (self.embedding, self.encoder_embedding) if table is not None}
        return sum(p.numel() for p in self.parameters() if embeddings or id(p) not in tables)


def embed(table: nn.Embedding, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
    """Token vectors of unit variance: the table's rows have unit length, as it is the output matrix too."""
    embedded: Tensor = table(tokens) * math.sqrt(table.embedding_dim)
    return embedded
