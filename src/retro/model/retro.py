"""RETRO itself: Algorithm 1 of the paper. Without retrieval it is the baseline transformer."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from retro.config import ModelConfig
from retro.config.as_json import to_dict
from retro.errors import ConfigError
from retro.model.attention import FeedForward, RMSNorm, SelfAttention
from retro.model.chunked_cross_attention import ChunkedCrossAttention
from retro.model.decoding import RetroDecoding
from retro.model.encoder import Encoder, EncoderCrossAttention
from retro.model.layers import DecoderLayer, Reading, Watched, WholeSequences, embed
from retro.model.pointer import LearnedPointer, Vote, Voters, successors
from retro.model.protocol import ModelFacts, Scored, TrainableModel
from retro.model.read_out import score_mixture, score_states
from retro.model.sharing import SharedReading
from retro.model.start import initialise
from retro.model.weights import write_model

OPERATORS = (SelfAttention, ChunkedCrossAttention, EncoderCrossAttention, FeedForward)
"""The residual operators of a block; only one tensor of the model's width passes between two."""


class Retro(TrainableModel):
    """A decoder that reads neighbours through chunked cross-attention."""

    kind = "retro"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        retrieval = config.retrieval
        layers = nn.ModuleList(
            DecoderLayer(config, retrieval if number in config.cross_attention_layers else None)
            for number in range(1, config.num_layers + 1)
        )
        self.layers = cast(Sequence[DecoderLayer], layers)
        self.norm = RMSNorm(config.d_model)
        self.encoder_embedding: nn.Embedding | None = None
        self.encoder: Encoder | None = None
        if retrieval is not None:
            # A continuation read alone keeps its places, so its distances start at m.
            first_place = retrieval.places_read(config.chunk_len).start
            self.encoder = Encoder(
                retrieval.encoder, config.d_model, retrieval.cross_attention_positions, first_place
            )
            if not retrieval.share_embeddings:
                self.encoder_embedding = nn.Embedding(config.vocab_size, retrieval.encoder.d_model)
        # After all modules exist: the start of the retrieval weights needs the embedding.
        initialise(self)
        self.pointer: LearnedPointer | None = None
        if retrieval is not None and retrieval.pointer:
            # Last, so that all other weights are drawn as they are without it.
            self.pointer = LearnedPointer(config.d_model, config.d_model)

    @property
    def facts(self) -> ModelFacts:
        config = self.config
        return ModelFacts(
            config.vocab_size, config.chunk_len, config.pad_id, config.end_id, config.uses_retrieval
        )

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Logits of the next token at every position.

        `neighbours` holds [N, F] for each complete chunk, padded with the config's pad
        id; `neighbour_mask` is true where a neighbour is real. Without neighbours this
        is RETRO[OFF], or the baseline.
        """
        states, vote = self._read(tokens, neighbours, neighbour_mask)
        return self.mix(self.read_out(states), states, vote)

    def score(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> Scored:
        return self._scored(*self._read(tokens, neighbours, neighbour_mask), targets, greedy)

    @torch.no_grad()
    def score_each(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        ks: Sequence[int],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> list[Scored]:
        retrieved = self.check_neighbours(tokens, neighbours, neighbour_mask)
        if retrieved is None:
            return [self.score(tokens, targets, greedy=greedy)] * len(ks)
        shared = SharedReading(self, tokens, retrieved)
        return [self._scored(*states, targets, greedy) for states in shared.states(ks)]

    def _scored(self, states: Tensor, vote: Vote | None, targets: Tensor, greedy: bool) -> Scored:
        """How probable the targets are, by the activations and the vote."""
        vocab_size, pad_id = self.config.vocab_size, self.config.pad_id
        if vote is None:
            return score_states(self.read_out, states, targets, vocab_size, pad_id, greedy)
        assert self.pointer is not None
        return score_mixture(
            self.pointer, self.read_out, states, vote, targets, vocab_size, pad_id, greedy, on_top=True
        )

    def neighbour_attention(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"],
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq neighbour"]:
        """At each position, the part of the cross-attention that goes to each neighbour read there.

        The mean over heads and layers; zero where none are read.
        """
        retrieved = self.check_neighbours(tokens, neighbours, neighbour_mask)
        reading = Watched(self, tokens != self.config.pad_id, retrieved)
        self.run_layers(embed(self.embedding, tokens), reading)
        if not reading.attention:
            return torch.zeros(*tokens.shape, neighbours.shape[2], device=tokens.device)
        return torch.stack(reading.attention).mean(0)

    def begin(self, window: int = 0) -> RetroDecoding:
        return RetroDecoding(self, window)

    def hidden(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq d_model"]:
        """The normalised activations that `read_out` turns into logits."""
        return self._read(tokens, neighbours, neighbour_mask)[0]

    def _read(
        self, tokens: Tensor, neighbours: Tensor | None, neighbour_mask: Tensor | None
    ) -> tuple[Float[Tensor, "batch seq d_model"], Vote | None]:
        """The normalised activations of whole sequences, and the vote of their neighbours."""
        retrieved = self.check_neighbours(tokens, neighbours, neighbour_mask)
        reading = WholeSequences(self, tokens != self.config.pad_id, retrieved)
        x = self.run_layers(self.dropout(embed(self.embedding, tokens)), reading)
        return self.norm(x), reading.vote()

    def run_layers(
        self, x: Float[Tensor, "*batch d_model"], reading: Reading, start: int = 0, stop: int | None = None
    ) -> Float[Tensor, "*batch d_model"]:
        """The loop of Algorithm 1, shared by whole sequences, prompts and single tokens; or a part of it."""
        for index, layer in islice(enumerate(self.layers), start, stop):
            x = reading.attend(index, layer, x)
            if layer.cross_attention is not None:
                x = reading.read_neighbours(index, layer, x)
            x = layer.feed_forward(x)
        return x

    def read_out(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits; the output matrix is the input embedding."""
        return F.linear(hidden, self.embedding.weight)

    def mix(
        self,
        logits: Float[Tensor, "*batch vocab"],
        states: Float[Tensor, "*batch d_model"],
        vote: Vote | None,
    ) -> Float[Tensor, "*batch vocab"]:
        """The logits with the neighbours' vote, if there is one; `states` are what they were read out of."""
        if vote is None:
            return logits
        assert self.pointer is not None
        return self.pointer.mix_logits(vote, states, logits)

    def voters(
        self,
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"],
        is_neighbour_token: Bool[Tensor, "batch chunk neighbour retrieved"],
    ) -> Voters:
        """The neighbours' tokens as the pointer matches them: by the states that the decoder itself has when
        it reads a neighbour alone.

        No gradient goes through these states: the text's own, with which they are compared, come from the
        same layers and have one.
        """
        assert self.pointer is not None
        with torch.no_grad():
            states = self._first_states(neighbours, is_neighbour_token)
        with torch.autocast(states.device.type, enabled=False):
            keys = self.pointer.standardise(states).flatten(2, 3)
        return Voters(keys, *successors(neighbours, is_neighbour_token))

    def _first_states(self, tokens: Tensor, is_token: Tensor) -> Float[Tensor, "*batch seq d_model"]:
        """The states after the self-attention of the pointer's layer, which is reached without retrieval."""
        x = self.dropout(embed(self.embedding, tokens))
        *below, last = self.layers[: self.config.pointer_layer]
        for layer in below:
            x = layer.feed_forward(layer.self_attention(x, is_token))
        states: Tensor = last.self_attention(x, is_token)
        return states

    def encode(self, neighbours: Tensor, is_neighbour_token: Tensor, x: Tensor, is_token: Tensor) -> Tensor:
        """The encoded neighbours of complete chunks; `x` is taken after
        self-attention at layer min(P)."""
        assert self.encoder is not None
        m, num_chunks = self.config.chunk_len, neighbours.shape[1]
        # An incomplete chunk at the end has no neighbours, so nothing is conditioned on it.
        chunks = rearrange(x[:, : num_chunks * m], "batch (chunk m) d -> batch chunk m d", m=m)
        chunk_is_token = rearrange(is_token[:, : num_chunks * m], "batch (chunk m) -> batch chunk m", m=m)
        encoded: Tensor = self.encoder(
            embed(self.neighbour_table, neighbours), is_neighbour_token, chunks, chunk_is_token
        )
        return encoded

    @property
    def neighbour_table(self) -> nn.Embedding:
        """The embedding of the neighbours' tokens; the encoder may share the decoder's."""
        return self.embedding if self.encoder_embedding is None else self.encoder_embedding

    def check_neighbours(
        self, tokens: Tensor, neighbours: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """The neighbours' tokens to read, and which are real; None if there is nothing to
        read."""
        if neighbours is None:
            return None
        if self.encoder is not None:
            self.facts.expect_neighbours(tokens, neighbours)
        return self.readable(neighbours, mask)

    def readable(self, neighbours: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """The places of [N, F] that this model reads, and which tokens there are real.

        None if there are no neighbours.
        """
        retrieval = self.config.retrieval
        if retrieval is None:
            raise ConfigError(
                "neighbours were given to a model without cross-attention layers; "
                "expected a RETRO config, or no neighbours"
            )
        if neighbours.numel() == 0:
            return None
        neighbours = neighbours[..., retrieval.places_read(self.config.chunk_len)]
        is_token = neighbours != self.config.pad_id
        # All tokens of a masked neighbour count as padding.
        return neighbours, is_token if mask is None else is_token & mask[..., None]

    @property
    def key_width(self) -> int:
        return self.config.d_model

    def keys(
        self, tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"] | None = None
    ) -> tuple[Float[Tensor, "batch seq width"], Float[Tensor, "batch seq"] | None]:
        """The input of the last feed-forward layer, and the targets' log-probabilities.

        It is taken after the layer's norm: the state that Khandelwal et al. (2020) found best
        as a key of kNN-LM. RETRO's paper says only that its keys are as wide as the model.
        """
        with self.watching_keys() as seen:
            hidden = self.hidden(tokens)
        if targets is None:
            return seen[0], None
        scored = score_states(self.read_out, hidden, targets, self.config.vocab_size, self.config.pad_id)
        return seen[0], scored.log_probs

    @contextmanager
    def watching_keys(self) -> Iterator[list[Tensor]]:
        """Collect the keys of all that is read within this block."""
        seen: list[Tensor] = []
        norm = self.layers[-1].feed_forward.norm
        # A hook, so that `run_layers` need not carry a state that nothing else asks for.
        handle = norm.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
        try:
            yield seen
        finally:
            handle.remove()

    def settings(self) -> dict[str, Any]:
        settings = to_dict(self.config)
        # Without a pointer, a record is what it was before there were any: runs from then go on.
        if self.pointer is None and self.config.uses_retrieval:
            for name in ("pointer", "pointer_layer"):
                del settings["retrieval"][name]
        return settings

    def save(self, path: str | Path) -> None:
        """Write weights and config into a folder; `retro.load` reads it back."""
        write_model(self, Path(path))

    def operators(self) -> Iterator[nn.Module]:
        return (module for module in self.modules() if isinstance(module, OPERATORS))

    def freeze_all_but_retrieval(self) -> None:
        for name, parameter in self.named_parameters():
            # The encoder, its own embedding, the cross-attention of the decoder's layers, and the pointer.
            parameter.requires_grad_(name.startswith(("encoder", "pointer")) or ".cross_attention." in name)

    def set_dropout(self, rate: float) -> None:
        self.config = dataclasses.replace(self.config, dropout=rate)
        for name, module in self.named_modules():
            # The encoder is built without dropout and stays without.
            if isinstance(module, nn.Dropout) and not name.startswith("encoder."):
                module.p = rate

    def num_parameters(self, embeddings: bool = False) -> int:
        # By identity: the embedding may be shared with the encoder and must count once.
        tables = {id(table.weight) for table in (self.embedding, self.encoder_embedding) if table is not None}
        return sum(p.numel() for p in self.parameters() if embeddings or id(p) not in tables)
