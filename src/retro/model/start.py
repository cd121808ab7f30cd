"""How the weights start.

Left to chance, a small RETRO learns to use its neighbours late: the encoder must first bring
each token's predecessor to it, the cross-attention must learn to look for the current token
there, and its values must reach the output; none of the three helps before the other two.
`copying` starts the retrieval weights as that circuit, so that a neighbour which repeats the
text is followed from the first step on. The architecture and all it can learn stay as they
are. See docs/decisions/0005-copying-start.md.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from retro.model.attention import RelativeAttention

if TYPE_CHECKING:
    from retro.model.retro import Retro

_PEAK_LOGIT = 40.0
"""Positional logit of the previous token at the start; its neighbours in time lie about 6
below."""
_MATCH_GAIN = 2.0
"""How much more than by chance equal tokens attract each other."""
_COPY_GAIN = 0.5


def initialise(model: "Retro") -> None:
    """Every matrix by 1/√fan-in; those that write into the residual stream
    by 1/√(number of them) less."""
    config = model.config
    num_writers = 2 * config.num_layers + len(config.cross_attention_layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            writes = name.endswith((".out", ".down"))
            fan = module.in_features * (num_writers if writes else 1)
            nn.init.normal_(module.weight, std=1.0 / math.sqrt(fan))
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.embedding_dim))
    start_retrieval(model)


@torch.no_grad()
def start_retrieval(model: "Retro") -> None:
    """What the config asks for of the retrieval weights beyond chance.

    It depends on the decoder's embedding, and is done again when that has been trained.
    """
    retrieval = model.config.retrieval
    if retrieval is None:
        return
    if retrieval.copying_start:
        start_copying(model)
    for layer in model.layers if retrieval.quiet_start else ():
        if layer.cross_attention is not None:
            layer.cross_attention.attention.out.weight.zero_()


@torch.no_grad()
def start_copying(model: "Retro") -> None:
    """Start encoder and cross-attention as a circuit that continues a
    neighbour where it repeats the text.

    The first encoder layer adds to every token a rotation of its predecessor.
    Cross-attention compares the current token with those predecessors and writes the tokens
    that followed them towards the output.
    """
    assert model.encoder is not None
    to_encoder = _align_embeddings(model)
    rotation = _read_previous_token(model.encoder.layers[0].self_attention.attention)
    for layer in model.layers:
        if layer.cross_attention is None:
            continue
        attention = layer.cross_attention.attention
        # Query and key meet in one random basis, so equal tokens match;
        # value and out go through another.
        match, copy = (_semi_orthogonal(attention.query.weight) for _ in range(2))
        attention.query.weight.copy_(math.sqrt(_MATCH_GAIN) * match)
        attention.key.weight.copy_(math.sqrt(_MATCH_GAIN) * match @ to_encoder.T @ rotation.T)
        attention.value.weight.copy_(copy @ to_encoder.T)
        attention.out.weight.copy_(_COPY_GAIN * copy.T)


def _align_embeddings(model: "Retro") -> Tensor:
    """Make the encoder's token vectors a projection of the decoder's, and return the projection.

    A narrower encoder keeps a part of every vector. The projection makes up for that both
    ways, so that a token that goes there and back has all of its length along itself,
    however narrow the encoder is.
    """
    table, encoder_table = model.embedding.weight, model.encoder_embedding
    if encoder_table is None:
        return torch.eye(table.shape[1], dtype=table.dtype, device=table.device)
    projection = _semi_orthogonal(table.new_empty(encoder_table.embedding_dim, table.shape[1]))
    projection *= math.sqrt(max(1.0, table.shape[1] / encoder_table.embedding_dim))
    encoder_table.weight.copy_(table @ projection.T)
    return projection


def _read_previous_token(attention: RelativeAttention) -> Tensor:
    """Point every head at the token before, and return the rotation
    that its vector is added with."""
    half = attention.width // 2
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    sharp = (frequencies >= 0.1).float()
    # A sum of fast cosines of (distance − 1): it peaks where the distance is 1.
    peak = torch.cat([sharp * frequencies.sin(), sharp * frequencies.cos()]) / sharp.sum().sqrt()
    for head in range(attention.num_heads):
        attention.position.weight[head * attention.head_dim].copy_(peak)
        attention.position_bias[head].zero_()
        attention.position_bias[head, 0, 0] = _PEAK_LOGIT / sharp.sum().sqrt()
    attention.query.weight.mul_(0.1)
    carry = _semi_orthogonal(attention.value.weight)
    rotation = _semi_orthogonal(carry.new_empty(attention.width, attention.width))
    attention.value.weight.copy_(carry)
    attention.out.weight.copy_(rotation @ carry.T)
    return rotation


def _semi_orthogonal(like: Tensor) -> Tensor:
    return nn.init.orthogonal_(torch.empty_like(like))
