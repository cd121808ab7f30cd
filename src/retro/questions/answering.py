"""Answers by a model that reads passages: greedy, through the cached sampler, many questions together."""

from collections.abc import Sequence
from dataclasses import dataclass

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.generation.choice import Choice
from retro.generation.sampler import Prompt, Sampler
from retro.model.retro import Retro
from retro.questions.examples import Question
from retro.questions.format import Format
from retro.questions.sources import Source
from retro.retrieval.retriever import Passage
from retro.stages.progress import Progress

GREEDY = Choice(temperature=0.0, stop=("\n",))


@dataclass(frozen=True)
class Answer:
    """An answer with the passages that the model read for it; none at all where it answered closed book."""

    question: Question
    text: str
    passages: tuple[Passage, ...]
    log_prob: float
    """Of the answer's tokens, in nats."""


class Answerer:
    """Answers questions with a model; the source finds the passages of each."""

    def __init__(
        self, model: Retro, tokenizer: Tokenizer, source: Source, max_tokens: int = 32, batch_size: int = 16
    ) -> None:
        self.model, self.tokenizer, self.source = model, tokenizer, source
        self.sampler = Sampler(model, tokenizer=tokenizer)
        self.form = Format(tokenizer, model.config.chunk_len)
        self.max_tokens, self.batch_size = max_tokens, batch_size

    def having(self, model: Retro, source: Source) -> "Answerer":
        """The same with another model and another source."""
        return Answerer(model, self.tokenizer, source, self.max_tokens, self.batch_size)

    def answer(self, questions: Sequence[Question], progress: Progress | None = None) -> list[Answer]:
        """The answers in the questions' order."""
        answers: list[Answer] = []
        for start in range(0, len(questions), self.batch_size):
            answers += self._answer(questions[start : start + self.batch_size])
            if progress:
                progress(len(answers), len(questions))
        return answers

    def _answer(self, questions: Sequence[Question]) -> list[Answer]:
        passages = self.source(questions)
        if any(passages) and not self.model.config.uses_retrieval:
            raise ConfigError(
                "the model has no cross-attention to read passages with; expected a RETRO, or closed book"
            )
        prompts = [
            Prompt(self.form.prompt(question.text), question.text, self.form.passages(found))
            for question, found in zip(questions, passages, strict=True)
        ]
        samples = self.sampler.generate_all(prompts, self.max_tokens, GREEDY, log_probs=True)
        return [
            Answer(question, sample.text.strip(), tuple(found), sum(sample.log_probs or ()))
            for question, found, [sample] in zip(questions, passages, samples, strict=True)
        ]
