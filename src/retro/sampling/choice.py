"""How the next token is drawn from its logits."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from retro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Greedy at temperature 0; otherwise the most probable `top_k` tokens, of these the fewest that hold `top_p` of the mass."""

    temperature: float = 0.8
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ConfigError(f"temperature is {self.temperature}; expected 0 or more")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; expected 0 < top_p ≤ 1")

    def probabilities(self, logits: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
        """The distribution that is drawn from."""
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(), len(logits)).to(logits.dtype)
        ordered, tokens = (logits / self.temperature).softmax(-1).sort(descending=True, stable=True)
        keep = ordered.cumsum(-1) - ordered < self.top_p  # the mass before a token
        if self.top_k:
            keep &= torch.arange(len(ordered)) < self.top_k
        kept = torch.where(keep, ordered, 0.0)
        return torch.zeros_like(logits).scatter(-1, tokens, kept / kept.sum())

    def draw(self, logits: Float[Tensor, " vocab"], generator: torch.Generator) -> int:
        return int(torch.multinomial(self.probabilities(logits), 1, generator=generator))
