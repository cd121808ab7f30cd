"""Questions as tokens and as training batches, with the loss on the answers alone.

A prompt is padded on the left, so that `answer:` ends a chunk; from there on the passages
are read. A question longer than a chunk takes as many chunks as it needs, and still ends
at the end of one.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from retro.corpus.mixture import Mixture
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import DataError
from retro.questions.examples import Question
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Passage, Passages, stack_neighbours
from retro.training.batches import Batch
from retro.wording import counted

PROMPT = "question: {question} \n answer:"
ANSWER = " {answer}"
PASSAGE = "title: {title}, source: {text}"
SPARE = 2
"""Tokens by which a piece of a text may be longer by itself than in the midst of it."""


class Format:
    """The format of the paper for one tokenizer and chunk length."""

    def __init__(self, tokenizer: Tokenizer, chunk_len: int, lead: Sequence[int] = ()) -> None:
        """`lead` are tokens before every question, such as examples for a model that was never tuned."""
        self.tokenizer = tokenizer
        self.chunk_len = chunk_len
        self.lead = lead

    def prompt(self, question: str) -> list[int]:
        """The tokens of the prompt; their number is a multiple of the chunk length."""
        tokens = [*self.lead, *self.tokenizer.encode(PROMPT.format(question=question))]
        return [self.tokenizer.pad_id] * (-len(tokens) % self.chunk_len) + tokens

    def answer(self, answer: str) -> list[int]:
        """The tokens after the prompt, encoded separately so that no token crosses
        the chunk's end."""
        return [*self.tokenizer.encode(ANSWER.format(answer=answer)), self.tokenizer.end_id]

    def passages(self, passages: Sequence[Passage]) -> list[Neighbour]:
        """The passages with their titles, each cut or padded to the retrieved length."""
        if not passages:
            return []
        written = [Passage(written_passage(passage), passage.title) for passage in passages]
        return Passages(written, self.tokenizer, self.chunk_len).neighbours

    def pieces(self, passage: Passage) -> list[Passage]:
        """The passage in pieces that are not cut, each with the title; itself alone if it is short enough.

        Neighbouring pieces share half of their text, so that a short answer lies whole in one of them.
        """
        room = 2 * self.chunk_len
        tokens = self.tokenizer.encode(passage.text)
        if len(self.tokenizer.encode(written_passage(passage))) <= room:
            return [passage]
        # A piece is cut out of the text, and its tokens may be others than in the midst of it.
        room -= len(self.tokenizer.encode(written_passage(Passage("", passage.title)))) + SPARE
        step = max(1, room // 2)
        starts = range(0, max(1, len(tokens) - step), step)
        texts = [self.tokenizer.decode(tokens[start : start + 2 * step]).strip() for start in starts]
        return [replace(passage, text=text) for text in texts if text]

    def num_cut(self, questions: Sequence[Question], num_passages: int) -> int:
        """How many of the passages to be read are longer than the retrieved length."""
        read = [passage for question in questions for passage in question.passages[:num_passages]]
        lengths = (len(self.tokenizer.encode(written_passage(passage))) for passage in read)
        return sum(length > 2 * self.chunk_len for length in lengths)


def written_example(question: Question, with_passage: bool) -> str:
    """A question with its answer, and in front of it with its first passage, as a prompt would show them."""
    answer = question.target or question.answers[0]
    shown = f"{written_passage(question.passages[0])}\n" if with_passage else ""
    return f"{shown}{PROMPT.format(question=question.text)}{ANSWER.format(answer=answer)}\n"


def written_passage(passage: Passage) -> str:
    return PASSAGE.format(title=passage.title, text=passage.text)


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
        answered = [(question, _longest(question, form)) for question in questions if question.answers]
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
        reads = any(question.passages[: self.num_passages] for question, _ in drawn)
        own = drawn[start:stop]
        return make_batch(
            [self.form.prompt(question.text) for question, _ in own],
            [self.form.answer(answer) for _, answer in own],
            [self.form.passages(question.passages[: self.num_passages]) for question, _ in own],
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


def _longest(question: Question, form: Format) -> int:
    """Input tokens of the question with the longest answer that may be drawn.

    The last token predicts nothing and is no input.
    """
    answers = (question.target,) if question.target else question.answers
    return len(form.prompt(question.text)) + max(len(form.answer(answer)) for answer in answers) - 1
