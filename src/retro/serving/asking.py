"""From what a client sends to the request that the command and the sampler know."""

import secrets
from dataclasses import dataclass, field
from typing import Any

from retro.config.checks import require_utf8
from retro.config.serve import ServeConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import DataError, RetroError
from retro.generation.request import Choice, Prompt, Request, Retrieval
from retro.generation.sampler import Sampler
from retro.generation.sequence import Growing
from retro.serving import schema
from retro.serving.chat import NO_TEMPLATE, ChatTemplate
from retro.serving.explaining import MOST_LOGITS
from retro.serving.memory import Memory
from retro.serving.problems import ProblemError, problem_of

LONGEST_STOP = 256
DEFAULT_TOKENS = 16
"""OpenAI's; a conversation gets as many as it may."""


@dataclass(frozen=True)
class Served:
    """What is served: a model with its tokenizer, and perhaps a datastore."""

    name: str
    sampler: Sampler
    memory: Memory | None = None
    template: ChatTemplate | None = None
    created: int = 0
    """When the model was made, in seconds since 1970."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.sampler.tokenizer


@dataclass(frozen=True)
class Asked:
    """A request, checked, with its sequences."""

    request: Request
    groups: list[list[Growing]]
    chat: bool
    stream: bool
    usage: bool
    """Whether a stream ends with what it used."""
    echo: bool
    writes: bool
    """Whether anything is to be written: with `echo`, a prompt may only be scored."""
    log_probs: int | None
    """Log-probabilities, with so many of the most probable tokens beside each."""
    worth: bool
    explain: bool
    notes: list[str] = field(default_factory=list)

    @property
    def scores_prompt(self) -> bool:
        return self.echo and self.log_probs is not None


class Asker:
    """Checks requests against the limits, and against what is served."""

    def __init__(self, served: Served, config: ServeConfig) -> None:
        self.served = served
        self.config = config

    def completion(self, body: schema.CompletionRequest) -> Asked:
        self._expect_model(body.model)
        n = body.n or 1
        if body.suffix:
            raise ProblemError(
                400, "suffix is given; expected none: text is continued, not filled in", "suffix"
            )
        if body.best_of not in (None, n):
            raise ProblemError(400, f"best_of is {body.best_of}; expected n, {n}, or none", "best_of")
        echo = bool(body.echo)
        max_tokens = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
        if not max_tokens and not echo:
            raise ProblemError(400, "max_tokens is 0; expected at least 1, or echo", "max_tokens")
        prompts = self._prompts(body.prompt)
        return self._ask(body, prompts, max_tokens, body.logprobs, echo=echo)

    def chat(self, body: schema.ChatRequest) -> Asked:
        self._expect_model(body.model)
        template = self.served.template
        if template is None:
            raise ProblemError(400, NO_TEMPLATE, "messages", "no_chat_template")
        for message in body.messages:
            parts = [message.content] if isinstance(message.content, str) else message.content
            for part in parts:
                self._expect_text("messages", part if isinstance(part, str) else part.text)
        tokens, text = template.encode(body.messages)
        if body.top_logprobs and not body.logprobs:
            raise ProblemError(400, "top_logprobs is given without logprobs; expected both", "top_logprobs")
        log_probs = (body.top_logprobs or 0) if body.logprobs else None
        room = self.config.max_tokens
        longest = self.served.sampler.model.facts.max_context
        if longest is not None:
            room = max(1, min(room, longest - len(tokens)))
        max_tokens = body.max_completion_tokens or body.max_tokens or room
        return self._ask(body, [self._prompt(tokens, text)], max_tokens, log_probs, is_chat=True)

    def _ask(
        self,
        body: schema.Sampling,
        prompts: list[Prompt],
        max_tokens: int,
        log_probs: int | None,
        *,
        echo: bool = False,
        is_chat: bool = False,
    ) -> Asked:
        config, n = self.config, body.n or 1
        self._expect("n", n, config.max_samples)
        self._expect("max_tokens", max_tokens, config.max_tokens)
        self._expect("n times the number of prompts", n * len(prompts), config.max_sequences, "prompt")
        for prompt in prompts:
            self._expect("tokens of a prompt", len(prompt.tokens), config.max_prompt_tokens, "prompt")
        if echo and log_probs:
            most = MOST_LOGITS // self.served.sampler.model.facts.vocab_size
            longest = max(len(prompt.tokens) for prompt in prompts)
            self._expect("tokens of a prompt with echo and logprobs", longest, most, "prompt")
        retrieval, notes = self._retrieval(body.retro)
        seed = secrets.randbits(63) if body.seed is None else body.seed
        try:
            request = Request(
                prompts=prompts,
                max_tokens=max(1, max_tokens),
                choice=self._choice(body),
                retrieval=retrieval,
                seed=seed,
                samples=n,
                log_probs=log_probs is not None,
                top_log_probs=log_probs or 0,
            )
            groups = self.served.sampler.begin(request)
        except RetroError as error:
            raise problem_of(error) from None
        return Asked(
            request=request,
            groups=groups,
            chat=is_chat,
            stream=bool(body.stream),
            usage=bool(body.stream_options and body.stream_options.include_usage),
            echo=echo,
            writes=max_tokens > 0,
            log_probs=log_probs,
            worth=body.retro.worth or body.retro.explain,
            explain=body.retro.explain,
            notes=notes,
        )

    def _choice(self, body: schema.Sampling) -> Choice:
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        self._expect("the number of stop texts", len(stop), self.config.max_stop, "stop")
        self._expect("characters of a stop text", max(map(len, stop), default=0), LONGEST_STOP, "stop")
        if body.logit_bias:
            raise ProblemError(400, "logit_bias is given; expected none: it is not offered", "logit_bias")
        return Choice(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=body.top_k or 0,
            repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
            frequency_penalty=body.frequency_penalty or 0.0,
            presence_penalty=body.presence_penalty or 0.0,
            min_tokens=body.min_tokens or 0,
            stop=tuple(stop),
        )

    def _retrieval(self, options: schema.RetroOptions) -> tuple[bool | Retrieval, list[str]]:
        """How the answer retrieves, and what the client should know about it."""
        if not options.retrieval:
            if options.chooses():
                raise ProblemError(400, "retrieval is off; expected no options of it beside", "retro")
            return False, []
        for name in ("sources", "exclude", "passages"):
            for text in getattr(options, name):
                self._expect_text(f"retro.{name}", text)
        if options.passages and (options.sources or options.exclude):
            raise ProblemError(
                400, "passages are not searched; expected no sources or exclude beside them", "retro.passages"
            )
        memory, notes, exclude = self.served.memory, [], list(options.exclude)
        if memory is not None:
            unknown = [name for name in options.sources if not memory.knows_source(name)]
            if unknown:
                raise ProblemError(
                    400,
                    f"no document has the source {unknown[0]!r}; expected one of /sources",
                    "retro.sources",
                )
            exclude = [name for name in options.exclude if memory.knows(name)]
            gone = len(options.exclude) - len(exclude)
            if gone:
                notes.append(f"{gone} of the documents to leave out are not in the datastore anyway")
        if not options.chooses():
            return True, notes
        try:
            retrieval = Retrieval(
                num_neighbours=options.num_neighbours,
                every=options.every,
                sources=tuple(options.sources),
                exclude=tuple(exclude),
                passages=tuple(options.passages),
            )
        except RetroError as error:
            raise problem_of(error, "retro") from None
        return retrieval, notes

    def _prompts(self, given: Any) -> list[Prompt]:
        """The prompts of a completion: a text, tokens, or several of either."""
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        if not given:
            raise ProblemError(400, "prompt is empty; expected text or tokens", "prompt")
        self._expect("the number of prompts", len(given), self.config.max_sequences, "prompt")
        prompts = []
        for one in given:
            if isinstance(one, str):
                self._expect_text("prompt", one)
                prompts.append(self._prompt(self.served.tokenizer.encode(one), one))
            else:
                prompts.append(self._prompt(one, None))
        return prompts

    def _prompt(self, tokens: list[int], text: str | None) -> Prompt:
        tokenizer = self.served.tokenizer
        if not tokens:
            raise ProblemError(400, "a prompt is empty; expected at least one token to continue", "prompt")
        strange = [token for token in tokens if not self._is_token(token)]
        if strange:
            raise ProblemError(
                400, f"a prompt holds token {strange[0]}, which stands for nothing; expected others", "prompt"
            )
        return Prompt(tokens, tokenizer.decode(tokens) if text is None else text)

    def _is_token(self, token: int) -> bool:
        tokenizer = self.served.tokenizer
        return 0 <= token < tokenizer.vocab_size and token != tokenizer.pad_id

    def _expect_model(self, name: str) -> None:
        if name not in ("", self.served.name):
            raise ProblemError(
                404, f"there is no model {name!r}; expected {self.served.name!r}", "model", "model_not_found"
            )

    def _expect_text(self, param: str, text: str) -> None:
        try:
            require_utf8(param, text)
        except DataError as error:
            raise problem_of(error, param) from None

    def _expect(self, what: str, number: int, most: int, param: str = "") -> None:
        if number > most:
            raise ProblemError(400, f"{what} is {number:,}; expected at most {most:,}", param or what)
