"""Neighbours as the base itself reads them: keys and values for its attention, states for the pointer.

A neighbour is read by itself, so neighbours do not see each other and their order does not matter. Two things
make the difference between a reading that helps and one that helps as much as the neighbour in the prompt:

- *The first token is left out.* In most models the first token of a text is where heads attend that have
  nothing to attend to. The text has one already; with one more in each neighbour, what is worth reading would
  get a smaller part.
- *They stand at a distance.* Heads that look for the token just before them go by position. A neighbour whose
  tokens stood where the text's stand would be mistaken for it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retro.fitting.beside import Memory
from retro.fitting.interface import Asked
from retro.fitting.readings import Joints, Reading
from retro.model.pointer import successors

if TYPE_CHECKING:
    from retro.fitting.fitted import FittedModel

READ_AT_ONCE = 1 << 14
"""Neighbour tokens that the base reads in one pass; more are read in several."""
RUNS = (1, 2, 4)
"""Lengths of the runs of tokens by which a neighbour is compared with the chunk that found it."""


@dataclass(frozen=True)
class Retrieved:
    """Neighbours as the base has read them, for each chunk (batch, chunk, …)."""

    neighbours: Int[Tensor, "batch chunk neighbour retrieved"]
    is_token: Bool[Tensor, "batch chunk neighbour retrieved"]
    memories: dict[int, Memory]
    """By layer, from 0; empty unless the base's attention reads them."""
    keys: Float[Tensor, "batch chunk voter width"] | None
    """States to match, standardised; None without a pointer."""
    voted: Int[Tensor, "batch chunk voter"]
    is_voter: Bool[Tensor, "batch chunk voter"]

    def first(self, k: int) -> "Retrieved":
        """The first k neighbours of each chunk."""
        # Voters are tokens, neighbour by neighbour.
        stop = k * self.neighbours.shape[3]
        memories = {
            layer: Memory(
                memory.keys[..., :stop, :],
                memory.values[..., :stop, :],
                memory.is_token[..., :stop],
                memory.likeness[..., :stop, :],
            )
            for layer, memory in self.memories.items()
        }
        return Retrieved(
            self.neighbours[:, :, :k],
            self.is_token[:, :, :k],
            memories,
            None if self.keys is None else self.keys[..., :stop, :],
            self.voted[..., :stop],
            self.is_voter[..., :stop],
        )


class _Enough(Exception):  # noqa: N818 — not an error: the layers above are not needed
    """Ends a forward pass of the base early."""


