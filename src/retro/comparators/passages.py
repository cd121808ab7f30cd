"""Passages with a question, as a model without retrieval can read them: `Prepended` and `Fused`.

`Prepended` has all passages in its prompt, the best one next to the question: what REALM and RAG come to
with any language model. `Fused` is fusion in the decoder on a decoder-only base: each passage is read with
the question by itself, and from the question's last token on all that they have become is read together.
With one passage the two are the same. With several, fusing spends no attention between passages, and their
order makes no difference.

Both are language models whose prompt brings its passages as the neighbours of its last chunk. They are read
once, with the prompt.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from retro.errors import ConfigError, DataError
from retro.fitting.base import look_at
from retro.model.protocol import Decoding, LanguageModel, ModelFacts, Scored

PASSAGE_LEN = 512
"""Tokens of a passage that are read."""


@dataclass(frozen=True)
class Frame:
    """What stands around the passages of a prompt."""

    lead_len: int = 0
    """Tokens of the prompt that come before the passages, such as examples; the question comes after."""
    ending: tuple[int, ...] = ()
    """Tokens behind each passage, such as a line break."""


NO_FRAME = Frame()


@runtime_checkable
class StandsOnBase(Protocol):
    """A model that was fitted to a pretrained causal LM of Hugging Face."""

    @property
    def base(self) -> nn.Module: ...


@dataclass(frozen=True)
class _Given:
    """A prompt and what comes with it."""

    lead: list[int]
    passages: list[list[int]]
    """Best first."""
    question: list[int]


class WithPassages(ABC):
    """What both ways have in common: a language model that only continues prompts."""

    def __init__(self, model: LanguageModel, passage_len: int = PASSAGE_LEN, frame: Frame = NO_FRAME) -> None:
        if passage_len < 2:
            raise ConfigError(f"passage_len is {passage_len}; expected at least 2 tokens")
        self.model = model
        # No passage takes more than half of what the model can read.
        self.passage_len = min(passage_len, (model.facts.max_context or 2 * passage_len) // 2)
        self.frame = frame

    @property
    def facts(self) -> ModelFacts:
        """Those of the model, with passages of any length where it has neighbours of two chunks."""
        return replace(self.model.facts, chunk_len=self.passage_len // 2, retrieves=True)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        raise self._only_continues()

    def score(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> Scored:
        raise self._only_continues()

    @abstractmethod
    def begin(self, window: int = 0) -> Decoding: ...

    def _only_continues(self) -> ConfigError:
        return ConfigError(
            f"{type(self).__name__} reads passages with a prompt, and scores no text; expected a prompt to "
            "continue; score text with the neighbours of its chunks (InContext)"
        )

    def given(
        self, prompts: Sequence[Sequence[int]], neighbours: Tensor | None, mask: Tensor | None
    ) -> list["_Given"]:
        """Each prompt with the passages of its last complete chunk, best first, all without padding."""
        m, pad_id = self.facts.chunk_len, self.facts.pad_id
        lead_len, ending = self.frame.lead_len, self.frame.ending
        found = []
        for row, prompt in enumerate(prompts):
            last = len(prompt) // m - 1
            passages: list[list[int]] = []
            if neighbours is not None and last >= 0:
                values = neighbours[row, last] if mask is None else neighbours[row, last][mask[row, last]]
                passages = [
                    [*(token for token in value.tolist() if token != pad_id), *ending] for value in values
                ]
            tokens = [token for token in prompt if token != pad_id]
            if len(tokens) < lead_len + 2:
                raise DataError("the prompt has fewer than two tokens; expected a question")
            found.append(_Given(tokens[:lead_len], passages, tokens[lead_len:]))
        return found

    def expect_context(self, tokens: Sequence[int]) -> None:
        self.facts.expect_context(len(tokens), "the passages and the question have", "read fewer passages")


class Prepended(WithPassages):
    """A model with the passages in its prompt, in front of the question, the best one last."""

    def begin(self, window: int = 0) -> Decoding:
        return _PrependedDecoding(self, self.model.begin(window))


class _PrependedDecoding:
    """The model's own decoding, from a longer prompt on."""

    def __init__(self, model: Prepended, inner: Decoding) -> None:
        self.model = model
        self.inner = inner

    @property
    def batch(self) -> int:
        return self.inner.batch

    @property
    def completing(self) -> list[int]:
        """None: what there is to read was read with the prompt."""
        return []

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        joined = []
        for given in self.model.given(prompts, neighbours, neighbour_mask):
            passages = [token for passage in reversed(given.passages) for token in passage]
            joined.append([*given.lead, *passages, *given.question])
            self.model.expect_context(joined[-1])
        return self.inner.prefill(joined)

    def step(
        self,
        tokens: Sequence[int],
        neighbours: Int[Tensor, "complete neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "complete neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        return self.inner.step(tokens)

    def select(self, rows: Sequence[int]) -> None:
        self.inner.select(rows)

    def join(self, other: Decoding) -> None:
        if not isinstance(other, _PrependedDecoding):
            raise ConfigError("a decoding of another model was to join; expected one of the same")
        self.inner.join(other.inner)


class Fused(WithPassages):
    """The base of a fitted model, with each passage read by itself and all of them together from then on."""

    def __init__(self, model: LanguageModel, passage_len: int = PASSAGE_LEN, frame: Frame = NO_FRAME) -> None:
        super().__init__(model, passage_len, frame)
        if not isinstance(model, StandsOnBase):
            raise ConfigError(
                "passages are fused in the keys and values of a pretrained base, and the model has none; "
                "expected a run that was fitted to one; run: retro fit WORK --base NAME"
            )
        known = look_at(model.base)
        if not known.takes_positions:
            raise ConfigError(
                f"{type(model.base).__name__} counts positions by itself; expected a base that is told them, "
                "as passages that are fused stand side by side"
            )
        self.config: Any = model.base.config
        # In a tuple, so that nobody takes it for a part of this model.
        self._decoder: tuple[Any] = (known.decoder,)
        self.head = known.head

    def begin(self, window: int = 0) -> Decoding:
        if window:
            raise ConfigError(f"window is {window}; expected 0, as passages that are fused are seen whole")
        return _FusedDecoding(self)

    def read(
        self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any
    ) -> Float[Tensor, "batch vocab"]:
        """The logits after the last token of each row; the cache grows by all of them."""
        inputs = {"input_ids": tokens, "attention_mask": mask.long(), "position_ids": positions}
        states = self._decoder[0](**inputs, past_key_values=cache, use_cache=True).last_hidden_state
        logits: Tensor = self.head(states[:, -1])
        return logits


@dataclass
class _Fusion:
    """One sequence: the keys and values of all its passages side by side, and of what came after them."""

    cache: Any
    mask: Bool[Tensor, "1 slot"]
    """False where a passage that is shorter than the longest has no token."""
    position: int
    """Of the next token: behind the longest passage and its question, whatever the number of passages."""


class _FusedDecoding:
    """Sequences side by side, each with a cache of its own, as each has passages of its own."""

    def __init__(self, model: Fused) -> None:
        self.model = model
        self.sequences: list[_Fusion] = []

    @property
    def batch(self) -> int:
        return len(self.sequences)

    @property
    def completing(self) -> list[int]:
        """None: what there is to read was read with the prompt."""
        return []

    @torch.no_grad()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        given = self.model.given(prompts, neighbours, neighbour_mask)
        # All of a question but its last token is read with each passage by itself.
        self.sequences = [
            self._fuse([[*one.lead, *passage, *one.question[:-1]] for passage in one.passages or [[]]])
            for one in given
        ]
        return self.step([one.question[-1] for one in given])

    def _fuse(self, texts: list[list[int]]) -> _Fusion:
        """Read texts by themselves, and put what they become side by side.

        All of them end at the same position, so that the tokens that read them stand at the same distance
        from each one's end.
        """
        from transformers import DynamicCache

        device, longest = self.model.device, max(map(len, texts))
        self.model.expect_context(max(texts, key=len))
        rows = [[self.model.facts.pad_id] * (longest - len(text)) + text for text in texts]
        tokens = torch.tensor(rows, device=device)
        mask = tokens != self.model.facts.pad_id
        positions = torch.arange(longest, device=device).expand(len(texts), -1)
        cache = DynamicCache(config=self.model.config)
        self.model.read(tokens.masked_fill(~mask, 0), mask, positions, cache)
        _put_side_by_side(cache)
        return _Fusion(cache, mask.reshape(1, -1), longest)

    @torch.no_grad()
    def step(
        self,
        tokens: Sequence[int],
        neighbours: Int[Tensor, "complete neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "complete neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        return torch.cat([self._next(*pair) for pair in zip(self.sequences, tokens, strict=True)])

    def _next(self, sequence: _Fusion, token: int) -> Float[Tensor, "1 vocab"]:
        device = self.model.device
        sequence.mask = torch.cat([sequence.mask, sequence.mask.new_ones(1, 1)], 1)
        position = torch.tensor([[sequence.position]], device=device)
        sequence.position += 1
        return self.model.read(
            torch.tensor([[token]], device=device), sequence.mask, position, sequence.cache
        )

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences; one that is named twice is duplicated."""
        kept = [self.sequences[row] for row in rows]
        is_again = [row in rows[:place] for place, row in enumerate(rows)]
        self.sequences = [
            copy.deepcopy(sequence) if again else sequence
            for sequence, again in zip(kept, is_again, strict=True)
        ]

    def join(self, other: Decoding) -> None:
        if not isinstance(other, _FusedDecoding) or other.model is not self.model:
            raise ConfigError("a decoding of another model was to join; expected one of the same")
        self.sequences += other.sequences


def _put_side_by_side(cache: Any) -> None:
    """The keys and values of a batch of texts as those of one text."""
    from transformers.cache_utils import DynamicLayer

    for layer in cache.layers:
        if type(layer) is not DynamicLayer:
            raise ConfigError(
                "the base keeps a window or a state of its past; expected keys and values of all tokens, "
                "as passages that are fused are all seen at once"
            )
        # From (text, head, token, width) to (1, head, text · token, width), in the order of the mask.
        layer.keys, layer.values = (
            part.transpose(0, 1).flatten(1, 2)[None] for part in (layer.keys, layer.values)
        )
