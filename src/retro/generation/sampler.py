"""The sampler: texts continued by a model that retrieves at each chunk's end."""

from collections.abc import Iterator, Sequence

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError, DataError
from retro.generation.batch import Batch
from retro.generation.choice import Choice
from retro.generation.growing import Growing
from retro.generation.sample import Prompt, Sample, Token
from retro.generation.search import Retrieval
from retro.model.retro import Retro
from retro.retrieval.retriever import Searcher

__all__ = ["Prompt", "Sample", "Sampler", "Token"]


class Sampler:
    """Continues texts with a model; with a retriever it is RETRO[ON], without one RETRO[OFF] or a baseline.

    Without a retriever it needs the tokenizer. With a `window` self-attention sees that many last tokens only: memory and time a
    token stay bounded, and the result is that of the whole past as long as the window covers it.
    """

    def __init__(
        self,
        model: Retro,
        retriever: Searcher | None = None,
        tokenizer: Tokenizer | None = None,
        window: int = 0,
    ) -> None:
        tokenizer = tokenizer or (retriever.tokenizer if retriever else None)
        if tokenizer is None:
            raise ConfigError("neither a retriever nor a tokenizer was given; expected one of them")
        if retriever is not None and retriever.chunk_len != model.config.chunk_len:
            raise ConfigError(
                f"the datastore's chunks have {retriever.chunk_len} tokens; expected the model's {model.config.chunk_len}"
            )
        if tokenizer.vocab_size != model.config.vocab_size:
            raise ConfigError(
                f"the tokenizer knows {tokenizer.vocab_size} tokens; expected the model's {model.config.vocab_size}"
            )
        self.model, self.tokenizer, self.window = model.eval(), tokenizer, window
        self.retriever = retriever

    def generate(
        self,
        prompt: str,
        max_tokens: int = 128,
        choice: Choice | None = None,
        seed: int = 0,
        retrieval: bool | Retrieval = True,
        log_probs: bool = False,
    ) -> Sample:
        """The whole sample at once."""
        return self.generate_all([prompt], max_tokens, choice, seed, retrieval, log_probs)[0][0]

    def generate_all(
        self,
        prompts: Sequence[str | Prompt],
        max_tokens: int = 128,
        choice: Choice | None = None,
        seed: int = 0,
        retrieval: bool | Retrieval = True,
        log_probs: bool = False,
        samples: int = 1,
    ) -> list[list[Sample]]:
        """Several samples of each prompt, all in one batch. The first of each prompt is what `generate` gives.

        A prompt may be given as tokens, with passages of its own that it reads in place of searching.
        """
        batch = self._begin(prompts, max_tokens, choice or Choice(), seed, retrieval, log_probs, samples)
        for _ in batch.run() if batch.groups else ():
            pass
        return [[sequence.sample for sequence in group] for group in batch.groups]

    def stream(
        self,
        prompt: str,
        max_tokens: int = 128,
        choice: Choice | None = None,
        seed: int = 0,
        retrieval: bool | Retrieval = True,
        log_probs: bool = False,
    ) -> Iterator[Token]:
        """The tokens as they come; a token that completes a chunk brings the chunk's neighbours."""
        batch = self._begin([prompt], max_tokens, choice or Choice(), seed, retrieval, log_probs, 1)
        return (token for _, token in batch.run())

    def _begin(
        self,
        prompts: Sequence[str | Prompt],
        max_tokens: int,
        choice: Choice,
        seed: int,
        retrieval: bool | Retrieval,
        log_probs: bool,
        samples: int,
    ) -> Batch:
        for name, value, least in (
            ("max_tokens", max_tokens, max(1, choice.min_tokens)),
            ("samples", samples, 1),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value}; expected at least {least}")
        search = self._search(retrieval)
        groups = []
        for prompt in prompts:
            given = prompt if isinstance(prompt, Prompt) else Prompt(self._encode(prompt), prompt)
            tokens, reads = (
                given.tokens,
                search is not None if given.passages is None else bool(given.passages),
            )
            sequences = []
            for number in range(samples):
                log_prob_list: list[float] | None = [] if log_probs else None
                sample = Sample(
                    list(tokens),
                    len(tokens),
                    self.model.config.chunk_len,
                    [],
                    given.text,
                    "",
                    None,
                    log_prob_list,
                    reads,
                )
                sequences.append(
                    Growing(sample, self.tokenizer, choice, max_tokens, f"{seed}/{number}", given.passages)
                )
            groups.append(sequences)
        return Batch(self.model, groups, choice, search, self.window)

    def _search(self, retrieval: bool | Retrieval) -> tuple[Searcher, Retrieval] | None:
        able = self.retriever is not None and self.model.config.uses_retrieval
        if isinstance(retrieval, Retrieval) and not able:
            missing = "a retriever" if self.model.config.uses_retrieval else "a model with cross-attention"
            raise ConfigError(f"retrieval was asked for without {missing}; expected one, or retrieval off")
        if not able or not retrieval:
            return None
        assert self.retriever is not None
        return self.retriever, retrieval if isinstance(retrieval, Retrieval) else Retrieval()

    def _encode(self, prompt: str) -> list[int]:
        """The prompt's tokens. An empty one is refused: no training predicts the first token of a document."""
        if not prompt:
            raise DataError("the prompt is empty; expected at least one character to continue")
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"the prompt's character {error.start + 1} is half a surrogate pair; expected text that UTF-8 can hold"
            ) from None
        return self.tokenizer.encode(prompt)