class _Trunk(Reading):
    """Reads text through the first layers of the base, and stops there if that is all that is needed."""

    def __init__(self, joints: Joints, last: int, deepest: int = -1) -> None:
        """`last` is the layer, from 0, after which nothing is needed, `deepest` the one of which only keys
        and values are; −1 for none."""
        super().__init__(joints)
        self.last = last
        self.deepest = deepest
        self.memories: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values of each layer, as its attention was given them."""

    def attend(self, layer: int, asked: Asked) -> Tensor:
        self.memories[layer] = (asked.key, asked.value)
        if layer == self.deepest:
            raise _Enough
        return asked.own

    def leave(self, layer: int, states: Tensor) -> None:
        super().leave(layer, states)
        if layer == self.last:
            raise _Enough


@torch.no_grad()
def read_neighbours(
    model: "FittedModel",
    neighbours: Int[Tensor, "batch chunk neighbour retrieved"],
    mask: Bool[Tensor, "batch chunk neighbour"] | None,
    chunks: Int[Tensor, "batch chunk"],
    found_by: Int[Tensor, "batch chunk m"],
) -> Retrieved:
    """Let the base read neighbours; `chunks` are the numbers of the chunks that retrieved them, and
    `found_by` their tokens."""
    config = model.config
    is_token = neighbours != model.pad_id
    if mask is not None:
        is_token = is_token & mask[..., None]
    voted, is_voter = successors(neighbours.masked_fill(~is_token, 0), is_token)
    if model.bias is None and model.pointer is None:
        return Retrieved(neighbours, is_token, {}, None, voted, is_voter)
    shape = neighbours.shape
    # They end this far before the first token that reads them, the last of their chunk.
    reader = chunks[..., None].expand(shape[:3]) * config.chunk_len + config.chunk_len - 1
    first = (reader - config.distance - shape[3]).flatten()
    rows = neighbours.masked_fill(~is_token, 0).flatten(0, 2)
    step = max(1, READ_AT_ONCE // shape[3])
    parts = [_read_rows(model, rows[i : i + step], first[i : i + step]) for i in range(0, len(rows), step)]
    keys = None
    if model.pointer is not None:
        keys = torch.cat([states for states, _ in parts if states is not None])
        keys = rearrange(keys, "(b u k) r d -> b u (k r) d", b=shape[0], u=shape[1])
    is_read = is_token.clone()
    is_read[..., 0] = False
    memories = {}
    if model.bias is not None:
        shares = likeness(found_by, neighbours, is_token, model.pad_id).to(model.bias.dtype)
        for layer in config.layers:
            memories[layer - 1] = _memory([caches[layer - 1] for _, caches in parts], is_read, shares)
    return Retrieved(neighbours, is_token, memories, keys, voted, is_voter)


def likeness(
    chunks: Int[Tensor, "batch chunk m"],
    neighbours: Int[Tensor, "batch chunk neighbour retrieved"],
    is_token: Bool[Tensor, "batch chunk neighbour retrieved"],
    pad_id: int,
) -> Float[Tensor, "batch chunk neighbour measure"]:
    """How like its chunk each neighbour is: the part of the chunk's runs of each length that stand in it."""
    real = chunks != pad_id
    # same[i, j]: the chunk's i-th token is the neighbour's j-th.
    same = chunks[:, :, None, :, None] == neighbours[:, :, :, None, :]
    same &= real[:, :, None, :, None] & is_token[:, :, :, None, :]
    runs, whole, length = same, real, 1
    shares = []
    for wanted in RUNS:
        # Two runs of a length, one behind the other, are one of twice that.
        while length < wanted:
            runs = runs[..., :-length, :-length] & runs[..., length:, length:]
            whole = whole[..., :-length] & whole[..., length:]
            length *= 2
        num_runs = whole.sum(-1).clamp_min(1)
        shares.append(runs.any(-1).sum(-1).double() / num_runs[..., None])
    return torch.stack(shares, -1)


def trunk_states(model: "FittedModel", tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
    """The states that the pointer matches, of whole texts."""
    trunk = _Trunk(model.joints, model.config.pointer_layer - 1)
    with suppress(_Enough):
        model.run(trunk, **model.inputs(tokens), use_cache=False)
    return trunk.states[trunk.last]


def _read_rows(
    model: "FittedModel", rows: Int[Tensor, "row retrieved"], first: Int[Tensor, "row"]
) -> tuple[Tensor | None, dict[int, tuple[Tensor, Tensor]]]:
    """States to match, and keys and values of each layer, for texts that start at these positions."""
    matched = model.config.pointer_layer - 1 if model.pointer is not None else -1
    # Padding stands at the end, where no earlier token sees it: no mask is needed.
    inputs: dict[str, Any] = {"input_ids": rows, "use_cache": False}
    if model.relative:
        inputs["position_ids"] = first[:, None] + torch.arange(rows.shape[1], device=rows.device)
    deepest = -1 if model.bias is None else max(model.config.layers) - 1
    # What is needed last ends the pass.
    ends = (matched, -1) if matched >= deepest else (-1, deepest)
    trunk = _Trunk(model.reader.joints, *ends)
    with suppress(_Enough):
        model.run(trunk, model.reader, **inputs)
    memories = trunk.memories
    if model.bias is not None and model.is_quick:
        # In the precision of the text that will read them.
        dtype = model.bias.dtype
        memories = {layer: (key.to(dtype), value.to(dtype)) for layer, (key, value) in memories.items()}
    if model.pointer is None:
        return None, memories
    return model.pointer.standardise(trunk.states[matched].to(model.pointer.mean.dtype)), memories


def _memory(
    parts: Sequence[tuple[Tensor, Tensor]],
    is_read: Bool[Tensor, "batch chunk neighbour retrieved"],
    shares: Float[Tensor, "batch chunk neighbour measure"],
) -> Memory:
    batch, chunks = is_read.shape[:2]
    keys, values = (
        rearrange(torch.cat(tensors), "(b u k) h r d -> b u h (k r) d", b=batch, u=chunks)
        for tensors in zip(*parts, strict=True)
    )
    by_token = shares.repeat_interleave(is_read.shape[3], dim=2)
    return Memory(keys, values, is_read.flatten(-2), by_token)
