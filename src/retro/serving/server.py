"""What all routes share: the model, the engine, the datastore, and the numbers about them."""

import asyncio
import logging
import time

import retro
from retro.config.checks import require_utf8
from retro.config.serve import ServeConfig
from retro.errors import RetroError
from retro.retrieval.datastore.listing import SourceSize
from retro.serving import schema
from retro.serving.answering import Answering
from retro.serving.asking import Asker, Served
from retro.serving.citations import Citer
from retro.serving.engine import Engine
from retro.serving.memory import Memory, licence_of
from retro.serving.metrics import Metrics
from retro.serving.problems import ProblemError, problem_of

LOG = logging.getLogger("retro.serving")
END = "<|end of document|>"
"""What the token that closes a document is called where it must have a name."""


class Server:
    """One model, served."""

    def __init__(self, served: Served, config: ServeConfig) -> None:
        self.served = served
        self.config = config
        self.engine = Engine(served.sampler.model, config.window, config.max_sequences, config.max_waiting)
        self.asker = Asker(served, config)
        self.metrics = Metrics(self.engine)
        self.writing = asyncio.Lock()
        """Held while the datastore is changed."""

    @property
    def memory(self) -> Memory:
        """The datastore; an error if there is none."""
        if self.served.memory is None:
            raise ProblemError(404, "this server has no datastore", code="no_datastore")
        return self.served.memory

    def citer(self, base_url: str) -> Citer:
        """Makes citations whose links begin where the client has asked."""
        base = (self.config.public_url or base_url).rstrip("/")
        return Citer(self.served.tokenizer, base, self.config.copied_tokens)

    def observe(self, answering: Answering) -> None:
        """Count an answer that was given."""
        route = "chat" if answering.asked.chat else "completions"
        self.metrics.seconds.labels(route).observe(time.monotonic() - answering.started)
        if answering.first_token is not None:
            self.metrics.first_token.observe(answering.first_token)

    def note(self, error: Exception, problem: ProblemError) -> None:
        """Write into the log what a client is not told."""
        if problem.status == 500:
            LOG.error("a request has met a fault", exc_info=error)

    def model_card(self) -> schema.Model:
        return schema.Model(id=self.served.name, created=self.served.created, owned_by="retro")

    def health(self) -> schema.Health:
        return schema.Health(
            status="stopping" if self.engine.is_stopping else "ok",
            running=self.engine.running,
            waiting=self.engine.waiting,
        )

    def info(self) -> schema.Info:
        config, facts = self.config, self.served.sampler.model.facts
        version: int | None = None
        sizes: list[SourceSize] = []
        if self.served.memory is not None:
            version, sizes = self.served.memory.sources()
        return schema.Info(
            model=self.served.name,
            version=retro.__version__,
            retrieves=facts.retrieves,
            has_datastore=self.served.memory is not None,
            chat=self.served.template is not None,
            chunk_len=facts.chunk_len,
            num_neighbours=config.num_neighbours,
            datastore_version=version,
            sources=[schema.SourceCount(**vars(size), licence=licence_of(size.source)) for size in sizes],
            writes=config.allow_writes and self.served.memory is not None,
            copied_tokens=config.copied_tokens,
            limits=schema.Limits(
                prompt_tokens=config.max_prompt_tokens,
                max_tokens=config.max_tokens,
                n=config.max_samples,
                stop=config.max_stop,
                batch=config.max_sequences,
                queue=config.max_waiting,
                body_bytes=config.max_body,
                seconds=config.seconds,
                document_bytes=config.max_document,
            ),
        )

    def tokenizer_info(self) -> schema.TokenizerInfo:
        tokenizer, template = self.served.tokenizer, self.served.template
        return schema.TokenizerInfo(
            tokenizer_class=type(tokenizer).__name__,
            eos_token=END,
            bos_token=None,
            pad_token=None,
            chat_template=None if template is None else template.text,
        )

    def tokenize(self, text: str) -> list[int]:
        # No text is ever encoded with the end of a document; whoever wants its number asks by this name.
        if text == END:
            return [self.served.tokenizer.end_id]
        try:
            require_utf8("the prompt", text)
            return self.served.tokenizer.encode(text)
        except RetroError as error:
            raise problem_of(error, "prompt") from None

    def detokenize(self, tokens: list[int]) -> str:
        size = self.served.tokenizer.vocab_size
        strange = [token for token in tokens if token >= size]
        if strange:
            raise ProblemError(400, f"there is no token {strange[0]}; expected less than {size}", "tokens")
        return self.served.tokenizer.decode(tokens)
