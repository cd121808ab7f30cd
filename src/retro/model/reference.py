"""The model written out literally: one sequence, chunk, neighbour, head and pair of
positions at a time.

It follows Algorithm 1 and the equations of the appendix, with the paper's indices, which
count from 1. It shares only the weights with the fast model, and every fast path is
tested against it. It is slow.
"""

import math

import torch
from torch import Tensor

from retro.model.attention import FeedForward, RelativeAttention, SelfAttention
from retro.model.chunked_cross_attention import ChunkedCrossAttention
from retro.model.encoder import EncoderCrossAttention
from retro.model.pointer import TIE, LearnedPointer
from retro.model.retro import Retro


def reference_logits(
    model: Retro, tokens: Tensor, neighbours: Tensor | None = None, neighbour_mask: Tensor | None = None
) -> Tensor:
    """What `model(tokens, neighbours, neighbour_mask)` must return."""
    sequences = []
    for b in range(tokens.shape[0]):
        ret = None if neighbours is None else neighbours[b]
        real = None if neighbours is None or neighbour_mask is None else neighbour_mask[b]
        sequences.append(_sequence_logits(model, tokens[b], ret, real))
    return torch.stack(sequences)


def _sequence_logits(model: Retro, x: Tensor, ret: Tensor | None, real: Tensor | None) -> Tensor:
    """Algorithm 1. `ret[u − 1]` is RET(C_u); `real` says which neighbours exist."""
    config = model.config
    pad, m = config.pad_id, config.chunk_len
    exists = [bool(token != pad) for token in x]
    h = [model.embedding.weight[token] * math.sqrt(config.d_model) for token in x]
    before = 0
    if ret is not None and config.retrieval is not None:
        # N has the places 1 … m of [N, F], and F has m + 1 … 2 m. A part that is read alone
        # keeps its places, so that distances stay the same.
        if config.retrieval.retrieved == "neighbour":
            ret = ret[..., :m]
        if config.retrieval.retrieved == "continuation":
            ret, before = ret[..., m:], m
    encoded: list[list[list[Tensor]]] = []
    readable: list[list[list[bool]]] = []
    matched: list[Tensor] = []
    for p in range(1, config.num_layers + 1):
        layer = model.layers[p - 1]
        h = _self_attention(layer.self_attention, h, exists, causal=True)
        if p == config.pointer_layer:
            matched = h
        if ret is not None and ret.numel() and config.uses_retrieval:
            # E = ENCODER(RET(C_u), H_u), once, on the activations of the first layer in P.
            if p == min(config.cross_attention_layers):
                for u in range(1, ret.shape[0] + 1):
                    h_u, exists_u = h[(u - 1) * m : u * m], exists[(u - 1) * m : u * m]
                    is_real = [True] * ret.shape[1] if real is None else [bool(flag) for flag in real[u - 1]]
                    readable.append(
                        [[flag and bool(t != pad) for t in ret[u - 1, j]] for j, flag in enumerate(is_real)]
                    )
                    encoded.append(
                        [
                            _encode(model, ret[u - 1, j], readable[-1][j], h_u, exists_u, before)
                            for j in range(ret.shape[1])
                        ]
                    )
            if layer.cross_attention is not None:
                h = _chunked_cross_attention(layer.cross_attention, h, encoded, readable, m, before)
        h = [_feed_forward(layer.feed_forward, state) for state in h]
    h = [_norm(model.norm, state) for state in h]
    logits = [model.embedding.weight @ state for state in h]
    if model.pointer is not None and ret is not None:
        for u in range(1, len(readable) + 1):
            voters = _voters(model, ret[u - 1], readable[u - 1])
            # The positions that read the neighbours of C_u, as in cross-attention.
            for position in range(u * m, min(u * m + m - 1, len(h)) + 1):
                logits[position - 1] = _mixed(
                    model.pointer, logits[position - 1], h[position - 1], matched[position - 1], voters
                )
    return torch.stack(logits)


