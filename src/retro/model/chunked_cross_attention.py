"""Chunked cross-attention: a sequence reads its neighbours without looking ahead."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from retro.model.attention import RelativeAttention, RMSNorm, falling_distances, masked_softmax, shift


class ChunkedCrossAttention(nn.Module):
    """The residual operator CCA of the paper.

    The last token of chunk u and the first m − 1 tokens of chunk u + 1 attend to the encoded
    neighbours of chunk u, over time and neighbours in one softmax. This is causal: chunk u
    is complete at its last token. Positions without a real neighbour, which include the
    first m − 1, get exactly zero.
    """

    def __init__(
        self,
        width: int,
        memory_width: int,
        num_heads: int,
        head_dim: int,
        chunk_len: int,
        first_place: int = 0,
        positions: bool = True,
        dropout: float = 0.0,
    ) -> None:
        """`first_place` is the first place of [N, F] that is read; m if only the
        continuation is."""
        super().__init__()
        self.chunk_len = chunk_len
        self.first_place = first_place
        self.norm = RMSNorm(width)
        self.attention = RelativeAttention(width, memory_width, num_heads, head_dim, positions, dropout)

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        encoded: Float[Tensor, "batch chunk neighbour retrieved d_encoder"],
        is_token: Bool[Tensor, "batch chunk neighbour retrieved"],
    ) -> Float[Tensor, "batch seq d_model"]:
        """`is_token` is true at the tokens of real neighbours."""
        return x + self.read(x, encoded, is_token)

    def read(
        self,
        x: Float[Tensor, "batch seq d_model"],
        encoded: Float[Tensor, "batch chunk neighbour retrieved d_encoder"],
        is_token: Bool[Tensor, "batch chunk neighbour retrieved"],
    ) -> Float[Tensor, "batch seq d_model"]:
        """What is added to the residual stream."""
        if encoded.shape[1] == 0:
            return torch.zeros_like(x)
        weights, value, is_read = self._attend(x, encoded, is_token)
        # Over masked keys alone the softmax would be uniform, so a chunk without
        # neighbours is set to zero.
        return self._to_positions(self.attention.merge_heads(weights @ value) * is_read, x.shape[1])

    def attention_to(
        self,
        x: Float[Tensor, "batch seq d_model"],
        encoded: Float[Tensor, "batch chunk neighbour retrieved d_encoder"],
        is_token: Bool[Tensor, "batch chunk neighbour retrieved"],
    ) -> Float[Tensor, "batch seq neighbour"]:
        """The part of the attention that each neighbour gets, as a mean over heads."""
        num_neighbours = encoded.shape[2]
        if encoded.shape[1] == 0:
            return x.new_zeros(*x.shape[:2], num_neighbours)
        weights, _, is_read = self._attend(x, encoded, is_token)
        mass = weights.mean(2).unflatten(-1, (num_neighbours, -1)).sum(-1)
        return self._to_positions(mass * is_read, x.shape[1])

    def _attend(
        self, x: Tensor, encoded: Tensor, is_token: Tensor
    ) -> tuple[
        Float[Tensor, "batch chunk heads m key"],
        Float[Tensor, "batch chunk heads key head_dim"],
        Bool[Tensor, "batch chunk 1 1"],
    ]:
        """Weights over all tokens of a chunk's neighbours, their values, and whether there are any."""
        num_chunks, num_neighbours, retrieved_len = encoded.shape[1:4]
        m, seq_len = self.chunk_len, x.shape[1]
        attention = self.attention

        # Drop the first m − 1 positions and cut the rest into rows of m: row u then holds
        # exactly the positions that read chunk u's neighbours. The last row is padded.
        attending = F.pad(self.norm(x[:, m - 1 :]), (0, 0, 0, num_chunks * m - (seq_len - m + 1)))
        attending = rearrange(attending, "batch (chunk m) d -> batch chunk m d", chunk=num_chunks)
        query = attention.scale(attention.split_heads(attention.query(attending)))
        memory = rearrange(
            encoded, "batch chunk neighbour retrieved d -> batch chunk (neighbour retrieved) d"
        )
        key, value = (
            attention.split_heads(attention.key(memory)),
            attention.split_heads(attention.value(memory)),
        )

        logits = attention.content_logits(query, key)
        if attention.has_positions:
            # d(i, i') = i − i' + m − 1, the same for every neighbour, so it is
            # computed once for all.
            distances = falling_distances(m, retrieved_len, m - 1 - self.first_place, like=x)
            positional = shift(
                attention.distance_logits(query, attention.distance_keys(distances)), retrieved_len
            )
            logits = (
                logits.unflatten(-1, (num_neighbours, retrieved_len)) + positional.unsqueeze(-2)
            ).flatten(-2)
        mask = rearrange(is_token, "batch chunk neighbour retrieved -> batch chunk 1 1 (neighbour retrieved)")
        # All neighbours of a chunk share one softmax.
        return masked_softmax(logits, mask), value, mask.any(-1).squeeze(2)[..., None]

    def _to_positions(
        self, rows: Float[Tensor, "batch chunk m width"], seq_len: int
    ) -> Float[Tensor, "batch seq width"]:
        """Drop the padding of the last row, and put the first m − 1 positions back as zeros."""
        m = self.chunk_len
        flat = rearrange(rows, "batch chunk m d -> batch (chunk m) d")[:, : seq_len - m + 1]
        return F.pad(flat, (0, 0, m - 1, 0))
