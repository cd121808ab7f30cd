"""Training batches of questions: what the training loop takes, with the loss on the answers alone."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from retro.corpus.mixture import Mixture
from retro.errors import DataError
from retro.questions.examples import Question
from retro.questions.format import Format
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import stack_neighbours
from retro.training.batches import Batch


class QuestionBatches:
    """Batch number i of an endless stream, a pure function of the seed and i: every question once an epoch, in a new order.

    Of several right answers an epoch takes any. Questions without an answer, or longer with it than `seq_len`, are left out.
    """

    mixture: Mixture | None = None

    def __init__(
        self,
        questions: Sequence[Question],
        form: Format,
        batch_size: int,
        num_passages: int,
        seed: int = 0,
        seq_len: int = 1 << 30,
    ) -> None:
        answered = [(question, _longest(question, form)) for question in questions if question.answers]
        kept = [(question, length) for question, length in answered if length <= seq_len]
        if not kept:
            raise DataError(
                f"none of {len(questions)} questions has an answer and at most {seq_len} tokens with it; expected some"
            )
        self.questions = [question for question, _ in kept]
        self.form, self.batch_size, self.num_passages, self.seed = form, batch_size, num_passages, seed
        self.num_long = len(answered) - len(kept)
        self.seq_len = max(length for _, length in kept)
        """Tokens of the longest sequence."""
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def rows(self, number: int, start: int, stop: int) -> Batch:
        first = number * self.batch_size
        drawn = [self._draw(index) for index in range(first + start, first + stop)]
        prompts, answers = (
            [self.form.prompt(question.text) for question, _ in drawn],
            [self.form.answer(answer) for _, answer in drawn],
        )
        passages = [self.form.passages(question.passages[: self.num_passages]) for question, _ in drawn]
        return make_batch(prompts, answers, passages, self.form.chunk_len, self.form.tokenizer.pad_id)

    def documents(self, number: int) -> list[str]:
        first = number * self.batch_size
        return [repr(self._draw(index)[0].text) for index in range(first, first + self.batch_size)]

    def _draw(self, index: int) -> tuple[Question, str]:
        epoch, position = divmod(index, len(self.questions))
        question = self.questions[self._order(epoch)[position]]
        if question.target:
            return question, question.target
        return question, question.answers[
            np.random.default_rng([self.seed, index]).integers(len(question.answers))
        ]

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.questions))


def make_batch(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    passages: Sequence[Sequence[Neighbour]],
    chunk_len: int,
    pad_id: int,
) -> Batch:
    """Prompts that end at the same chunk's end, padded to it by whole chunks, with their answers behind; answers alone are predicted.

    Every chunk from the prompt's last one on has the passages, and none before it.
    """
    width, longest = max(map(len, prompts)), max(map(len, answers))
    tokens = np.full((len(prompts), width + longest), pad_id, dtype=np.int64)
    targets = tokens.copy()
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens[row, width - len(prompt) : width] = prompt
        tokens[row, width : width + len(answer)] = targets[row, width : width + len(answer)] = answer
    inputs = torch.from_numpy(tokens[:, :-1]), torch.from_numpy(targets[:, 1:])
    if not any(passages):
        return Batch(*inputs, None, None)
    values, mask = stack_neighbours(passages, 2 * chunk_len, pad_id)
    num_chunks = (tokens.shape[1] - 1) // chunk_len
    reads = np.arange(num_chunks) >= width // chunk_len - 1
    neighbours = np.broadcast_to(values[:, None], (len(prompts), num_chunks, *values.shape[1:]))
    return Batch(
        *inputs, torch.from_numpy(neighbours.copy()), torch.from_numpy(mask[:, None] & reads[:, None])
    )


def _longest(question: Question, form: Format) -> int:
    answers = (question.target,) if question.target else question.answers
    return len(form.prompt(question.text)) + max(len(form.answer(answer)) for answer in answers) - 1
