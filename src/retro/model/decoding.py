"""Incremental decoding: one token a step, with the same results as the full forward pass.

A prompt is read in one pass, through the same operators as in training. After that, a
token costs one row of each matrix product. Only a token that completes a chunk runs the
encoder, and only on that chunk's neighbours. Both run the model's own loop over its
layers, each with its own `Reading`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retro.errors import ConfigError, DataError
from retro.model.caches import NeighbourCache, TokenCache
from retro.model.layers import DecoderLayer, WholeSequences, embed
from retro.model.pointer import Vote
from retro.model.protocol import Decoding
from retro.model.voter_cache import VoterCache

if TYPE_CHECKING:
    from retro.model.retro import Retro


class RetroDecoding:
    """A batch of sequences in progress, each on its own chunk grid.

    The last token of a chunk already reads that chunk's neighbours, so they must be fed with
    it: `completing` names the sequences whose next token completes a chunk. With a `window`,
    self-attention sees only the last `window` tokens, an approximation once a sequence is
    longer; the prompt itself is read whole.
    """

    def __init__(self, model: "Retro", window: int = 0) -> None:
        if window < 0:
            raise ConfigError(f"window is {window}; expected a number of tokens, or 0 for all")
        self.model = model
        self.window = window
        self._begin(0)

    @property
    def batch(self) -> int:
        return len(self.tokens.lengths)

    @property
    def completing(self) -> list[int]:
        """The sequences whose next token completes a chunk."""
        m = self.model.config.chunk_len
        return [row for row, length in enumerate(self.tokens.lengths) if (length + 1) % m == 0]

    @torch.inference_mode()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Begin with these prompts, and return the logits of the token after each.

        The logits of an empty prompt are meaningless. `neighbours` has as many chunks as the
        longest prompt; in a shorter one, those beyond its complete chunks are not read.
        """
        model, device = self.model, self.model.device
        self._begin(len(prompts))
        lengths = [len(prompt) for prompt in prompts]
        longest, pad = max(lengths), model.config.pad_id
        padded = [[*prompt, *[pad] * (longest - len(prompt))] for prompt in prompts]
        tokens = torch.tensor(padded, dtype=torch.long, device=device)
        retrieved = model.check_neighbours(tokens, neighbours, neighbour_mask)
        self.tokens.fill(lengths, tokens != pad)
        if not longest:
            return torch.zeros(len(prompts), model.config.vocab_size, device=device)
        reading = _Prompts(self, tokens != pad, retrieved)
        x = model.run_layers(embed(model.embedding, tokens), reading)
        # Prompts are padded on the right, so the last token of each is at its own position.
        places = (torch.arange(len(prompts), device=device), torch.tensor(lengths, device=device) - 1)
        states, vote = model.norm(x[places]), reading.vote()
        return model.mix(model.read_out(states), states, None if vote is None else vote.at(places))

    @torch.inference_mode()
    def step(
        self,
        tokens: Sequence[int],
        neighbours: Int[Tensor, "complete neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "complete neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Feed the next token of every sequence, and return the logits of the one after.

        `neighbours` belong to the sequences in `completing`, in that order; if None, the
        chunks just completed have none.
        """
        model, completing = self.model, self.completing
        retrieved = self._check_step(tokens, completing, neighbours, neighbour_mask)
        is_token = [token != model.config.pad_id for token in tokens]
        self.tokens.append(is_token)
        x = embed(model.embedding, torch.tensor(tokens, device=model.device))
        reading = _NewestTokens(self, is_token, completing, retrieved)
        states = model.norm(model.run_layers(x, reading))
        return model.mix(model.read_out(states), states, reading.vote())

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences; one that is named twice is duplicated."""
        self.tokens.select(rows)
        if self.neighbours is not None:
            self.neighbours.select(rows)
        if self.voters is not None:
            self.voters.select(rows)

    @torch.inference_mode()
    def join(self, other: Decoding) -> None:
        """Take the sequences of another decoding of this model in, behind one's own."""
        if not isinstance(other, RetroDecoding) or other.model is not self.model:
            raise ConfigError("a decoding of another model was to join; expected one of the same")
        if other.window != self.window:
            raise ConfigError(
                f"a decoding with a window of {other.window} was to join; expected {self.window}, as here"
            )
        # Before the tokens are joined: what a ring holds is placed by its own clock.
        later = self.tokens.turn - other.tokens.turn
        self.tokens.join(other.tokens)
        if self.neighbours is not None and other.neighbours is not None:
            self.neighbours.join(other.neighbours, later)
        if self.voters is not None and other.voters is not None:
            self.voters.join(other.voters)

    @torch.inference_mode()
    def _begin(self, batch: int) -> None:
        model, like = self.model, self.model.embedding.weight.detach()
        attentions = [layer.self_attention.attention for layer in model.layers]
        self.tokens = TokenCache(attentions, batch, self.window, like)
        self.neighbours: NeighbourCache | None = None
        retrieval, m = model.config.retrieval, model.config.chunk_len
        if retrieval is not None:
            operators = [layer.cross_attention for layer in model.layers if layer.cross_attention is not None]
            places = retrieval.places_read(m)
            self.neighbours = NeighbourCache(operators, m, places.stop - places.start, batch, like)
        self.voters = None if model.pointer is None else VoterCache(model.pointer, batch, like)

    def _check_step(
        self, tokens: Sequence[int], completing: Sequence[int], neighbours: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        if len(tokens) != self.batch:
            raise DataError(f"{len(tokens)} tokens were fed to {self.batch} sequences; expected one each")
        if neighbours is None or neighbours.numel() == 0:
            return None
        # By hand, as neighbours of one chunk would broadcast over several.
        expected = (len(completing), self.model.config.retrieved_len)
        if self.neighbours is not None and (len(neighbours), neighbours.shape[2]) != expected:
            raise DataError(
                f"neighbours of {len(neighbours)} chunks with {neighbours.shape[2]} tokens each were fed; "
                f"expected {expected[0]} chunks with {expected[1]}"
            )
        return self.model.readable(neighbours, mask)


class _Prompts(WholeSequences):
    """Reads whole prompts, as in training, and leaves keys, values and activations in the
    caches."""

    def __init__(
        self, decoding: RetroDecoding, is_token: Tensor, retrieved: tuple[Tensor, Tensor] | None
    ) -> None:
        super().__init__(decoding.model, is_token, retrieved)
        self.tokens = decoding.tokens
        self.neighbours = decoding.neighbours
        self.kept_voters = decoding.voters
        self.observed = False

    def attend(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        # Keys and values are computed here a second time. That is cheap, as it happens once a
        # prompt, and it leaves the full path untouched.
        attention, normed = layer.self_attention.attention, layer.self_attention.norm(x)
        key, value = (
            attention.split_heads(attention.key(normed)),
            attention.split_heads(attention.value(normed)),
        )
        self.tokens.store(index, key, value)
        return super().attend(index, layer, x)

    def read_neighbours(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        if not self.observed:
            self._observe(x)
            self.observed = True
        # The parent class encodes once, at layer min(P); its encoding is kept right after.
        was_encoded = self.encoded is not None
        read = super().read_neighbours(index, layer, x)
        if self.encoded is not None and not was_encoded:
            self._store_last()
        return read

    def _observe(self, x: Tensor) -> None:
        """Keep the last activations of every prompt, as if its tokens had come one by one."""
        assert self.neighbours is not None
        m, turn = self.model.config.chunk_len, self.tokens.turn
        for row, length in enumerate(self.tokens.lengths):
            kept = min(m, length)
            # The ring is indexed by the turn, which all sequences share. The
            # newest token's turn is `turn` − 1.
            ring = torch.arange(turn - kept, turn, device=x.device) % m
            self.neighbours.recent[row, ring] = x[row, length - kept : length]
            self.neighbours.recent_is_token[row, ring] = self.is_token[row, length - kept : length]

    def _store_last(self) -> None:
        """Keep the neighbours that the next tokens read, for every prompt with a
        complete chunk."""
        assert self.neighbours is not None
        assert self.encoded is not None
        assert self.retrieved is not None
        rows, chunks = self._last_chunks()
        self.neighbours.store(rows, self.encoded[rows, chunks], self.retrieved[1][rows, chunks])

    def _last_chunks(self) -> tuple[list[int], list[int]]:
        """The prompts with a complete chunk, and the number of each one's last."""
        m = self.model.config.chunk_len
        rows = [row for row, length in enumerate(self.tokens.lengths) if length >= m]
        return rows, [self.tokens.lengths[row] // m - 1 for row in rows]

    def vote(self) -> Vote | None:
        vote = super().vote()
        if self.voters is not None:
            assert self.kept_voters is not None
            rows, chunks = self._last_chunks()
            self.kept_voters.store(rows, self.voters.at((rows, chunks)))
        return vote


class _NewestTokens:
    """Reads the newest token of every sequence, with the past from the caches."""

    def __init__(
        self,
        decoding: RetroDecoding,
        is_token: Sequence[bool],
        completing: Sequence[int],
        retrieved: tuple[Tensor, Tensor] | None,
    ) -> None:
        self.model = decoding.model
        self.tokens = decoding.tokens
        self.neighbours = decoding.neighbours
        self.voters = decoding.voters
        self.is_token = is_token
        self.completing = completing
        self.retrieved = retrieved
        self.observed = False
        self.matched: Tensor | None = None

    def attend(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        attended = x + self.tokens.attend(index, layer.self_attention.norm(x))
        if index + 1 == self.model.config.pointer_layer:
            self.matched = attended
        return attended

    def read_neighbours(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        assert self.neighbours is not None
        assert layer.cross_attention is not None
        if not self.observed:
            self._observe(x)
            self.observed = True
        if not self.neighbours.present_rows:
            return x
        return x + self.neighbours.attend(layer.cross_attention, x)

    def _observe(self, x: Tensor) -> None:
        """At layer min(P), keep the activations and encode the neighbours of chunks
        just completed."""
        assert self.neighbours is not None
        turn = self.tokens.turn - 1
        self.neighbours.observe(turn, x, self.is_token)
        if self.retrieved is not None:
            chunks, chunk_is_token = self.neighbours.chunks(turn, self.completing)
            # One chunk a sequence, hence the axis of length 1.
            values, mask = self.retrieved
            encoded = self.model.encode(values[:, None], mask[:, None], chunks, chunk_is_token)
            self.neighbours.store(self.completing, encoded[:, 0], mask)
        # A chunk without neighbours must not go on reading those of the chunk before.
        elif self.completing:
            self.neighbours.clear(self.completing)
        # Set once a token, here, as every later CCA layer uses the same places.
        self.neighbours.place([length - 1 for length in self.tokens.lengths])

    def vote(self) -> Vote | None:
        """What the neighbours that each sequence reads now vote for."""
        if self.voters is None:
            return None
        assert self.matched is not None
        if self.retrieved is not None:
            values, mask = self.retrieved
            found = self.model.voters(values[:, None], mask[:, None])
            self.voters.store(self.completing, found.at((slice(None), 0)))
        elif self.completing:
            self.voters.clear(self.completing)
        return self.voters.vote(self.matched)
