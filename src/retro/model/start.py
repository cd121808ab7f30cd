"""How the weights are initialised.

From random weights, a small RETRO learns late to use its neighbours. Three things must come
together: the encoder must bring each token its predecessor, cross-attention must look for the
current token among these, and its values must reach the output. None of the three helps
before the other two. `copying_start` initialises the retrieval weights as that circuit, so
that the model follows a neighbour which repeats the text from the first step on. The
architecture, and what it can learn, stay the same. See docs/decisions/0005-copying-start.md.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from retro.model.attention import RelativeAttention

if TYPE_CHECKING:
    from retro.model.retro import Retro

_PEAK_LOGIT = 40.0
"""Initial positional logit of the previous token; the tokens beside it are about 6 lower."""
_MATCH_GAIN = 2.0
"""How strongly equal tokens attract each other in cross-attention at the start."""
_COPY_GAIN = 0.5


def initialise(model: "Retro") -> None:
    """Random weights of scale 1/√fan-in.

    Matrices that write into the residual stream are smaller by 1/√(their number), so that the
    stream's variance does not grow with depth.
    """
    config = model.config
    # Attention and feed-forward of every layer, and each cross-attention.
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
    """Set the retrieval weights that the config does not leave to chance.

    They depend on the decoder's embedding, so RETROfit does this again once that is trained.
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
    """Make encoder and cross-attention a circuit that continues a neighbour
    which repeats the text.

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
        # Query and key share one random basis, so equal tokens match. Value and out share
        # another, so that what is copied comes out as the token it was.
        match, copy = (_semi_orthogonal(attention.query.weight) for _ in range(2))
        attention.query.weight.copy_(math.sqrt(_MATCH_GAIN) * match)
        attention.key.weight.copy_(math.sqrt(_MATCH_GAIN) * match @ to_encoder.T @ rotation.T)
        attention.value.weight.copy_(copy @ to_encoder.T)
        attention.out.weight.copy_(_COPY_GAIN * copy.T)


def _align_embeddings(model: "Retro") -> Tensor:
    """Make the encoder's token vectors a projection of the decoder's, and return it.

    A narrower encoder keeps only part of every vector. The projection is scaled to make up
    for that, so that a vector projected there and back keeps its full length along itself.
    """
    table, encoder_table = model.embedding.weight, model.encoder_embedding
    if encoder_table is None:
        return torch.eye(table.shape[1], dtype=table.dtype, device=table.device)
    projection = _semi_orthogonal(table.new_empty(encoder_table.embedding_dim, table.shape[1]))
    # A random projection to d' of d dimensions shrinks a vector by √(d'/d).
    projection *= math.sqrt(max(1.0, table.shape[1] / encoder_table.embedding_dim))
    encoder_table.weight.copy_(table @ projection.T)
    return projection


def _read_previous_token(attention: RelativeAttention) -> Tensor:
    """Point every head at the previous token, and return the rotation applied to its vector."""
    half = attention.width // 2
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    # Slow waves barely change from one token to the next and would only blur the peak.
    sharp = (frequencies >= 0.1).float()
    # sin a · sin b + cos a · cos b = cos(a − b): the logit becomes a sum of fast cosines of
    # (distance − 1), which peaks at distance 1.
    peak = torch.cat([sharp * frequencies.sin(), sharp * frequencies.cos()]) / sharp.sum().sqrt()
    for head in range(attention.num_heads):
        attention.position.weight[head * attention.head_dim].copy_(peak)
        attention.position_bias[head].zero_()
        attention.position_bias[head, 0, 0] = _PEAK_LOGIT / sharp.sum().sqrt()
    # Content must not outweigh the position at the start.
    attention.query.weight.mul_(0.1)
    carry = _semi_orthogonal(attention.value.weight)
    # Rotated, the predecessor's vector can be told from the token's own.
    rotation = _semi_orthogonal(carry.new_empty(attention.width, attention.width))
    attention.value.weight.copy_(carry)
    attention.out.weight.copy_(rotation @ carry.T)
    return rotation


def _semi_orthogonal(like: Tensor) -> Tensor:
    return nn.init.orthogonal_(torch.empty_like(like))
