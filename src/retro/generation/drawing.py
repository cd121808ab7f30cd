"""Draw one token from its logits, as a request's `Choice` says.

Rows never affect each other, so a sequence's tokens do not depend on its batch.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retro.generation.request import Choice

HEADS = (64, 1024)
"""How many of the most probable tokens to try for `top_p` before sorting all, which is slow."""


def penalise(
    logits: Float[Tensor, "*batch vocab"],
    seen: Bool[Tensor, "*batch vocab"],
    penalty: float | Float[Tensor, "*batch 1"],
) -> Float[Tensor, "*batch vocab"]:
    """Make tokens already seen less likely, or more likely if the penalty is below 1."""
    # Dividing a negative logit would raise it, so negative ones are multiplied.
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)


def penalise_counted(
    logits: Float[Tensor, "*batch vocab"],
    counts: Float[Tensor, "*batch vocab"],
    frequency: Float[Tensor, "*batch 1"],
    presence: Float[Tensor, "*batch 1"],
) -> Float[Tensor, "*batch vocab"]:
    """OpenAI's penalties: for each time that a token was written, and once if it was."""
    return logits - frequency * counts - presence * (counts > 0)


def draw(
    logits: Float[Tensor, "*batch vocab"], uniforms: Float[Tensor, "*batch"], choice: Choice
) -> Int[Tensor, "*batch"]:
    """The token where each uniform number from [0, 1) falls in the cumulative distribution."""
    kept, tokens = candidates(logits, choice)
    # In double precision, so that the sum over a large vocabulary keeps its smallest terms.
    # The mass need not be 1: the uniform number is scaled to it instead.
    cumulated = kept.double().cumsum(-1)
    places = uniforms.to(cumulated)[..., None] * cumulated[..., -1:]
    # To the right of equal entries, so that a token without mass is never drawn.
    place = torch.searchsorted(cumulated, places, right=True)
    # Rounding may put a number close to 1 past the last entry.
    return tokens.gather(-1, place.clamp(max=tokens.shape[-1] - 1)).squeeze(-1)


def candidates(
    logits: Float[Tensor, "*batch vocab"], choice: Choice
) -> tuple[Float[Tensor, "*batch candidate"], Int[Tensor, "*batch candidate"]]:
    """The tokens to draw from, and their probabilities up to a factor; zero where cut off."""
    if choice.temperature == 0:
        tokens = logits.argmax(-1, keepdim=True)
        return torch.ones_like(tokens, dtype=logits.dtype), tokens
    # The largest becomes 0, so that a temperature near 0 cannot make it infinite.
    scaled = (logits - logits.amax(-1, keepdim=True)) / choice.temperature
    if choice.top_k:
        scaled, tokens = scaled.topk(min(choice.top_k, logits.shape[-1]))
        return _nucleus(scaled.softmax(-1), choice.top_p), tokens
    probabilities = scaled.softmax(-1)
    if choice.top_p == 1:
        # Nothing is cut off, so nothing need be sorted: every token is a candidate.
        tokens = torch.arange(logits.shape[-1], device=logits.device)
        return probabilities, tokens.expand(logits.shape)
    # If the head holds `top_p` of the mass in every row, it contains every row's nucleus.
    for size in HEADS:
        if size < logits.shape[-1]:
            ordered, tokens = probabilities.topk(size)
            if bool((ordered.sum(-1) >= choice.top_p).all()):
                return _nucleus(ordered, choice.top_p), tokens
    ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    return _nucleus(ordered, choice.top_p), tokens


def _nucleus(ordered: Float[Tensor, "*batch kept"], top_p: float) -> Float[Tensor, "*batch kept"]:
    """Keep the fewest of these falling probabilities that hold `top_p`; set the
    others to zero."""
    # A token is kept if those before it hold less than `top_p`, so the first always is.
    mass_before = ordered.cumsum(-1) - ordered
    return torch.where(mass_before < top_p, ordered, 0.0)
