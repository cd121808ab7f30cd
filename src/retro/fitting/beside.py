"""Neighbours beside the text: a base's own self-attention reads them, in one softmax with its past.

The base reads a neighbour as it would read any text, some way before the tokens that will read it
(`neighbours`). The keys and values it computes on the way are what those tokens then attend to, by the base's
own queries, beside the keys and values of the text: as if the neighbour stood in the prompt, but without
reading the prompt again, and without using up the context. Nothing needs to be trained for it; a few numbers
for each head say how much more or less the neighbours count than the text, how sharply they are read, and how
much a neighbour's likeness to the chunk that found it matters.

A softmax over two sets of keys is the mean of the softmax over each, weighted by the sums of their
exponentials. So the base's own attention is computed as ever, by its own kernel, and where there is no
neighbour the result is its own, bit for bit.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from retro.fitting.interface import Asked, put_in, take_out
from retro.fitting.readings import _ACTIVE

PREFIX = "retro_beside_"
"""Before the name of the base's own attention, in transformers' table of attentions."""
NONE = -1e30
"""A logit that is as good as −∞, and stays finite in sums."""


@dataclass(frozen=True)
class Memory:
    """Keys and values of one layer, for each row of queries."""

    keys: Float[Tensor, "batch row kv_heads voter head_dim"]
    values: Float[Tensor, "batch row kv_heads voter value_dim"]
    """Some bases have values of another width than keys."""
    is_token: Bool[Tensor, "batch row voter"]
    likeness: Float[Tensor, "batch row voter measure"]
    """Of each token's neighbour to the chunk that found it (`likeness`)."""


@dataclass(frozen=True)
class Weighing:
    """How the heads of one layer weigh neighbours against the text."""

    bias: Float[Tensor, "heads"]
    """How much more the neighbours count than the text."""
    scale: Float[Tensor, "heads"]
    """How much more sharply they are read."""
    trust: Float[Tensor, "heads measure"] | None
    """How much more a neighbour counts by each measure of its likeness."""


def read(
    query: Float[Tensor, "batch heads row m head_dim"],
    memory: Memory,
    weighing: Weighing,
    scaling: float,
    softcap: float | None = None,
) -> tuple[Float[Tensor, "batch heads row m value_dim"], Float[Tensor, "batch heads row m"]]:
    """What rows of queries read from their memories, and the logarithm of the sum of exponentials."""
    m, kv_heads = query.shape[3], memory.keys.shape[2]
    query = query * weighing.scale[:, None, None, None]
    # Several heads share keys; their queries stand one below the other.
    grouped = rearrange(query, "batch (kv group) row m d -> batch row kv (group m) d", kv=kv_heads)
    logits = _capped(_precise(grouped @ memory.keys.transpose(-1, -2) * scaling), softcap)
    if weighing.trust is not None:
        # The same for all tokens of a neighbour, and for all queries of a row.
        offset = memory.likeness @ weighing.trust.T
        offset = rearrange(offset, "batch row voter (kv group) -> batch row kv group 1 voter", kv=kv_heads)
        logits = (logits.unflatten(3, (-1, m)) + offset).flatten(3, 4)
    logits = logits.masked_fill(~memory.is_token[:, :, None, None], NONE)
    total = logits.logsumexp(-1, keepdim=True)
    found = (logits - total).exp().to(memory.values.dtype) @ memory.values
    return (
        rearrange(found, "batch row kv (group m) d -> batch (kv group) row m d", m=m),
        rearrange(total[..., 0], "batch row kv (group m) -> batch (kv group) row m", m=m),
    )


@dataclass(frozen=True)
class Folded:
    """A memory for single tokens: what is the same for all that read it is computed beforehand."""

    keys: Float[Tensor, "batch heads head_dim voter"]
    """With the heads' sharpness and the base's scaling."""
    values: Float[Tensor, "batch heads voter value_dim"]
    offset: Float[Tensor, "batch heads 1 voter"]
    """What is added to the logits: the heads' weighing, and as good as −∞ where nothing is to be read."""
    present: Bool[Tensor, "batch 1 1"]
    is_whole: bool
    """Whether every sequence has something to read."""


def fold(memory: Memory, weighing: Weighing, scaling: float) -> Folded:
    """The memory of a single row, ready for one token after the other."""
    heads = len(weighing.bias)
    group = heads // memory.keys.shape[2]
    is_token, likeness = memory.is_token[:, 0, None, None], memory.likeness[:, 0]
    keys = memory.keys[:, 0].repeat_interleave(group, 1) * (scaling * weighing.scale)[:, None, None]
    present = is_token.any(-1)
    offset = _precise(weighing.bias)[None, :, None, None].expand(len(keys), -1, 1, keys.shape[2])
    if weighing.trust is not None:
        offset = offset + (likeness @ weighing.trust.T).transpose(1, 2)[:, :, None]
    return Folded(
        keys.transpose(2, 3).contiguous(),
        memory.values[:, 0].repeat_interleave(group, 1),
        offset.masked_fill(~is_token, NONE),
        present,
        bool(present.all()),
    )


