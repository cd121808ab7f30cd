"""A request to a sampler: one object shared by the library, the command line and the server.

Nothing here needs torch, so the command line can parse its options before anything heavy loads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from retro.config.checks import require_utf8
from retro.errors import ConfigError, DataError

if TYPE_CHECKING:
    from retro.retrieval.datastore import Neighbour


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue, for callers that tokenise themselves or bring passages with a prompt.

    With passages, every chunk from the prompt's last complete one on reads them, and
    nothing is searched.
    """

    tokens: Sequence[int]
    text: str = ""
    passages: "Sequence[Neighbour] | None" = None
    """None: search as always; empty: nothing is read."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the next token is drawn, and when a sample ends.

    The `top_k` most probable tokens are kept, and of these the fewest that hold
    `top_p` of their mass.
    """

    temperature: float = 0.8
    """0 always takes the most probable token."""
    top_k: int = 0
    """Draw from this many of the most probable tokens; 0: from all."""
    top_p: float = 1.0
    """Draw from the fewest tokens that together hold this part of the probability."""
    repetition_penalty: float = 1.0
    """Above 1, tokens already in the prompt or the sample become less likely: positive logits
    are divided by it, the others multiplied."""
    frequency_penalty: float = 0.0
    """What a token's logit loses for each time that it was written in the sample, as OpenAI defines it."""
    presence_penalty: float = 0.0
    """What a token's logit loses once it was written in the sample, as OpenAI defines it."""
    min_tokens: int = 0
    """Nothing ends a sample before it has this many tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end a sample, wherever the token borders are; its text stops before them."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end a sample, besides the end of a document; they are not part of it."""

    def __post_init__(self) -> None:
        # The comparisons are written so that they refuse NaN as well.
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
        for name in ("frequency_penalty", "presence_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a finite number, 0 for none")
        if self.min_tokens < 0:
            raise ConfigError(f"min_tokens is {self.min_tokens}; expected 0 or more")
        if "" in self.stop:
            raise ConfigError("a stop text is empty; expected at least one character")
        for text in self.stop:
            require_utf8("a stop text", text)


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """What the chunks of a request read."""

    num_neighbours: int | None = None
    """Neighbours of each chunk; by default the retriever's own number, 2, or all passages."""
    every: int = 1
    """Retrieve at every n-th chunk only; the others have no neighbours, as if
    retrieval were off."""
    sources: tuple[str, ...] = ()
    """Retrieve documents of these sources only; empty: of all."""
    exclude: tuple[str, ...] = ()
    """Documents, by id or content hash, that must not be retrieved."""
    passages: tuple[str, ...] = ()
    """Texts that every chunk reads as its neighbours, instead of searching a datastore."""

    def __post_init__(self) -> None:
        if self.num_neighbours is not None and self.num_neighbours < 1:
            raise ConfigError(
                f"num_neighbours is {self.num_neighbours}; expected at least 1; switch retrieval off instead"
            )
        if self.every < 1:
            raise ConfigError(f"every is {self.every}; expected at least 1, which retrieves at each chunk")
        for passage in self.passages:
            require_utf8("a passage", passage)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Prompts to continue together, and how."""

    prompts: Sequence[str | Prompt]
    max_tokens: int = 128
    """How many tokens to add at most."""
    choice: Choice = Choice()
    retrieval: bool | Retrieval = True
    """True: on if the sampler can retrieve. False: off. A `Retrieval`: on in this way, an
    error if the sampler cannot."""
    seed: int = 0
    """The same request with the same seed gives the same samples, whatever else
    is in the batch."""
    samples: int = 1
    """How many continuations of each prompt."""
    log_probs: bool = False
    """Whether to give the log-probability of each token."""
    top_log_probs: int = 0
    """Of how many of the most probable tokens to give the log-probability at each place."""

    def __post_init__(self) -> None:
        # A string is a sequence of strings, too: each character would become a prompt.
        if isinstance(self.prompts, str):
            raise ConfigError("prompts is one text; expected a sequence of them")
        for prompt in self.prompts:
            _check(prompt)
        # A sample that must be longer than it may be could never end.
        least = max(1, self.choice.min_tokens)
        if self.max_tokens < least:
            raise ConfigError(f"max_tokens is {self.max_tokens}; expected at least {least}")
        if self.top_log_probs < 0:
            raise ConfigError(f"top_log_probs is {self.top_log_probs}; expected 0 or more")
        if self.samples < 1:
            raise ConfigError(f"samples is {self.samples}; expected at least 1")

    @staticmethod
    def of(asked: "Request | str | Prompt | Sequence[str | Prompt]", **fields: Any) -> "Request":
        """A request from one or more prompts and other fields, or a request with these
        fields changed."""
        if isinstance(asked, Request):
            return replace(asked, **fields)
        # A string is one prompt, not a sequence of characters.
        prompts = [asked] if isinstance(asked, str | Prompt) else list(asked)
        return Request(prompts=prompts, **fields)


def _check(prompt: str | Prompt) -> None:
    """Refuse an empty or broken prompt: models are not trained to predict a first token."""
    if isinstance(prompt, Prompt):
        if not len(prompt.tokens):
            raise DataError("the prompt is empty; expected at least one token to continue")
        return
    if not prompt:
        raise DataError("the prompt is empty; expected at least one character to continue")
    require_utf8("the prompt", prompt)
