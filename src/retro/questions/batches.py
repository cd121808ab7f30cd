"""Training batches of questions, with the loss on the answers alone."""

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
from retro.wording import counted


class QuestionBatches:
    """An endless stream of batches, each a pure function of the seed and its number.

    Every question comes once an epoch, in a new order, with one of its right answers.
    Questions without an answer, or longer than `seq_len` with it, are left out.
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
        answered = [
            (question, _longest(question, form, num_passages)) for question in questions if question.answers
        ]
        kept = [(question, length) for question, length in answered if length <= seq_len]
        if not kept:
            raise DataError(
                f"none of {counted(len(questions), 'question')} has an answer "
                f"and at most {seq_len} tokens with it; expected some"
            )
        self.questions = [question for question, _ in kept]
        self.form = form
        self.batch_size = batch_size
        self.num_passages = num_passages
        self.seed = seed
        self.num_long = len(answered) - len(kept)
        """Questions that were left out as too long."""
        self.seq_len = max(length for _, length in kept)
        """Tokens of the longest sequence."""
        # A batch may span two epochs.
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def rows(self, number: int, start: int, stop: int) -> Batch:
        """Some rows of a batch; they have neighbours if any row of the whole batch has passages.

        Under torchrun each process takes its own rows. Either all processes run the encoder
        or none, as they wait for each other in its sharded layers. So the whole batch
        decides, and rows without passages get masked ones.
        """
        drawn = [self._draw(index) for index in self._indices(number)]
        reads = any(self.form.has_neighbours(question, self.num_passages) for question, _ in drawn)
        own = drawn[start:stop]
        read = [self.form.read(question, self.num_passages) for question, _ in own]
        return make_batch(
            [prompt for prompt, _ in read],
            [self.form.answer(answer) for _, answer in own],
            [neighbours for _, neighbours in read],
            self.form.chunk_len,
            self.form.tokenizer.pad_id,
            reads,
        )

    def documents(self, number: int) -> list[str]:
        return [repr(self._draw(index)[0].text) for index in self._indices(number)]

    def _indices(self, number: int) -> range:
        """The places of a batch in the stream."""
        return range(number * self.batch_size, (number + 1) * self.batch_size)

    def _draw(self, index: int) -> tuple[Question, str]:
        """The question at a place in the stream, and the answer to learn."""
        epoch, position = divmod(index, len(self.questions))
        question = self.questions[self._order(epoch)[position]]
        if question.target:
            return question, question.target
        # By the place in the stream, so that it does not depend on what was drawn before.
        chosen = np.random.default_rng([self.seed, index]).integers(len(question.answers))
        return question, question.answers[chosen]

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.questions))


def make_batch(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    passages: Sequence[Sequence[Neighbour]],
    chunk_len: int,
    pad_id: int,
    reads: bool | None = None,
) -> Batch:
    """Prompts that all end at the same chunk's end, with their answers after; only
    answers are predicted.

    Shorter prompts are padded on the left by whole chunks. If the batch `reads` (by default,
    if any row has passages), every chunk from the prompt's last one on has the row's
    passages. Earlier chunks have none, and what is missing is masked.
    """
    width, longest = max(map(len, prompts)), max(map(len, answers))
    tokens = np.full((len(prompts), width + longest), pad_id, dtype=np.int64)
    targets = tokens.copy()
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        # Prompts end at `width`; answers begin there and differ in length.
        tokens[row, width - len(prompt) : width] = prompt
        tokens[row, width : width + len(answer)] = answer
        targets[row, width : width + len(answer)] = answer
    # Shifted by one: each position predicts the next token.
    inputs = torch.from_numpy(tokens[:, :-1]), torch.from_numpy(targets[:, 1:])
    if not (any(passages) if reads is None else reads):
        return Batch(*inputs, None, None)
    values, mask = stack_neighbours(passages, 2 * chunk_len, pad_id)
    if not mask.size:  # no row here has a passage: one that is all padding stands for none
        values = np.full((len(prompts), 1, 2 * chunk_len), pad_id, dtype=np.int64)
        mask = np.zeros((len(prompts), 1), dtype=bool)
    num_chunks = (tokens.shape[1] - 1) // chunk_len
    # The neighbours of the prompt's last chunk are read from its last token on, so they are
    # the first that the answer can see.
    is_reading = np.arange(num_chunks) >= width // chunk_len - 1
    # A copy, since torch expects memory that it may write to.
    neighbours = np.broadcast_to(values[:, None], (len(prompts), num_chunks, *values.shape[1:])).copy()
    neighbour_mask = mask[:, None] & is_reading[:, None]
    return Batch(*inputs, torch.from_numpy(neighbours), torch.from_numpy(neighbour_mask))


def _longest(question: Question, form: Format, num_passages: int) -> int:
    """Input tokens of the question with the longest answer that may be drawn.

    The last token predicts nothing and is no input.
    """
    answers = (question.target,) if question.target else question.answers
    prompt_len = form.prompt_len(question, num_passages)
    return prompt_len + max(len(form.answer(answer)) for answer in answers) - 1