def read_folded(
    query: Float[Tensor, "batch heads 1 head_dim"], memory: Folded, softcap: float | None = None
) -> tuple[Float[Tensor, "batch heads 1 value_dim"], Float[Tensor, "batch heads 1"]]:
    """What single tokens read, and the logarithm of the sum of exponentials, the heads' bias included."""
    logits = _capped(_precise(query @ memory.keys), softcap) + memory.offset
    total = logits.logsumexp(-1, keepdim=True)
    return (logits - total).exp().to(memory.values.dtype) @ memory.values, total[..., 0]


def read_together(asked: Asked, memory: Folded) -> Float[Tensor, "batch 1 heads value_dim"]:
    """What single tokens read of their past and of the neighbours, in one softmax.

    As the mean of both readings, but for rounding, and without asking the base's own attention; only where
    every sequence has neighbours.
    """
    own = own_logits(asked)
    past = own.shape[-1]
    logits = [own, _capped(_precise(asked.query @ memory.keys), asked.softcap) + memory.offset]
    if asked.sinks is not None:
        logits.append(asked.sinks.to(own).reshape(1, -1, 1, 1).expand(len(own), -1, 1, 1))
    weights = torch.cat(logits, -1).softmax(-1).to(asked.value.dtype)
    grouped = weights[..., :past].unflatten(1, (asked.value.shape[1], -1)).squeeze(3)
    found = (grouped @ asked.value).flatten(1, 2)
    voters = weights[..., past : past + memory.values.shape[2]]
    return (found + (voters @ memory.values).squeeze(2))[:, None]


def own_total(asked: Asked) -> Float[Tensor, "batch heads seq"]:
    """The logarithm of the sum of exponentials of the base's own self-attention."""
    total = own_logits(asked).logsumexp(-1)
    if asked.sinks is not None:
        total = torch.logaddexp(total, asked.sinks.to(total).reshape(1, -1, 1))
    return total


def own_logits(asked: Asked) -> Float[Tensor, "batch heads seq past"]:
    """Those of the base's own self-attention, but for its sinks."""
    query, key, mask = asked.query, asked.key, asked.mask
    group = query.shape[1] // key.shape[1]
    grouped = rearrange(query, "batch (kv group) seq d -> batch kv (group seq) d", group=group)
    logits = _capped(_precise(grouped @ key.transpose(-1, -2) * asked.scaling), asked.softcap)
    logits = rearrange(logits, "batch kv (group seq) past -> batch (kv group) seq past", group=group)
    length, past = logits.shape[-2:]
    if asked.position_bias is not None:
        logits = logits + asked.position_bias
    if mask is None:
        # The kernels take no mask for what is causal; a single token sees everything.
        if length > 1:
            later = torch.ones(length, past, dtype=torch.bool, device=query.device).triu(past - length + 1)
            logits = logits.masked_fill(later, NONE)
    elif mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask[..., :past], NONE)
    else:
        logits = logits + mask[..., :past]
    return logits


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def _precise(logits: Tensor) -> Tensor:
    """At least float32: sums of exponentials that are rounded to half precision double the error or more."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def share(
    found: Float[Tensor, "batch heads seq value_dim"],
    total: Float[Tensor, "batch heads seq"],
    own: Float[Tensor, "batch heads seq value_dim"],
    own_sum: Float[Tensor, "batch heads seq"],
    present: Bool[Tensor, "batch 1 seq"] | Bool[Tensor, "batch 1 1"],
) -> Float[Tensor, "batch heads seq value_dim"]:
    """The mean of both readings, weighted by their sums; the base's own where nothing is present."""
    weight = torch.sigmoid(total - own_sum)
    weight = torch.where(present, weight, 0.0)[..., None].to(own.dtype)
    return own + weight * (found.to(own.dtype) - own)


def rows_of_heads(
    query: Float[Tensor, "batch heads seq head_dim"], chunk_len: int, num_chunks: int
) -> Float[Tensor, "batch heads row m head_dim"]:
    """The positions that read each chunk's neighbours; the last row is filled up with zeros."""
    m = chunk_len
    missing = num_chunks * m - (query.shape[2] - m + 1)
    reading = F.pad(query[:, :, m - 1 :], (0, 0, 0, max(0, missing)))[:, :, : num_chunks * m]
    return rearrange(reading, "batch heads (row m) d -> batch heads row m d", m=m)


def attend_beside(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Any]:
    """Transformers' attention, with the neighbours of the active reading beside it.

    Some modules give the mask by its name, so the argument is called as transformers calls it.
    """
    asked = Asked(module, query, key, value, attention_mask, options, PREFIX)
    reading = _ACTIVE.get()
    layer = None if reading is None else reading.joints.number.get(id(module))
    if reading is None or layer is None:
        return asked.answer
    return reading.attend(layer, asked), asked.weights


def put_beside(model: nn.Module) -> None:
    """Let a base's attention ask the active reading."""
    put_in(model, PREFIX, attend_beside)


def take_away(model: nn.Module) -> None:
    """Give a base its own attention back."""
    take_out(model, PREFIX)
