"""A fitted Llama against its layers written out by hand: one sequence, token, chunk and neighbour at a time.

Only the weights, and the norms and feed-forward layers of the base, are shared with the fast model. The
paper's operators are those of `model/reference.py`.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from retro.fitting.beside import Weighing
from retro.fitting.fitted import FittedModel
from retro.model.reference import (
    _chunked_cross_attention,
    _encoder_cross_attention,
    _feed_forward,
    _norm,
    _self_attention,
)
from tests.fitting.test_fitted import VOCAB, M, fitted_with, llama, neighbours_of, text


@dataclass
class Keys:
    """Keys and values of one layer, one tensor (key head, width) for each token."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    likeness: list[list[float]] = field(default_factory=list)
    """Of each token's neighbour to the chunk that found it."""


def exact_llama() -> LlamaForCausalLM:
    """A Llama whose norms keep float64; its own round to float32 on the way."""
    base = llama()
    for parent in list(base.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LlamaRMSNorm):
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight.data = torch.rand_like(norm.weight) + 0.5
                setattr(parent, name, norm)
    return base


def turned(base: Any, vector: Tensor, position: int) -> Tensor:
    """A rotary position: the i-th and the (i + half)-th coordinate are turned together."""
    half = len(vector) // 2
    # The base's own table of cosines and sines, which is made in float32.
    cosines, sines = base.model.rotary_emb(vector, torch.tensor([[position]]))
    result = vector.clone()
    for i in range(half):
        first, second = vector[i], vector[i + half]
        result[i] = first * cosines[0, 0, i] - second * sines[0, 0, i]
        result[i + half] = second * cosines[0, 0, i] + first * sines[0, 0, i]
    return result


def heads(matrix: Tensor, state: Tensor, width: int) -> list[Tensor]:
    return list((matrix @ state).split(width))


def literal_attention(
    base: Any,
    layer: Any,
    h: list[Tensor],
    first: int,
    beside: list[Keys] | None = None,
    weighing: Weighing | None = None,
) -> tuple[list[Tensor], Keys]:
    """ATTN of a Llama: each token sees its past and, in one softmax, what stands beside it.

    The first token stands at position `first`. Returns the residual stream, and the keys and values.
    """
    attention = layer.self_attn
    width = attention.head_dim
    normed = [layer.input_layernorm(state) for state in h]
    own = Keys()
    for i, state in enumerate(normed):
        keys = [turned(base, key, first + i) for key in heads(attention.k_proj.weight, state, width)]
        own.keys.append(torch.stack(keys))
        own.values.append(torch.stack(heads(attention.v_proj.weight, state, width)))
    result = []
    for i, state in enumerate(normed):
        read = []
        queries = heads(attention.q_proj.weight, state, width)
        for number, query in enumerate(queries):
            group = number * len(own.keys[0]) // len(queries)
            q = turned(base, query, first + i)
            extra = Keys() if beside is None else beside[i]
            logits = [q @ key[group] / math.sqrt(width) for key in own.keys[: i + 1]]
            for key, shares in zip(extra.keys, extra.likeness, strict=True):
                assert weighing is not None
                assert weighing.trust is not None
                trusted = sum(w * share for w, share in zip(weighing.trust[number], shares, strict=True))
                logit = q @ key[group] * weighing.scale[number] / math.sqrt(width)
                logits.append(logit + weighing.bias[number] + trusted)
            values = [value[group] for value in (*own.values[: i + 1], *extra.values)]
            weights = torch.softmax(torch.stack(logits), 0)
            read.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        result.append(h[i] + attention.o_proj.weight @ torch.cat(read))
    return result, own


def feed_forward(layer: Any, h: list[Tensor]) -> list[Tensor]:
    return [state + layer.mlp(layer.post_attention_layernorm(state)) for state in h]


def shares_of(chunk: list[int], neighbour: list[int], exists: list[bool]) -> list[float]:
    """The part of a chunk's runs of one, two and four tokens that stand in a neighbour."""
    # What is no token is like no other.
    pairs = zip(neighbour, exists, strict=True)
    words = [token if there else -1 - place for place, (token, there) in enumerate(pairs)]
    shares = []
    for length in (1, 2, 4):
        runs = [chunk[i : i + length] for i in range(len(chunk) - length + 1)]
        there = [words[i : i + length] for i in range(len(words) - length + 1)]
        shares.append(sum(run in there for run in runs) / len(runs))
    return shares


def is_read(model: FittedModel, neighbours: Tensor, mask: Tensor) -> list[list[list[bool]]]:
    """Of each chunk's neighbours, which places are tokens that may be read."""
    pad = model.facts.pad_id
    return [
        [[bool(real) and int(token) != pad for token in one] for one, real in zip(found, reals, strict=True)]
        for found, reals in zip(neighbours, mask, strict=True)
    ]