def _voters(model: Retro, ret_u: Tensor, readable: list[list[bool]]) -> list[tuple[Tensor, int]]:
    """Each token of the neighbours that another one follows: its state, read without retrieval, and that
    other one."""
    voters = []
    for neighbour, flags in zip(ret_u, readable, strict=True):
        with torch.no_grad():
            h = [model.embedding.weight[token] * math.sqrt(model.config.d_model) for token in neighbour]
            for p in range(1, model.config.pointer_layer + 1):
                h = _self_attention(model.layers[p - 1].self_attention, h, flags, causal=True)
                if p < model.config.pointer_layer:
                    h = [_feed_forward(model.layers[p - 1].feed_forward, state) for state in h]
        for place in range(len(neighbour) - 1):
            if flags[place] and flags[place + 1]:
                voters.append((h[place], int(neighbour[place + 1])))
    return voters


def _mixed(
    pointer: LearnedPointer,
    logits: Tensor,
    state: Tensor,
    matched: Tensor,
    voters: list[tuple[Tensor, int]],
) -> Tensor:
    """log ((1 − λ) · model + λ · vote) on the scale of the model's logits; those without voters."""
    if not voters:
        return logits
    probabilities = torch.softmax(logits, 0)
    query = _direction(pointer, matched)
    similarities = torch.stack([torch.dot(query, _direction(pointer, key)) for key, _ in voters])
    weights = torch.softmax(similarities * torch.exp(pointer.log_sharpness[0]), 0)
    votes = {token: weights.new_zeros(()) for _, token in voters}
    for weight, (_, token) in zip(weights, voters, strict=True):
        votes[token] = votes[token] + weight
    most = max(votes.values())
    # Of tokens with as good as equal votes, that which the model finds likeliest.
    favourites = [torch.log(probabilities[token]) for token, got in votes.items() if got >= most * (1 - TIE)]
    expected = torch.stack([got * torch.log(probabilities[token]) for token, got in votes.items()]).sum()
    entropy = -(probabilities * torch.log(probabilities)).sum()
    features = torch.stack([similarities.max(), most, max(favourites) / 10, expected / 10, entropy / 10])
    hidden = torch.tanh(pointer.features.weight @ features + pointer.features.bias)
    gate = pointer.gate.weight[0] @ hidden + pointer.gate.bias[0] + pointer.state.weight[0] @ state
    share = torch.sigmoid(gate)
    mixture = (1 - share) * probabilities
    for token, got in votes.items():
        mixture[token] = mixture[token] + share * got
    return torch.log(mixture) + torch.logsumexp(logits, 0)


def _direction(pointer: LearnedPointer, state: Tensor) -> Tensor:
    normed = _norm(pointer.norm, state)
    return normed / torch.sqrt((normed * normed).sum())


def _encode(
    model: Retro, neighbour: Tensor, exists: list[bool], h_u: list[Tensor], exists_u: list[bool], before: int
) -> list[Tensor]:
    """ENCODER(RET(C_u)^j, H_u)."""
    assert model.encoder is not None
    assert model.config.retrieval is not None
    table = model.embedding if model.encoder_embedding is None else model.encoder_embedding
    e = [table.weight[token] * math.sqrt(table.embedding_dim) for token in neighbour]
    for p in range(1, model.config.retrieval.encoder.num_layers + 1):
        layer = model.encoder.layers[p - 1]
        e = _self_attention(layer.self_attention, e, exists, causal=False)
        if layer.cross_attention is not None:
            condition = [_norm(model.encoder.condition_norm, state) for state in h_u]
            e = _encoder_cross_attention(layer.cross_attention, e, condition, exists_u, before)
        e = [_feed_forward(layer.feed_forward, state) for state in e]
    return [_norm(model.encoder.norm, state) for state in e]


def _self_attention(
    operator: SelfAttention, h: list[Tensor], exists: list[bool], causal: bool
) -> list[Tensor]:
    """ATTN: residual, with the norm first; the distance from token i to token j is i − j."""
    normed = [_norm(operator.norm, state) for state in h]
    result = []
    for i in range(1, len(h) + 1):
        # Padding is never a key; a causal query sees itself and what came before.
        keys = [j for j in range(1, len(h) + 1) if exists[j - 1] and (j <= i or not causal)]
        distances = [i - j for j in keys]
        result.append(
            h[i - 1] + _attend(operator.attention, normed[i - 1], [normed[j - 1] for j in keys], distances)
        )
    return result


