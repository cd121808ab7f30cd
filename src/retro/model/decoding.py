"""Incremental decoding: one token a step, equal to the full forward.

A prompt is read in one pass, through the same operators as in training. After it a token costs one row of each product; when it
completes a chunk, the encoder reads that chunk's neighbours and nothing else.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retro.errors import ConfigError, DataError
from retro.model.neighbour_cache import NeighbourCache
from retro.model.retro import Retro, embed
from retro.model.token_cache import TokenCache


class Decoding:
    """A batch of sequences in progress, each on its own chunk grid.

    The last token of a chunk already reads the chunk's own neighbours. So the neighbours must be there when that token is fed:
    `completing` names the sequences whose next token is such a one. With a `window` self-attention sees that many last tokens
    only, which is an approximation once a sequence is longer; the prompt itself is read whole.
    """

    def __init__(self, model: Retro, window: int = 0) -> None:
        if window < 0:
            raise ConfigError(f"window is {window}; expected a number of tokens, or 0 for all")
        self.model, self.window = model, window
        self._begin(0)

    @property
    def batch(self) -> int:
        return len(self.tokens.lengths)

    @property
    def completing(self) -> list[int]:
        """The sequences whose next token completes a chunk."""
        return [
            row
            for row, length in enumerate(self.tokens.lengths)
            if (length + 1) % self.model.config.chunk_len == 0
        ]

    @torch.inference_mode()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Begin with these prompts, and return the logits of the token after each; those of an empty prompt mean nothing.

        `neighbours` has as many chunks as the longest prompt; what lies beyond the complete chunks of a shorter one is not read.
        """
        self._begin(len(prompts))
        lengths, pad = [len(prompt) for prompt in prompts], self.model.config.pad_id
        longest = max(lengths)
        device = self.model.embedding.weight.device
        tokens = torch.tensor(
            [[*prompt, *[pad] * (longest - len(prompt))] for prompt in prompts],
            dtype=torch.long,
            device=device,
        )
        retrieved = self.model._check_neighbours(tokens, neighbours, neighbour_mask)
        self.tokens.fill(lengths, tokens != pad)
        if not longest:
            return torch.zeros(len(prompts), self.model.config.vocab_size, device=device)
        x = self._read(tokens, retrieved)
        last = x[torch.arange(len(prompts), device=device), torch.tensor(lengths, device=device) - 1]
        return self.model.read_out(self.model.norm(last))

    @torch.inference_mode()
    def step(
        self,
        tokens: Sequence[int],
        neighbours: Int[Tensor, "complete neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "complete neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Feed the next token of every sequence, and return the logits of the one after.

        `neighbours` are those of the sequences in `completing`, in that order; without them these chunks have none.
        """
        model, completing = self.model, self.completing
        retrieved = self._check_step(tokens, completing, neighbours, neighbour_mask)
        is_token = [token != model.config.pad_id for token in tokens]
        self.tokens.append(is_token)
        x = embed(model.embedding, torch.tensor(tokens, device=model.embedding.weight.device))
        for index, layer in enumerate(model.layers):
            x = x + self.tokens.attend(index, layer.self_attention.norm(x))
            if layer.cross_attention is not None and self.neighbours is not None:
                if index == self._first:
                    self._observe(x, is_token, completing, retrieved)
                if self.neighbours.present_rows:
                    x = x + self.neighbours.attend(layer.cross_attention, x)
            x = layer.feed_forward(x)
        return model.read_out(model.norm(x))

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        """Go on with these sequences only; one that is named twice goes on twice."""
        self.tokens.select(rows)
        if self.neighbours is not None:
            self.neighbours.select(rows)

    @torch.inference_mode()
    def _begin(self, batch: int) -> None:
        model, like = self.model, self.model.embedding.weight.detach()
        self.tokens = TokenCache(
            [layer.self_attention.attention for layer in model.layers], batch, self.window, like
        )
        read_len = model.config.read_places.stop - model.config.read_places.start
        operators = [layer.cross_attention for layer in model.layers if layer.cross_attention is not None]
        self.neighbours = (
            NeighbourCache(operators, model.config.chunk_len, read_len, batch, like) if operators else None
        )
        self._first = min(model.config.cross_attention_layers, default=0) - 1

    def _read(self, tokens: Tensor, retrieved: tuple[Tensor, Tensor] | None) -> Tensor:
        """The full forward over the prompts, which leaves keys, values and activations in the caches."""
        model, is_token = self.model, tokens != self.model.config.pad_id
        x, encoded = embed(model.embedding, tokens), None
        for index, layer in enumerate(model.layers):
            # The full path keeps its own way of attending; making keys and values once more costs little, once a prompt.
            attention, normed = layer.self_attention.attention, layer.self_attention.norm(x)
            self.tokens.store(
                index,
                attention.split_heads(attention.key(normed)),
                attention.split_heads(attention.value(normed)),
            )
            x = layer.self_attention(x, is_token)
            if layer.cross_attention is not None and self.neighbours is not None:
                if index == self._first:
                    self._observe_prompts(x, is_token)
                if retrieved is not None:
                    if encoded is None:
                        encoded = model.encode(*retrieved, x, is_token)
                        self._store_last(encoded, retrieved[1])
                    x = layer.cross_attention(x, encoded, retrieved[1])
            x = layer.feed_forward(x)
        return x

    def _observe(
        self,
        x: Tensor,
        is_token: Sequence[bool],
        completing: Sequence[int],
        retrieved: tuple[Tensor, Tensor] | None,
    ) -> None:
        """At layer min(P): keep the activations, and read the neighbours of the chunks that are complete now."""
        assert self.neighbours is not None
        turn = self.tokens.turn - 1
        self.neighbours.observe(turn, x, is_token)
        if retrieved is not None:
            chunks, chunk_is_token = self.neighbours.chunks(turn, completing)
            values, mask = retrieved
            encoded = self.model.encode(values[:, None], mask[:, None], chunks, chunk_is_token)
            self.neighbours.store(completing, encoded[:, 0], mask)
        elif completing:
            self.neighbours.clear(completing)
        self.neighbours.place([length - 1 for length in self.tokens.lengths])

    def _observe_prompts(self, x: Tensor, is_token: Tensor) -> None:
        """Keep the last activations of every prompt as if they had come one by one."""
        assert self.neighbours is not None
        m, turn = self.model.config.chunk_len, self.tokens.turn
        for row, length in enumerate(self.tokens.lengths):
            kept = min(m, length)
            ring = torch.arange(turn - kept, turn, device=x.device) % m
            self.neighbours.recent[row, ring] = x[row, length - kept : length]
            self.neighbours.recent_is_token[row, ring] = is_token[row, length - kept : length]

    def _store_last(self, encoded: Tensor, is_token: Tensor) -> None:
        """Of every prompt with a complete chunk, the neighbours that the next tokens read."""
        assert self.neighbours is not None
        last = {
            row: length // self.model.config.chunk_len - 1 for row, length in enumerate(self.tokens.lengths)
        }
        rows = [row for row, chunk in last.items() if chunk >= 0]
        chunks = [last[row] for row in rows]
        self.neighbours.store(rows, encoded[rows, chunks], is_token[rows, chunks])

    def _check_step(
        self, tokens: Sequence[int], completing: Sequence[int], neighbours: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        if len(tokens) != self.batch:
            raise DataError(f"{len(tokens)} tokens were fed to {self.batch} sequences; expected one each")
        if neighbours is None or neighbours.numel() == 0:
            return None
        if self.neighbours is None:
            raise ConfigError(
                "neighbours were given to a model without cross-attention layers; expected a RETRO config, or no neighbours"
            )
        if (len(neighbours), neighbours.shape[2]) != (len(completing), self.model.config.retrieved_len):
            raise DataError(
                f"neighbours of {len(neighbours)} chunks with {neighbours.shape[2]} tokens each were fed; "
                f"expected {len(completing)} chunks with {self.model.config.retrieved_len}"
            )
        neighbours = neighbours[..., self.model.config.read_places]
        is_token = neighbours != self.model.config.pad_id
        return neighbours, is_token if mask is None else is_token & mask[..., None]
