"""A second opinion beside the model's: p = λ p_other + (1 − λ) p_LM, with λ and the other's sharpness tuned on data of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retro.comparators.token_states import TokenStates
from retro.corpus.tokens import TokenStore
from retro.errors import DataError

WEIGHTS = tuple(np.round(np.arange(0.0, 0.99, 0.02), 2).tolist())
"""λ from 0, the model alone, so that on the tuning data mixing never loses."""

LogProbs = Callable[[float], np.ndarray]
"""log2 p_other of every row's value, given the sharpness."""


@dataclass(frozen=True)
class Tuned:
    """What was found best, and on what."""

    weight: float
    """λ."""
    sharpness: float
    """α of kNN-LM, θ of the cache."""
    bits_per_byte: float
    """On the data of the tuning."""
    tuned_on: str
    """Fingerprint of that token store."""
    at_edge: bool
    """Whether the best sharpness or λ is the last of those tried, so that a better one may lie beyond."""


def mix(bits: np.ndarray, log_probs: np.ndarray, weight: float) -> np.ndarray:
    """Bits of the mixture; with a weight of 0 exactly the model's own."""
    with np.errstate(divide="ignore"):
        mixed: np.ndarray = -np.logaddexp2(np.log2(weight) + log_probs, np.log2(1.0 - weight) - bits)
    return mixed


def tune(
    states: TokenStates, log_probs: LogProbs, sharpnesses: Sequence[float], weights: Sequence[float] = WEIGHTS
) -> Tuned:
    """The best pair of a grid, over the tokens that carry text."""
    counted = np.asarray(states.values) != states.store.end_id
    bits = states.bits[counted]
    totals = np.empty((len(sharpnesses), len(weights)))
    for row, sharpness in enumerate(sharpnesses):
        other = log_probs(sharpness)[counted]
        totals[row] = [mix(bits, other, weight).sum() for weight in weights]
    row, column = divmod(int(totals.argmin()), len(weights))
    weight, sharpness = weights[column], sharpnesses[row]
    at_edge = weight > 0 and (row in (0, len(sharpnesses) - 1) or column == len(weights) - 1)
    best = states.scores(mix(states.bits, log_probs(sharpness), weight)).bits_per_byte
    return Tuned(weight, sharpness, best, states.store.fingerprint, at_edge)


def expect_apart(one: TokenStore, other: TokenStore, why: str) -> None:
    """Refuse two stores that have a document in common, `why` says what they are."""
    shared = {document["content_hash"] for document in one.documents} & {
        document["content_hash"] for document in other.documents
    }
    if shared:
        raise DataError(
            f"{one.artifact.path} and {other.artifact.path} share {len(shared)} documents; expected none, as {why}; name another split"
        )
