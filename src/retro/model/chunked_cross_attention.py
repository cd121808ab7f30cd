"""Chunked cross-attention: a sequence reads its neighbours without looking ahead."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from retro.model.attention import RelativeAttention, RMSNorm, falling_distances, padding_in


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
        encoded: Float[Tensor, "batch chunk neighbour retrieved memory"],
        is_token: Bool[Tensor, "batch chunk neighbour retrieved"],
        is_projected: bool = False,
    ) -> Float[Tensor, "batch seq d_model"]:
        """`is_token` is true at the tokens of real neighbours; with `is_projected` `encoded` holds the keys
        and values that the attention has made of them."""
        return x + self.read(x, encoded, is_token, is_projected)

    def read(
        self,
        x: Float[Tensor, "batch seq d_model"],
        encoded: Float[Tensor, "batch chunk neighbour retrieved memory"],
        is_token: Bool[Tensor, "batch chunk neighbour retrieved"],
        is_projected: bool = False,
    ) -> Float[Tensor, "batch seq d_model"]:
        """What is added to the residual stream."""
        if encoded.shape[1] == 0:
            return torch.zeros_like(x)
        rows, memory, distances, is_key = self._operands(x, encoded, is_token)
        read = self.attention.read(
            rows, memory, distances, padding_in(is_key), repeats=encoded.shape[2], is_projected=is_projected
        )
        # Over masked keys alone the softmax would be uniform, so a chunk without
        # neighbours is set to zero.
        read = (read * is_key.any(-1)[:, None, None]).unflatten(0, encoded.shape[:2])
        return self._to_positions(read, x.shape[1])

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
        rows, memory, distances, is_key = self._operands(x, encoded, is_token)
        weights = self.attention.weights(rows, memory, distances, is_key, repeats=num_neighbours)
        mass = weights.mean(1).unflatten(-1, (num_neighbours, -1)).sum(-1)
        mass = (mass * is_key.any(-1)[:, None, None]).unflatten(0, encoded.shape[:2])
        return self._to_positions(mass, x.shape[1])

    def _operands(
        self, x: Tensor, encoded: Tensor, is_token: Tensor
    ) -> tuple[
        Float[Tensor, "batch_chunk m d_model"],
        Float[Tensor, "batch_chunk key memory"],
        Float[Tensor, " distance"],
        Bool[Tensor, "batch_chunk key"],
    ]:
        """Each chunk's queries, all tokens of its neighbours, the distances, and which tokens are real."""
        num_chunks, retrieved_len = encoded.shape[1], encoded.shape[3]
        m, seq_len = self.chunk_len, x.shape[1]
        # Drop the first m − 1 positions and cut the rest into rows of m: row u then holds
        # exactly the positions that read chunk u's neighbours. The last row is padded.
        attending = F.pad(self.norm(x[:, m - 1 :]), (0, 0, 0, num_chunks * m - (seq_len - m + 1)))
        rows = rearrange(attending, "batch (chunk m) d -> (batch chunk) m d", m=m)
        # All neighbours of a chunk share one softmax.
        memory = rearrange(
            encoded, "batch chunk neighbour retrieved d -> (batch chunk) (neighbour retrieved) d"
        )
        is_key = rearrange(is_token, "batch chunk neighbour retrieved -> (batch chunk) (neighbour retrieved)")
        # d(i, i') = i − i' + m − 1, the same for every neighbour, and one more.
        distances = falling_distances(m, retrieved_len + 1, m - 1 - self.first_place, like=x)
        return rows, memory, distances, is_key

    def _to_positions(
        self, rows: Float[Tensor, "batch chunk m width"], seq_len: int
    ) -> Float[Tensor, "batch seq width"]:
        """Drop the padding of the last row, and put the first m − 1 positions back as zeros."""
        m = self.chunk_len
        flat = rearrange(rows, "batch chunk m d -> batch (chunk m) d")[:, : seq_len - m + 1]
        return F.pad(flat, (0, 0, m - 1, 0))
