"""The sampler, which continues texts with retrieval at each chunk's end."""

from collections.abc import Iterator, Sequence
from typing import Any

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.generation.batch import RunningBatch
from retro.generation.request import Prompt, Request, Retrieval
from retro.generation.sequence import Growing, Sample, Token
from retro.model.protocol import LanguageModel
from retro.retrieval.retriever import Passages, Searcher


class Sampler:
    """Continues texts with a model: RETRO[ON] with a retriever, RETRO[OFF] or
    a baseline without.

    Without a retriever it needs a tokenizer. With a `window`, self-attention sees only the
    last `window` tokens: memory and time per token stay bounded, and results are the same
    until a text outgrows the window.

    Every method takes a `Request`, or a prompt with the request's fields as keywords:
    `sampler.generate("The licence", max_tokens=64, retrieval=False)`. Fields given beside a
    request replace its own.
    """

    def __init__(
        self,
        model: LanguageModel,
        retriever: Searcher | None = None,
        tokenizer: Tokenizer | None = None,
        window: int = 0,
    ) -> None:
        if tokenizer is None and retriever is not None:
            tokenizer = retriever.tokenizer
        if tokenizer is None:
            raise ConfigError("neither a retriever nor a tokenizer was given; expected one of them")
        facts = model.facts
        if retriever is not None and retriever.chunk_len != facts.chunk_len:
            raise ConfigError(
                f"the datastore's chunks have {retriever.chunk_len} tokens; "
                f"expected the model's {facts.chunk_len}"
            )
        # Token ids mean nothing to a model with another vocabulary.
        if not facts.fits(tokenizer.vocab_size):
            raise ConfigError(
                f"the tokenizer knows {tokenizer.vocab_size} tokens; expected the model's {facts.num_ids}"
            )
        self.model = model
        self.retriever = retriever
        self.tokenizer = tokenizer
        self.window = window

    def generate(self, request: Request | str | Prompt, **fields: Any) -> Sample:
        """One finished sample."""
        return self._run(_one(request, fields))[0][0]

    def generate_all(
        self, request: Request | str | Prompt | Sequence[str | Prompt], **fields: Any
    ) -> list[list[Sample]]:
        """All samples of every prompt, in one batch. The first of each is what
        `generate` gives."""
        return self._run(Request.of(request, **fields))

    def stream(self, request: Request | str | Prompt, **fields: Any) -> Iterator[Token]:
        """One sample, token by token; a token that completes a chunk brings the
        chunk's neighbours."""
        groups = self.begin(_one(request, fields))
        return (token for _, token in self._continue(groups))

    def begin(self, request: Request) -> list[list[Growing]]:
        """The sequences of a request, the samples of each prompt together, to be put into a batch."""
        strange = [
            token for token in request.choice.stop_tokens if not 0 <= token < self.tokenizer.vocab_size
        ]
        if strange:
            raise ConfigError(
                f"stop_tokens holds {strange[0]}; expected tokens from 0 to {self.tokenizer.vocab_size - 1}"
            )
        search = self.searching(request.retrieval)
        groups = [self._group(prompt, request, search) for prompt in request.prompts]
        for group in groups:
            self._expect_room(group[0].sample.prompt_len, request.max_tokens)
        return groups

    def _run(self, request: Request) -> list[list[Sample]]:
        groups = self.begin(request)
        for _ in self._continue(groups):
            pass
        return [[sequence.sample for sequence in group] for group in groups]

    def _continue(self, groups: Sequence[Sequence[Growing]]) -> Iterator[tuple[Growing, Token]]:
        """The tokens of sequences that begin and go on together, as they are drawn."""
        batch = RunningBatch(self.model, self.window)
        batch.join(groups)
        while batch.sequences:
            yield from batch.draw()
            batch.feed()

    def _expect_room(self, prompt_len: int, max_tokens: int) -> None:
        """Refuse a sample that would outgrow what the model reads, before the first token is drawn."""
        facts = self.model.facts
        facts.expect_context(prompt_len, "the prompt has", "give a shorter one")
        if facts.slides and facts.max_context is not None and 0 < self.window <= facts.max_context:
            return
        way_out = "ask for fewer: --max-tokens"
        if facts.slides:
            way_out += f"; or let it see the last {facts.max_context:,} alone: --window {facts.max_context}"
        # The last token is drawn, and not read.
        facts.expect_context(prompt_len + max_tokens - 1, "prompt and sample have", way_out)

    def _group(
        self, prompt: str | Prompt, request: Request, search: tuple[Searcher, Retrieval] | None
    ) -> list[Growing]:
        """The sequences that begin with one prompt."""
        if isinstance(prompt, str):
            prompt = Prompt(self.tokenizer.encode(prompt), prompt)
        group = []
        for number in range(request.samples):
            sample = Sample(
                tokens=list(prompt.tokens),
                prompt_len=len(prompt.tokens),
                chunk_len=self.model.facts.chunk_len,
                prompt=prompt.text,
                log_probs=[] if request.log_probs else None,
                retrieval=search is not None if prompt.passages is None else bool(prompt.passages),
            )
            # Random numbers depend on the seed and the sample's number alone, so that no
            # other prompt changes them.
            seed = f"{request.seed}/{number}"
            growing = Growing(
                sample,
                self.tokenizer,
                request.choice,
                request.max_tokens,
                seed,
                prompt.passages,
                # What a prompt brings along is read in place of what a search would find.
                search if prompt.passages is None else None,
                request.top_log_probs,
            )
            group.append(growing)
        return group

    def searching(self, retrieval: bool | Retrieval) -> tuple[Searcher, Retrieval] | None:
        """Where to look for neighbours, and how; None if retrieval is off."""
        facts = self.model.facts
        settings = retrieval if isinstance(retrieval, Retrieval) else Retrieval()
        searcher = self.retriever
        # Passages take the place of a retriever, so a sampler without one can read them, too.
        if settings.passages and facts.retrieves:
            searcher = Passages(settings.passages, self.tokenizer, facts.chunk_len)
        if searcher is not None and facts.retrieves:
            return (searcher, settings) if retrieval else None
        # `True` alone is no demand: a baseline, or a sampler without a datastore, simply goes
        # on without neighbours.
        if isinstance(retrieval, Retrieval):
            missing = "a retriever" if facts.retrieves else "a model with cross-attention"
            raise ConfigError(f"retrieval was asked for without {missing}; expected one, or retrieval off")
        return None


def _one(asked: Request | str | Prompt, fields: dict[str, Any]) -> Request:
    """A request for exactly one sample."""
    request = Request.of(asked, **fields)
    number = len(request.prompts) * request.samples
    if number != 1:
        raise ConfigError(f"the request is for {number} samples; expected one; use generate_all for several")
    return request
