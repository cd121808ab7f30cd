"""SPALM's gate (Yogatama et al., 2021) over kNN-LM: how much the memory counts is learned, token by token.

λ = σ(w·h + b), where h is the state that the token is predicted from, standardised. SPALM mixes states and
trains the whole model with its gate; here two distributions are mixed, and the gate alone is learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from retro.comparators.mixtures import Mixture, Other, ReadWindow
from retro.comparators.token_states import mix

PENALTIES = (1.0, 0.1, 0.01, 0.001)
"""What the square of a weight costs, in nats a token: the values that are tried."""
HELD_OUT = 4
"""Every so many windows one is not learned from, to choose the penalty on."""
STEPS = 100


@dataclass(frozen=True)
class Gate:
    """The weight of the memory's vote, from the state that a token is predicted from."""

    mean: np.ndarray
    deviation: np.ndarray
    weights: np.ndarray
    bias: float

    @staticmethod
    def constant(weight: float, width: int) -> "Gate":
        """The same weight for every token: kNN-LM."""
        with np.errstate(divide="ignore"):
            bias = float(np.log(weight) - np.log1p(-weight))
        return Gate(np.zeros(width), np.ones(width), np.zeros(width), bias)

    def arrays(self) -> dict[str, np.ndarray]:
        """As it is kept."""
        return {
            "mean": self.mean,
            "deviation": self.deviation,
            "weights": self.weights,
            "bias": np.array(self.bias),
        }

    @staticmethod
    def read(arrays: Mapping[str, np.ndarray]) -> "Gate":
        return Gate(arrays["mean"], arrays["deviation"], arrays["weights"], float(arrays["bias"]))

    def of(self, keys: Tensor) -> np.ndarray:
        """λ of each token."""
        states = (keys.double().numpy() - self.mean) / self.deviation
        with np.errstate(over="ignore"):
            opened: np.ndarray = 1.0 / (1.0 + np.exp(-(states @ self.weights + self.bias)))
        return opened

    def bits(self, read: ReadWindow, other: np.ndarray) -> np.ndarray:
        """Of the mixture; `other` is log2 p of the tokens by the memory."""
        return mix(read.bits, other, self.of(read.keys))


@dataclass(frozen=True)
class _Tokens:
    """What a gate learns from: standardised states, and log p of the tokens by model and memory, in nats."""

    states: Tensor
    own: Tensor
    other: Tensor


def learn_gate(reads: Sequence[ReadWindow], memory: Other, mixture: Mixture) -> Gate:
    """The gate that costs the fewest bits on windows that it was not learned from.

    kNN-LM's constant weight is one of those that are tried: where states say nothing, it stays.
    """
    others = [memory(read)[:, mixture.column] for read in reads]
    pairs = list(zip(reads, others, strict=True))
    held = pairs[::HELD_OUT]
    learned = [pair for number, pair in enumerate(pairs) if number % HELD_OUT]
    gates = [Gate.constant(mixture.weight, reads[0].keys.shape[1])]
    if learned:
        gates += [_learned(learned, penalty, mixture.weight) for penalty in PENALTIES]
    return min(gates, key=lambda gate: sum(gate.bits(*pair).sum() for pair in held))


def _learned(pairs: Sequence[tuple[ReadWindow, np.ndarray]], penalty: float, weight: float) -> Gate:
    keys = np.concatenate([read.keys.double().numpy() for read, _ in pairs])
    mean, deviation = keys.mean(axis=0), keys.std(axis=0) + 1e-6
    in_nats = np.log(2.0)
    tokens = _Tokens(
        torch.from_numpy((keys - mean) / deviation),
        torch.from_numpy(-in_nats * np.concatenate([read.bits for read, _ in pairs])),
        torch.from_numpy(in_nats * np.concatenate([other for _, other in pairs])),
    )
    # Begun at kNN-LM's weight; from 0 or 1 no gradient leads away.
    start = float(np.clip(weight, 0.01, 0.99))
    weights = torch.zeros(keys.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(np.log(start) - np.log1p(-start), requires_grad=True)
    with torch.enable_grad():
        _descend(tokens, weights, bias, penalty)
    return Gate(mean, deviation, weights.detach().numpy(), float(bias.detach()))


def _descend(tokens: _Tokens, weights: Tensor, bias: Tensor, penalty: float) -> None:
    """To the least loss, from all tokens at once: it is a small problem."""
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logit = tokens.states @ weights + bias
        mixed = torch.logaddexp(F.logsigmoid(logit) + tokens.other, F.logsigmoid(-logit) + tokens.own)
        total = -mixed.mean() + penalty * weights.square().sum()
        total.backward()
        return total

    optimizer.step(loss)
