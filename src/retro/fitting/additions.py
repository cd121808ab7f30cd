"""What a fitted model has beside its base: the only weights that are trained, and all that is saved."""

import torch
from einops import rearrange
from torch import Tensor, nn

from retro.config.fit import FitConfig
from retro.fitting.beside import Weighing
from retro.fitting.neighbours import RUNS, Retrieved
from retro.model.chunked_cross_attention import ChunkedCrossAttention
from retro.model.encoder import Encoder
from retro.model.layers import embed
from retro.model.pointer import Pointer
from retro.model.protocol import TrainableModel

PACE = 5.0
"""How many times as fast as each head's own numbers those are learned that all heads have in common."""


class Additions(TrainableModel):
    """Numbers for each head that reads neighbours (`beside`), or the paper's encoder and cross-attention; and
    a pointer with its gate. Which of them are there, the config says; the others are None.
    """

    config: FitConfig
    vocab_size: int
    width: int
    """Of the base's residual stream."""
    last_width: int
    """Of its last states."""

    def add(self, num_heads: int, dtype: torch.dtype) -> None:
        """Make what the config asks for; `num_heads` are the most that a layer has."""
        config = self.config
        self.bias: nn.Parameter | None = None
        self.log_scale: nn.Parameter | None = None
        self.trust: nn.Parameter | None = None
        self.common: nn.Parameter | None = None
        self.pointer: Pointer | None = None
        self.encoder: Encoder | None = None
        self.encoder_embedding: nn.Embedding | None = None
        self.cross: nn.ModuleList | None = None
        if config.reading == "attention":
            zeros = torch.zeros(len(config.layers), num_heads, dtype=dtype)
            self.bias = nn.Parameter(zeros, requires_grad=config.tune_heads)
            self.log_scale = nn.Parameter(zeros.clone(), requires_grad=config.tune_heads)
            if config.weigh_likeness:
                of_measures = zeros[..., None].repeat(1, 1, len(RUNS))
                self.trust = nn.Parameter(of_measures, requires_grad=config.tune_heads)
                self.common = nn.Parameter(zeros.new_zeros(2 + len(RUNS)), requires_grad=config.tune_heads)
        if config.pointer:
            self.pointer = Pointer(self.width, self.last_width).to(dtype)
        if config.reading == "cross-attention":
            encoder = config.encoder
            self.encoder = Encoder(encoder, self.width, config.cross_attention_positions).to(dtype)
            self.encoder_embedding = nn.Embedding(self.vocab_size, encoder.d_model, dtype=dtype)
            nn.init.normal_(self.encoder_embedding.weight, std=encoder.d_model**-0.5)
            operators = [self._cross_attention() for _ in config.layers]
            self.cross = nn.ModuleList(operators).to(dtype)
            for operator in operators:
                # A quiet start: before it is trained, cross-attention adds nothing.
                nn.init.zeros_(operator.attention.out.weight)

    def _cross_attention(self) -> ChunkedCrossAttention:
        encoder = self.config.encoder
        return ChunkedCrossAttention(
            self.width,
            encoder.d_model,
            encoder.num_heads,
            encoder.head_dim,
            self.config.chunk_len,
            positions=self.config.cross_attention_positions,
        )

    @property
    def trains_within(self) -> bool:
        """Whether something is trained that the base's own layers read by: gradients go through them then."""
        within = [] if self.cross is None else list(self.cross.parameters())
        heads = (self.bias, self.log_scale, self.trust, self.common)
        within += [numbers for numbers in heads if numbers is not None]
        return any(parameter.requires_grad for parameter in within)

    def weighing(self, layer: int, num_heads: int) -> Weighing:
        """How the heads of a layer, counted from 0, weigh neighbours against the text."""
        assert self.bias is not None
        assert self.log_scale is not None
        place = self.config.layers.index(layer + 1)
        bias, log_scale = self.bias[place, :num_heads], self.log_scale[place, :num_heads]
        if self.trust is None or self.common is None:
            return Weighing(bias, log_scale.exp(), None)
        # What all heads have in common is clear sooner than how each one differs.
        more, sharper, trusted = (PACE * self.common).split([1, 1, len(RUNS)])
        trust = self.trust[place, :num_heads] + trusted
        return Weighing(bias + more, (log_scale + sharper).exp(), trust)

    def encode(self, retrieved: Retrieved, x: Tensor, is_token: Tensor) -> Tensor:
        """The paper's encoding of the neighbours, conditioned on the states `x` of whole chunks."""
        assert self.encoder is not None
        assert self.encoder_embedding is not None
        m, num_chunks = self.config.chunk_len, retrieved.neighbours.shape[1]
        chunks = rearrange(x[:, : num_chunks * m], "b (u m) d -> b u m d", m=m)
        chunk_is_token = rearrange(is_token[:, : num_chunks * m], "b (u m) -> b u m", m=m)
        known = retrieved.neighbours.masked_fill(~retrieved.is_token, 0)
        encoded: Tensor = self.encoder(
            embed(self.encoder_embedding, known), retrieved.is_token, chunks, chunk_is_token
        )
        return encoded
