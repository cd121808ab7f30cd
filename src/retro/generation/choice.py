"""How the next token is drawn from its logits, and when a sample ends."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retro.errors import ConfigError

HEADS = (64, 1024)
"""Most probable tokens that are tried for `top_p` before the whole vocabulary is sorted, which takes far longer."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Greedy at temperature 0; otherwise the most probable `top_k` tokens, of these the fewest that hold `top_p` of their mass."""

    temperature: float = 0.8
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    """Logits of tokens that the prompt or the sample holds already are divided by it where positive, else multiplied."""
    min_tokens: int = 0
    """Nothing ends a sample before it has that many tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end a sample, wherever token borders lie; the sample's text stops before them."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end a sample, beside the end of a document; they are no part of it."""

    def __post_init__(self) -> None:
        # Written so that NaN is refused as well.
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}; expected 0 or more")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; expected 0 < top_p ≤ 1")
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(
                f"repetition_penalty is {self.repetition_penalty}; expected more than 0, 1 for none"
            )
        if self.min_tokens < 0:
            raise ConfigError(f"min_tokens is {self.min_tokens}; expected 0 or more")
        if "" in self.stop:
            raise ConfigError("a stop text is empty; expected at least one character")

    def penalise(
        self, logits: Float[Tensor, "*batch vocab"], seen: Bool[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        """Logits that make the tokens already seen less likely (more, for a penalty below 1)."""
        penalty = self.repetition_penalty
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    def probabilities(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """The distribution that is drawn from."""
        kept, tokens = self._candidates(logits)
        return torch.zeros_like(logits).scatter(-1, tokens, kept / kept.sum(-1, keepdim=True))

    def draw(
        self, logits: Float[Tensor, "*batch vocab"], uniforms: Float[Tensor, "*batch"]
    ) -> Int[Tensor, "*batch"]:
        """The token at each uniform number of [0, 1) of the cumulated distribution."""
        kept, tokens = self._candidates(logits)
        cumulated = kept.double().cumsum(-1)
        # Right of all equal entries: a token without mass is never met.
        place = torch.searchsorted(
            cumulated, uniforms.to(cumulated)[..., None] * cumulated[..., -1:], right=True
        )
        return tokens.gather(-1, place.clamp(max=tokens.shape[-1] - 1)).squeeze(-1)

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities, zero for what is cut off, and the tokens that they belong to."""
        if self.temperature == 0:
            tokens = logits.argmax(-1, keepdim=True)
            return torch.ones_like(tokens, dtype=logits.dtype), tokens
        # Shifted to 0 at the top, so that a temperature near 0 makes no infinite logit there.
        scaled = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k:
            scaled, tokens = scaled.topk(min(self.top_k, logits.shape[-1]))
            return self._nucleus(scaled.softmax(-1)), tokens
        probabilities = scaled.softmax(-1)
        if self.top_p == 1:
            return probabilities, torch.arange(logits.shape[-1], device=logits.device).expand(logits.shape)
        for size in HEADS:
            if size < logits.shape[-1]:
                ordered, tokens = probabilities.topk(size)
                if bool((ordered.sum(-1) >= self.top_p).all()):
                    return self._nucleus(ordered), tokens
        ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
        return self._nucleus(ordered), tokens

    def _nucleus(self, ordered: Tensor) -> Tensor:
        """The fewest probabilities that hold `top_p`, the others set to zero."""
        return torch.where(ordered.cumsum(-1) - ordered < self.top_p, ordered, 0.0)  # the mass before a token
