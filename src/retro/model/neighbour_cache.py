"""What chunked cross-attention remembers while decoding: the chunk in progress, and the neighbours of the chunk before."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from retro.model.chunked_cross_attention import ChunkedCrossAttention
from retro.model.positions import falling_distances
from retro.model.token_cache import mask_bias


class NeighbourCache:
    """Keys and values of the encoded neighbours that each sequence reads now, computed once for all tokens that read them.

    `recent` holds the last m activations at layer min(P) after self-attention, H_u in the paper, slot by slot in a ring.
    """

    def __init__(
        self,
        operators: Sequence[ChunkedCrossAttention],
        chunk_len: int,
        retrieved_len: int,
        batch: int,
        like: Tensor,
    ) -> None:
        self.operators, self.chunk_len, self.retrieved_len = operators, chunk_len, retrieved_len
        first = operators[0].attention
        self.recent = like.new_zeros(batch, chunk_len, first.width)
        self.recent_is_token = torch.zeros(batch, chunk_len, dtype=torch.bool, device=like.device)
        self.keys = [like.new_zeros(batch, first.num_heads, 0, first.head_dim) for _ in operators]
        self.values = [like.new_zeros(batch, first.num_heads, 0, first.head_dim) for _ in operators]
        self.is_token = torch.zeros(batch, 0, self.retrieved_len, dtype=torch.bool, device=like.device)
        distances = falling_distances(
            chunk_len, retrieved_len, chunk_len - 1 - operators[0].first_place, like
        )
        self.distance_keys = [
            operator.attention.distance_keys(distances) if operator.attention.has_positions else None
            for operator in operators
        ]
        self.firsts: list[int] = []
        self._refresh()

    def observe(self, turn: int, x: Float[Tensor, "batch d_model"], is_token: Sequence[bool]) -> None:
        """Keep the newest token's activations."""
        self.recent[:, turn % self.chunk_len] = x
        self.recent_is_token[:, turn % self.chunk_len] = torch.tensor(is_token)

    def chunks(
        self, turn: int, rows: Sequence[int]
    ) -> tuple[Float[Tensor, "rows m d_model"], Bool[Tensor, "rows m"]]:
        """The activations of the chunks that these sequences complete at this turn, and which of them are tokens."""
        order = torch.arange(turn + 1, turn + 1 + self.chunk_len, device=self.recent.device) % self.chunk_len
        return self.recent[list(rows)][:, order], self.recent_is_token[list(rows)][:, order]

    def store(
        self,
        rows: Sequence[int],
        encoded: Float[Tensor, "rows neighbour retrieved d_encoder"],
        is_token: Bool[Tensor, "rows neighbour retrieved"],
    ) -> None:
        """The encoded neighbours that these sequences read from now on."""
        k, index = encoded.shape[1], torch.tensor(rows, device=encoded.device)
        self._widen(k)
        self.is_token[index] = False
        self.is_token[index, :k] = is_token
        memory = encoded.flatten(1, 2)
        for operator, keys, values in zip(self.operators, self.keys, self.values, strict=True):
            attention = operator.attention
            keys[index, :, : memory.shape[1]] = attention.split_heads(attention.key(memory))
            values[index, :, : memory.shape[1]] = attention.split_heads(attention.value(memory))
        self._refresh()

    def clear(self, rows: Sequence[int]) -> None:
        """These sequences read nothing from now on."""
        if self.present_rows:
            self.is_token[list(rows)] = False
            self._refresh()

    def place(self, positions: Sequence[int]) -> None:
        """Tell each sequence's newest position on its chunk grid, which gives the first of its distances to what was retrieved."""
        self.firsts = [self.chunk_len - 1 - (position + 1) % self.chunk_len for position in positions]

    def attend(
        self, operator: ChunkedCrossAttention, x: Float[Tensor, "batch width"]
    ) -> Float[Tensor, "batch width"]:
        """What the newest token of each sequence reads through one of the operators; exactly nothing without a neighbour."""
        number, attention, batch = self.operators.index(operator), operator.attention, len(x)
        query = attention.scale(attention.query(operator.norm(x))).view(
            batch, attention.num_heads, attention.head_dim
        )
        logits = query.unsqueeze(2) @ self.keys[number].transpose(-1, -2) + self.bias[number]
        if attention.has_positions:
            by_neighbour = logits.view(batch, attention.num_heads, -1, self.retrieved_len)
            logits = (by_neighbour + self._positional(number, query).unsqueeze(2)).view(logits.shape)
        read: Tensor = attention.out((logits.softmax(-1) @ self.values[number]).view(batch, -1))
        return read if self.present_rows == batch else read * self.present

    def _positional(
        self, number: int, query: Float[Tensor, "batch heads head_dim"]
    ) -> Float[Tensor, "batch heads retrieved"]:
        """Logits by position in [N, F]; one slice of the distances when all sequences are at the same place of their chunks."""
        attention, keys = self.operators[number].attention, self.distance_keys[number]
        assert keys is not None
        if len(set(self.firsts)) == 1:
            keys = keys[:, self.firsts[0] : self.firsts[0] + self.retrieved_len]
            return attention.distance_logits(query.transpose(0, 1), keys).transpose(0, 1)
        windows = torch.tensor(self.firsts, device=query.device)[:, None, None] + torch.arange(
            self.retrieved_len, device=query.device
        )
        by_distance = attention.distance_logits(query.transpose(0, 1), keys).transpose(0, 1)
        return by_distance.gather(-1, windows.expand(-1, attention.num_heads, -1))

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these sequences only; one that is named twice goes on twice."""
        index = torch.tensor(rows, dtype=torch.long, device=self.recent.device)
        self.recent, self.recent_is_token, self.is_token = (
            self.recent[index],
            self.recent_is_token[index],
            self.is_token[index],
        )
        self.keys, self.values = (
            [tensor[index] for tensor in tensors] for tensors in (self.keys, self.values)
        )
        self._refresh()

    def _widen(self, k: int) -> None:
        """Room for k neighbours of each sequence; the new places are masked."""
        missing = k - self.is_token.shape[1]
        if missing > 0:
            pad = torch.nn.functional.pad
            self.is_token = pad(self.is_token, (0, 0, 0, missing))
            width = (0, 0, 0, missing * self.retrieved_len)
            self.keys, self.values = (
                [pad(tensor, width) for tensor in tensors] for tensors in (self.keys, self.values)
            )

    def _refresh(self) -> None:
        """What does not change until the next chunk: who reads at all, and each key's logits that no query changes."""
        flat = self.is_token.flatten(1)
        mask, present = mask_bias(flat, self.recent)[:, None, None], flat.any(1)
        self.bias = [
            op.attention.content_bias @ keys.transpose(-1, -2) + mask
            for op, keys in zip(self.operators, self.keys, strict=True)
        ]
        self.present, self.present_rows = present.to(self.recent.dtype)[:, None], int(present.sum())