def literal_encoding(
    model: FittedModel, neighbour: Tensor, exists: list[bool], h_u: list[Tensor]
) -> list[Tensor]:
    """ENCODER(RET(C_u)^j, H_u)."""
    assert model.encoder is not None
    assert model.encoder_embedding is not None
    table = model.encoder_embedding
    tokens = [int(token) if there else 0 for token, there in zip(neighbour, exists, strict=True)]
    e = [table.weight[token] * math.sqrt(table.embedding_dim) for token in tokens]
    condition = [_norm(model.encoder.condition_norm, state) for state in h_u]
    for layer in model.encoder.layers:
        e = _self_attention(layer.self_attention, e, exists, causal=False)
        if layer.cross_attention is not None:
            e = _encoder_cross_attention(layer.cross_attention, e, condition, [True] * len(condition), 0)
        e = [_feed_forward(layer.feed_forward, state) for state in e]
    return [_norm(model.encoder.norm, state) for state in e]


def cross_attention_logits(model: FittedModel, tokens: Tensor, neighbours: Tensor, mask: Tensor) -> Tensor:
    """Algorithm 1 with the layers of the base."""
    base: Any = model.base
    assert model.cross is not None
    readable = is_read(model, neighbours, mask)
    h = [base.model.embed_tokens.weight[token] for token in tokens]
    encoded: list[list[list[Tensor]]] = []
    for p, layer in enumerate(base.model.layers, start=1):
        h, _ = literal_attention(base, layer, h, 0)
        if p in model.config.layers:
            if p == min(model.config.layers):
                for u, found in enumerate(neighbours):
                    h_u = h[u * M : (u + 1) * M]
                    pairs = zip(found, readable[u], strict=True)
                    encoded.append([literal_encoding(model, one, exists, h_u) for one, exists in pairs])
            operator: Any = model.cross[model.config.layers.index(p)]
            h = _chunked_cross_attention(operator, h, encoded, readable, M, 0)
        h = feed_forward(layer, h)
    return torch.stack([base.lm_head.weight @ base.model.norm(state) for state in h])


def beside_logits(model: FittedModel, tokens: Tensor, neighbours: Tensor, mask: Tensor) -> Tensor:
    """Every layer attends to the keys and values that the base has computed of the neighbours."""
    base: Any = model.base
    assert model.bias is not None
    readable = is_read(model, neighbours, mask)
    # The neighbours of chunk u end some way before its last token, which is the first to read them.
    before = model.config.distance + 2 * M
    retrieved = [
        [[base.model.embed_tokens.weight[int(t) if int(t) < VOCAB else 0] for t in one] for one in found]
        for found in neighbours
    ]
    h = [base.model.embed_tokens.weight[token] for token in tokens]
    for p, layer in enumerate(base.model.layers):
        memories = []
        for u, found in enumerate(retrieved):
            memory = Keys()
            for j, states in enumerate(found):
                after, computed = literal_attention(base, layer, states, (u + 1) * M - 1 - before)
                found[j] = feed_forward(layer, after)
                # The first token is only where heads rest; the text has one of its own.
                places = [place for place, exists in enumerate(readable[u][j]) if exists and place]
                memory.keys += [computed.keys[place] for place in places]
                memory.values += [computed.values[place] for place in places]
                chunk = tokens[u * M : (u + 1) * M].tolist()
                shares = shares_of(chunk, neighbours[u, j].tolist(), readable[u][j])
                memory.likeness += [shares for _ in places]
            memories.append(memory)
        # The last token of chunk u, and all but the last of the next, read the neighbours of chunk u.
        beside = [memories[(i + 1) // M - 1] if i >= M - 1 else Keys() for i in range(len(tokens))]
        h, _ = literal_attention(base, layer, h, 0, beside, model.weighing(p, model.bias.shape[1]))
        h = feed_forward(layer, h)
    return torch.stack([base.lm_head.weight @ base.model.norm(state) for state in h])


@pytest.mark.parametrize(
    ("reading", "literal"), [("cross-attention", cross_attention_logits), ("attention", beside_logits)]
)
@torch.no_grad()
def test_with_neighbours_it_is_the_literal_model(reading: str, literal: Any) -> None:
    model = fitted_with(reading, pointer=False, base=exact_llama())
    tokens = text(2, 3 * M + 2)
    neighbours, mask = neighbours_of(tokens)
    mask[1, 1] = False
    # One that repeats a run of its chunk, and one of another chunk.
    neighbours[0, 1, 0, 3:9] = tokens[0, M + 1 : M + 7]
    neighbours[1, 0, 1, 5:8] = tokens[1, 2:5]
    fast = model(tokens, neighbours, mask)
    assert (fast - model(tokens)).abs().max() > 1e-2
    for row in range(len(tokens)):
        expected = literal(model, tokens[row], neighbours[row], mask[row])
        torch.testing.assert_close(fast[row], expected, rtol=1e-10, atol=1e-10)
