"""From states to the log-probabilities of targets, without ever holding
the logits of all positions."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from retro.model.protocol import Scored

ReadOut = Callable[[Tensor], Tensor]
"""From states (…, width) to logits (…, vocab)."""

WHOLE_LOGITS = 1 << 26
"""Logits of a batch that training holds at once; where there are more, they are made in
parts of a quarter of this."""
FEW_LOGITS = 1 << 22
"""Logits that scoring makes at once, though never of fewer than FEW_ROWS tokens: few enough
to stay in reach of the processor's caches, enough for a quick product."""
FEW_ROWS = 256


def score_states(
    read_out: ReadOut,
    states: Float[Tensor, "batch seq width"],
    targets: Int[Tensor, "batch seq"],
    vocab_size: int,
    pad_id: int,
    greedy: bool = False,
) -> Scored:
    """Log-probabilities of the targets that are no padding; 0 elsewhere.

    In training nearly every position is wanted, and all of them are computed. In scoring a
    window's context is not wanted again, and only the states of real targets are read out.
    """
    if torch.is_grad_enabled():
        return Scored(_with_gradients(read_out, states, targets, vocab_size, pad_id))
    wanted = targets != pad_id
    size = max(FEW_ROWS, FEW_LOGITS // vocab_size)
    log_probs = states.new_zeros(targets.shape)
    best = torch.ones_like(wanted) if greedy else None
    parts, hits = [], []
    for some, tokens in zip(states[wanted].split(size), targets[wanted].split(size), strict=True):
        logits = read_out(some)
        parts.append(-F.cross_entropy(logits, tokens, reduction="none"))
        if greedy:
            hits.append(logits.argmax(-1) == tokens)
    if parts:
        log_probs[wanted] = torch.cat(parts).to(log_probs.dtype)
        if best is not None:
            best[wanted] = torch.cat(hits)
    return Scored(log_probs, best)


def _with_gradients(
    read_out: ReadOut, states: Tensor, targets: Tensor, vocab_size: int, pad_id: int
) -> Float[Tensor, "batch seq"]:
    """Of all positions; where the logits are too many they are made in parts, and
    again in the backward pass."""

    def log_probs(some: Tensor, tokens: Tensor) -> Tensor:
        return -F.cross_entropy(read_out(some), tokens, ignore_index=pad_id, reduction="none")

    flat, flat_targets = states.flatten(0, 1), targets.flatten()
    if len(flat_targets) * vocab_size <= WHOLE_LOGITS:
        return log_probs(flat, flat_targets).view(targets.shape)
    size = max(1, WHOLE_LOGITS // 4 // vocab_size)
    pieces = [
        checkpoint(log_probs, some, tokens, use_reentrant=False, preserve_rng_state=False)
        for some, tokens in zip(flat.split(size), flat_targets.split(size), strict=True)
    ]
    return torch.cat(pieces).view(targets.shape)
