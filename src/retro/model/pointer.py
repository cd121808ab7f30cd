"""A pointer into the neighbours: their tokens vote for what comes next, and a gate says how much that counts.

A model's states at some layer are the same function of the text and of a neighbour. Where the state at the
newest token resembles the state at a neighbour's token, that neighbour's *next* token is voted for. The
output is a mixture, (1 − λ) · model + λ · vote, whose weight λ a small network reads off how sure both sides
are. Without neighbours λ is exactly 0. Unlike cross-attention it cannot paraphrase; unlike kNN-LM it needs no
key for every token of the datastore, as tokens are matched when a chunk is read.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from retro.model.attention import RMSNorm

SHARPNESS = 24.0
"""What similarities between −1 and 1 are multiplied by at the start."""
START = -1.5
"""The gate's first logit: λ is 0.18 wherever there are neighbours."""
TIE = 1e-3
"""Tokens whose votes differ by less than this part are equally favoured."""
TINY = 1e-30
"""Stands for the logarithm's argument where nobody votes for a token."""
NUM_FEATURES = 5


@dataclass(frozen=True)
class Vote:
    """What the tokens of the neighbours vote for at each position; nobody does where none is present."""

    weights: Float[Tensor, "*batch voter"]
    """How much each voter counts; they sum to 1."""
    tokens: Int[Tensor, "*batch voter"]
    """What each votes for: the token after it."""
    mass: Float[Tensor, "*batch voter"]
    """How much its token gets from all voters together."""
    leads: Bool[Tensor, "*batch voter"]
    """Whether it is the first voter for its token."""
    similarity: Float[Tensor, "*batch"]
    """Of the most similar voter."""
    present: Bool[Tensor, "*batch"]

    def at(self, places: Any) -> "Vote":
        """The vote at some of the positions."""
        return Vote(
            self.weights[places],
            self.tokens[places],
            self.mass[places],
            self.leads[places],
            self.similarity[places],
            self.present[places],
        )

    def flatten(self) -> "Vote":
        """All positions along one axis."""
        voters = self.weights.shape[-1]
        return Vote(
            self.weights.reshape(-1, voters),
            self.tokens.reshape(-1, voters),
            self.mass.reshape(-1, voters),
            self.leads.reshape(-1, voters),
            self.similarity.flatten(),
            self.present.flatten(),
        )

    def probability(self, targets: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """How much the targets get."""
        return (self.weights * (self.tokens == targets[..., None])).sum(-1)


class Pointer(nn.Module):
    """Matches states, and mixes the vote into a distribution."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, match_width: int, state_width: int, hidden: int = 32) -> None:
        """`match_width` is that of the states that are compared, `state_width` that of the last ones."""
        super().__init__()
        # Some dimensions of a residual stream are a hundred times as large as others, and say little.
        self.register_buffer("mean", torch.zeros(match_width))
        self.register_buffer("deviation", torch.ones(match_width))
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(SHARPNESS)))
        self.features = nn.Linear(NUM_FEATURES, hidden)
        self.state = nn.Linear(state_width, 1, bias=False)
        self.gate = nn.Linear(hidden, 1)
        nn.init.zeros_(self.state.weight)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, START)

    @torch.no_grad()
    def calibrate(self, states: Float[Tensor, "*batch width"]) -> None:
        """Learn what is usual from states of ordinary text."""
        flat = states.reshape(-1, states.shape[-1]).float()
        self.mean.copy_(flat.mean(0))
        self.deviation.copy_(flat.std(0, correction=0).clamp_min(1e-4))

    def standardise(self, states: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Directions that can be compared: every dimension counts alike, and all have unit length."""
        return F.normalize((states - self.mean) / self.deviation, dim=-1)

    def vote(
        self,
        queries: Float[Tensor, "batch row query width"],
        keys: Float[Tensor, "batch row voter width"],
        tokens: Int[Tensor, "batch row voter"],
        is_voter: Bool[Tensor, "batch row voter"],
    ) -> Vote:
        """Rows of queries, each against its own voters; both are standardised."""
        similarity = queries @ keys.transpose(-1, -2)
        # Finite, so that a row without voters gives numbers; it is not present, and weighs nothing.
        similarity = similarity.masked_fill(~is_voter[..., None, :], -2.0)
        logits = (similarity * self.log_sharpness.exp()).masked_fill(~is_voter[..., None, :], -1e9)
        weights = logits.softmax(-1) * is_voter[..., None, :]
        # Voters of one token share what it gets: a product with the matrix of who agrees with whom.
        agree = tokens[..., :, None] == tokens[..., None, :]
        leads = ~agree.tril(-1).any(-1)
        shape = similarity.shape
        present = is_voter.any(-1)[..., None].expand(shape[:-1])
        return Vote(
            weights,
            tokens[..., None, :].expand(shape),
            weights @ agree.to(weights.dtype),
            leads[..., None, :].expand(shape),
            similarity.amax(-1),
            present,
        )

    def log_weights(
        self,
        vote: Vote,
        states: Float[Tensor, "*batch state"],
        entropy: Float[Tensor, "*batch"],
        found: Float[Tensor, "*batch voter"],
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """log (1 − λ) and log λ; exactly 0 and −∞ where nobody votes.

        `entropy` is that of the model's distribution, and `found` the log-probabilities that it gives to the
        voted tokens.
        """
        most = vote.mass.amax(-1, keepdim=True)
        # Neighbours that begin alike tie. Not rounding decides between their tokens: the likeliest counts.
        favourites = found.masked_fill(vote.mass < most * (1 - TIE), -torch.inf).amax(-1)
        features = torch.stack(
            [
                vote.similarity,
                most[..., 0],
                favourites / 10,
                (vote.weights * found).sum(-1) / 10,
                entropy / 10,
            ],
            -1,
        )
        hidden = torch.tanh(self.features(features))
        gate = (self.gate(hidden) + self.state(states))[..., 0]
        # log σ(−g) = log (1 − σ(g))
        rest = torch.where(vote.present, F.logsigmoid(-gate), 0.0)
        weight = torch.where(vote.present, F.logsigmoid(gate), -torch.inf)
        return rest, weight

    def mix_targets(
        self,
        vote: Vote,
        states: Float[Tensor, "*batch state"],
        log_probs: Float[Tensor, "*batch"],
        entropy: Float[Tensor, "*batch"],
        found: Float[Tensor, "*batch voter"],
        targets: Int[Tensor, "*batch"],
    ) -> Float[Tensor, "*batch"]:
        """The mixture's log-probabilities of the targets; `log_probs` are the model's."""
        rest, weight = self.log_weights(vote, states, entropy, found)
        voted = vote.probability(targets).clamp_min(TINY).log()
        mixed = torch.logaddexp(rest + log_probs, weight.clamp_min(-1e9) + voted)
        return torch.where(vote.present, mixed, log_probs)

    def mix_logits(
        self, vote: Vote, states: Float[Tensor, "*batch state"], logits: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        """Logits of the mixture, on the scale of the model's own; where nobody votes they stay the same."""
        total, entropy, found = measure(logits, vote.tokens)
        rest, weight = self.log_weights(vote, states, entropy, found)
        mixed = logits + rest[..., None]
        # In logits, a probability p is log p + the logarithm of their sum.
        voted = vote.mass.clamp_min(TINY).log() + (weight.clamp_min(-1e9) + total)[..., None]
        shared = torch.logaddexp(mixed.gather(-1, vote.tokens), voted)
        # Voters of one token write the same number. Those without weight vote for their token, too, but
        # nothing: a masked voter's is left as it is.
        counted = vote.present[..., None] & (vote.mass > 0)
        shared = torch.where(counted, shared, mixed.gather(-1, vote.tokens))
        # One of them has the gradient; all together would have it as often as they are.
        shared = torch.where(vote.leads, shared, shared.detach())
        return mixed.scatter(-1, vote.tokens, shared.to(mixed.dtype))


class LearnedPointer(Pointer):
    """A pointer into a model that is trained together with it.

    What is usual for its states changes while they are learned, so nothing is measured beforehand: a gain for
    each dimension is learned instead. It is a weight like all others, so a checkpoint holds it, every process
    has the same, and text is compared alike in training, in scoring and token by token.
    """

    def __init__(self, match_width: int, state_width: int) -> None:
        super().__init__(match_width, state_width)
        del self.mean, self.deviation
        self.norm = RMSNorm(match_width)
        # A vector of one number, as a number alone cannot be sharded.
        self.log_sharpness = nn.Parameter(self.log_sharpness.detach()[None])

    def standardise(self, states: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Directions that can be compared: every dimension counts as it has learned to."""
        return F.normalize(self.norm(states), dim=-1)


@dataclass(frozen=True)
class Voters:
    """The neighbours' tokens that vote in each chunk."""

    keys: Float[Tensor, "*chunk voter width"]
    """The states to match, standardised."""
    tokens: Int[Tensor, "*chunk voter"]
    """What each votes for: the token after it."""
    is_voter: Bool[Tensor, "*chunk voter"]

    def at(self, places: Any) -> "Voters":
        """The voters of some of the chunks."""
        return Voters(self.keys[places], self.tokens[places], self.is_voter[places])


def measure(
    logits: Float[Tensor, "*batch vocab"], voted: Int[Tensor, "*batch voter"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch voter"]]:
    """The logarithm of the logits' sum, the entropy, and the log-probabilities of the voted tokens."""
    total = logits.logsumexp(-1)
    log_probs = logits - total[..., None]
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return total, entropy, log_probs.gather(-1, voted)


def successors(
    neighbours: Int[Tensor, "*batch neighbour retrieved"],
    is_token: Bool[Tensor, "*batch neighbour retrieved"],
) -> tuple[Int[Tensor, "*batch voter"], Bool[Tensor, "*batch voter"]]:
    """The token after each of [N, F], and whether both are there."""
    after = F.pad(neighbours[..., 1:], (0, 1))
    both = is_token & F.pad(is_token[..., 1:], (0, 1), value=False)
    return after.flatten(-2), both.flatten(-2)


def rows_of(x: Float[Tensor, "batch seq width"], chunk_len: int, num_chunks: int) -> Tensor:
    """The positions that read each chunk's neighbours: its last and all but the last of the next.

    Positions before the first row are left out, and the last row is filled up with zeros.
    """
    m = chunk_len
    missing = num_chunks * m - (x.shape[1] - m + 1)
    reading = F.pad(x[:, m - 1 :], (0, 0, 0, max(0, missing)))[:, : num_chunks * m]
    return rearrange(reading, "batch (chunk m) d -> batch chunk m d", m=m)


def in_place(vote: Vote, chunk_len: int, length: int) -> Vote:
    """From rows to positions; nobody votes at the first m − 1."""

    def placed(tensor: Tensor) -> Tensor:
        joined = tensor.flatten(1, 2)[:, : length - chunk_len + 1]
        before = joined.new_zeros(joined.shape[0], min(chunk_len - 1, length), *joined.shape[2:])
        return torch.cat([before, joined], 1)

    leads = placed(vote.leads)
    # Where nobody votes, all voters have the token 0; one of them must lead there, too.
    leads[:, : chunk_len - 1, 0] = True
    return Vote(
        placed(vote.weights),
        placed(vote.tokens),
        placed(vote.mass),
        leads,
        placed(vote.similarity),
        placed(vote.present),
    )
