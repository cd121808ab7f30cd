"""Log-probabilities of targets from states, without ever holding the logits of all positions."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from retro.model.gradients import target_log_probs
from retro.model.pointer import Pointer, Vote, measure
from retro.model.protocol import Scored

ReadOut = Callable[[Tensor], Tensor]
"""From states (…, width) to logits (…, vocab)."""

WHOLE_LOGITS = 1 << 26
"""How many logits training holds at once; a larger batch is computed in parts of a
quarter of this."""
FEW_LOGITS = 1 << 22
"""How many logits scoring computes at once, though never fewer than FEW_ROWS tokens: few
enough for the processor's caches, enough for an efficient matrix product."""
FEW_ROWS = 256


def score_states(
    read_out: ReadOut,
    states: Float[Tensor, "batch seq width"],
    targets: Int[Tensor, "batch seq"],
    vocab_size: int,
    pad_id: int,
    greedy: bool = False,
) -> Scored:
    """Log-probabilities of the targets; 0 where the target is padding.

    Training needs nearly every position, so all are computed. Scoring does not need a
    window's context again, so only the states of real targets are read out.
    """
    if torch.is_grad_enabled():
        return Scored(_with_gradients(read_out, states, targets, vocab_size, pad_id))
    wanted = targets != pad_id
    size = max(FEW_ROWS, FEW_LOGITS // vocab_size)
    log_probs = states.new_zeros(targets.shape)
    # Padding counts as a hit, so that `all` over a target's tokens is not disturbed by it.
    best = torch.ones_like(wanted) if greedy else None
    parts, hits = [], []
    # Boolean indexing flattens batch and time, so parts need not respect sequences.
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
    """Log-probabilities at all positions; too many logits are computed in parts.

    The backward pass computes each part's logits again rather than keep them.
    """

    def log_probs(some: Tensor, tokens: Tensor) -> Tensor:
        return target_log_probs(read_out(some), tokens, pad_id)

    flat, flat_targets = states.flatten(0, 1), targets.flatten()
    if len(flat_targets) * vocab_size <= WHOLE_LOGITS:
        return log_probs(flat, flat_targets).view(targets.shape)
    size = max(1, WHOLE_LOGITS // 4 // vocab_size)
    pieces = [
        # Reading out draws no random numbers, so their state need not be saved.
        checkpoint(log_probs, some, tokens, use_reentrant=False, preserve_rng_state=False)
        for some, tokens in zip(flat.split(size), flat_targets.split(size), strict=True)
    ]
    return torch.cat(pieces).view(targets.shape)


def score_mixture(
    pointer: Pointer,
    read_out: ReadOut,
    states: Float[Tensor, "batch seq width"],
    vote: Vote,
    targets: Int[Tensor, "batch seq"],
    vocab_size: int,
    pad_id: int,
    greedy: bool = False,
    *,
    on_top: bool = False,
) -> Scored:
    """As `score_states`, for the mixture of the model's distribution with a vote.

    With `on_top`, gradients train the model for its own distribution, as if there were no pointer, and the
    pointer for the mixture with that. Otherwise both are trained for the mixture, where a model learns little
    from tokens that its neighbours know already; one that is trained by then has learned them before.
    """
    wanted = targets != pad_id
    log_probs = states.new_zeros(targets.shape)
    best = torch.ones_like(wanted) if greedy else None
    some, tokens, votes = states[wanted], targets[wanted], vote.at(wanted)
    # A batch may be all padding; it is one empty part, which has gradients as any other.
    count = max(1, len(tokens))
    size = max(FEW_ROWS, FEW_LOGITS // vocab_size)
    # Beside the logits, the entropy needs as much again three times.
    fits = count * vocab_size <= WHOLE_LOGITS // 4
    if states.requires_grad and fits:
        size = count
    parts = [slice(start, start + size) for start in range(0, count, size)]

    def measured(states: Tensor, targets: Tensor, voted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = read_out(states)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        total, entropy, found = measure(logits, voted)
        return logits.gather(-1, targets[:, None])[:, 0] - total, entropy, found

    if not states.requires_grad:
        with torch.no_grad():
            found = [measured(some[part], tokens[part], votes.tokens[part]) for part in parts]
    elif fits:
        found = [measured(some, tokens, votes.tokens)]
    else:
        # The backward pass computes each part's logits again rather than keep them.
        found = [
            checkpoint(measured, some[part], tokens[part], votes.tokens[part], use_reentrant=False)
            for part in parts
        ]
    own, entropy, voted = (torch.cat(column) for column in zip(*found, strict=True))
    if on_top:
        mixed = pointer.mix_targets(
            votes, some.detach(), own.detach(), entropy.detach(), voted.detach(), tokens
        )
        # Its value is the mixture's; its gradient is the sum of both.
        mixed = mixed + (own - own.detach())
    else:
        mixed = pointer.mix_targets(votes, some, own, entropy, voted, tokens)
    log_probs = log_probs.to(mixed.dtype).masked_scatter(wanted, mixed)
    if best is not None:
        hits = [
            pointer.mix_logits(votes.at(part), some[part], read_out(some[part])).argmax(-1) == tokens[part]
            for part in parts
        ]
        best[wanted] = torch.cat(hits)
    return Scored(log_probs, best)