def _encoder_cross_attention(
    operator: EncoderCrossAttention, e: list[Tensor], condition: list[Tensor], exists: list[bool], before: int
) -> list[Tensor]:
    """CA of the encoder: d_enc(i', i) = i' − i."""
    result = []
    for i_retrieved, state in enumerate(e, start=before + 1):
        keys = [i for i in range(1, len(condition) + 1) if exists[i - 1]]
        distances = [i_retrieved - i for i in keys]
        output = _attend(
            operator.attention, _norm(operator.norm, state), [condition[i - 1] for i in keys], distances
        )
        result.append(state + output)
    return result


def _chunked_cross_attention(
    operator: ChunkedCrossAttention,
    h: list[Tensor],
    encoded: list[list[list[Tensor]]],
    readable: list[list[list[bool]]],
    m: int,
    before: int,
) -> list[Tensor]:
    """CCA(H, E)_{u m + i − 1} = CA(h_{u m + i − 1}, E_u) with d(i, i') = i − i' + m − 1;
    elsewhere the identity."""
    result = list(h)
    for u in range(1, len(encoded) + 1):
        for i in range(1, m + 1):
            # i = 1 is the last token of chunk u itself, the first that may read its neighbours.
            position = u * m + i - 1
            # The last chunk's m positions may reach beyond the sequence.
            if position > len(h):
                continue
            memory, distances = [], []
            for neighbour, flags in zip(encoded[u - 1], readable[u - 1], strict=True):
                for i_retrieved, (state, flag) in enumerate(
                    zip(neighbour, flags, strict=True), start=before + 1
                ):
                    if flag:
                        memory.append(state)
                        distances.append(i - i_retrieved + m - 1)
            state = h[position - 1]
            result[position - 1] = state + _attend(
                operator.attention, _norm(operator.norm, state), memory, distances
            )
    return result


def _attend(
    attention: RelativeAttention, query_state: Tensor, memory: list[Tensor], distances: list[int]
) -> Tensor:
    """Multi-head attention of one query; exactly zero where there is nothing to attend to."""
    if not memory:
        return torch.zeros_like(query_state)
    heads = []
    for head in range(attention.num_heads):
        rows = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
        q = attention.query.weight[rows] @ query_state / math.sqrt(attention.head_dim)
        logits = []
        for state, distance in zip(memory, distances, strict=True):
            logit = torch.dot(q + attention.content_bias[head, 0], attention.key.weight[rows] @ state)
            if attention.has_positions:
                position = attention.position.weight[rows] @ _sinusoid(distance, attention.width, query_state)
                logit = logit + torch.dot(q + attention.position_bias[head, 0], position)
            logits.append(logit)
        # One softmax over everything in memory: for CCA, over all neighbours at once.
        weights = torch.softmax(torch.stack(logits), dim=0)
        heads.append(
            sum(w * (attention.value.weight[rows] @ state) for w, state in zip(weights, memory, strict=True))
        )
    return attention.out.weight @ torch.cat(heads)


def _sinusoid(distance: int, width: int, like: Tensor) -> Tensor:
    angles = [distance / 10_000 ** (index / (width // 2)) for index in range(width // 2)]
    return torch.tensor(
        [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles], dtype=like.dtype
    )


def _norm(norm: torch.nn.Module | None, state: Tensor) -> Tensor:
    assert isinstance(norm, torch.nn.RMSNorm)
    # The same epsilon as `RMSNorm`.
    return state / torch.sqrt((state * state).mean() + 1e-6) * norm.weight


def _feed_forward(operator: FeedForward, state: Tensor) -> Tensor:
    hidden = operator.up.weight @ _norm(operator.norm, state)
    # The tanh approximation of GELU, as in the fast model.
    gelu = 0.5 * hidden * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (hidden + 0.044715 * hidden**3)))
    return state + operator.down.weight @ gelu
