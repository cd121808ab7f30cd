"""Whether a base can be sampled from: its cache must give, token by token, the logits of the whole text."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from retro.errors import RetroError
from retro.fitting.decoding import FittedDecoding
from retro.fitting.places import probe_tokens

if TYPE_CHECKING:
    from retro.fitting.fitted import FittedModel

FAULTS = (RetroError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""What a base may raise that was not made for what is asked of it."""


@torch.no_grad()
def decoding_fault(model: "FittedModel", ragged: bool) -> str | None:
    """Why a base's cache does not give the logits of the whole text; None if it does.

    `ragged`: for prompts of several lengths, which are padded on the left.
    """
    try:
        if ragged:
            return _compare(model, (4, 7), "a prompt padded on the left")
        return _compare(model, (4, 4), "token by token it") or _compare_reading(model)
    except FAULTS as error:
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _compare(model: "FittedModel", starts: tuple[int, int], what: str) -> str | None:
    """Two texts without neighbours, from prompts of these lengths on, against each one alone and whole."""
    tokens = probe_tokens(model.base, 2, max(starts) + 3)
    decoding = FittedDecoding(model, trusted=True)
    found = [decoding.prefill([tokens[row, : starts[row]].tolist() for row in (0, 1)])]
    for place in range(3):
        found.append(decoding.step([int(tokens[row, starts[row] + place]) for row in (0, 1)]))
    for row, start in enumerate(starts):
        whole = model(tokens[row : row + 1])[0, start - 1 :][: len(found)]
        fault = _difference(torch.stack([logits[row] for logits in found]), whole, what)
        if fault is not None:
            return fault
    return None


def _compare_reading(model: "FittedModel") -> str | None:
    """A text whose first chunk is completed with neighbours while it grows, against the whole."""
    m = model.config.chunk_len
    tokens = probe_tokens(model.base, 1, m + 2)
    neighbours = probe_tokens(model.base, 2, 2 * m)[None, None]
    whole = model(tokens, neighbours)[0, m - 1 :]
    decoding = FittedDecoding(model, trusted=True)
    decoding.prefill([tokens[0, : m - 1].tolist()])
    found = [decoding.step([int(tokens[0, m - 1])], neighbours[:, 0])[0]]
    found += [decoding.step([int(token)])[0] for token in tokens[0, m:]]
    return _difference(
        torch.stack(found).log_softmax(-1), whole.log_softmax(-1), "token by token, with neighbours, it"
    )


def _difference(cached: Tensor, whole: Tensor, what: str) -> str | None:
    size = float(whole.abs().max())
    off = float((cached - whole).abs().max())
    # Cached tokens are summed up in another order.
    if off <= min(0.05, 3e3 * torch.finfo(whole.dtype).eps) * size:
        return None
    return f"{what} gives logits that are off by {off / size:.2g} of their size"
