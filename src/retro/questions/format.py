"""Questions, answers and passages as tokens.

A prompt is padded on the left, so that `answer:` ends a chunk; from there on the passages
are read. A question longer than a chunk takes as many chunks as it needs, and still ends
at the end of one.
"""

from collections.abc import Sequence
from dataclasses import replace

from retro.comparators.passages import PASSAGE_LEN
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.questions.examples import Question
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Passage, Passages

PROMPT = "question: {question} \n answer:"
ANSWER = " {answer}"
PASSAGE = "title: {title}, source: {text}"
ENDING = "\n"
"""What follows each passage in a prompt."""
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
        return self._padded([*self.lead, *self.tokenizer.encode(PROMPT.format(question=question))])

    def _padded(self, tokens: list[int]) -> list[int]:
        return [self.tokenizer.pad_id] * (-len(tokens) % self.chunk_len) + tokens

    def answer(self, answer: str) -> list[int]:
        """The tokens after the prompt, encoded separately so that no token crosses
        the chunk's end. An empty answer ends at once."""
        if not answer:
            return [self.tokenizer.end_id]
        return [*self.tokenizer.encode(ANSWER.format(answer=answer)), self.tokenizer.end_id]

    def passages(self, passages: Sequence[Passage]) -> list[Neighbour]:
        """The passages with their titles, each cut or padded to the retrieved length."""
        if not passages:
            return []
        written = [Passage(written_passage(passage), passage.title) for passage in passages]
        return Passages(written, self.tokenizer, self.chunk_len).neighbours

    @property
    def passage_len(self) -> int:
        """Tokens of a passage that are read."""
        return 2 * self.chunk_len

    def read(self, question: Question, num_passages: int) -> tuple[list[int], list[Neighbour]]:
        """The prompt of a question, and its first passages as neighbours."""
        return self.prompt(question.text), self.passages(question.passages[:num_passages])

    def prompt_len(self, question: Question, num_passages: int) -> int:
        """Tokens of the prompt that `read` gives."""
        return len(self.prompt(question.text))

    def has_neighbours(self, question: Question, num_passages: int) -> bool:
        """Whether `read` gives neighbours."""
        return bool(question.passages[:num_passages])

    def pieces(self, passage: Passage) -> list[Passage]:
        """The passage in pieces that are not cut, each with the title; itself alone if it is short enough.

        Neighbouring pieces share half of their text, so that a short answer lies whole in one of them.
        """
        room = self.passage_len
        tokens = self.tokenizer.encode(passage.text)
        if len(self.tokenizer.encode(written_passage(passage))) <= room:
            return [passage]
        # A piece is cut out of the text, and its tokens may be others than in the midst of it.
        room -= len(self.tokenizer.encode(written_passage(Passage("", passage.title)))) + SPARE
        step = max(1, room // 2)
        starts = range(0, max(1, len(tokens) - step), step)
        texts = [self.tokenizer.decode(tokens[start : start + 2 * step]).strip() for start in starts]
        return [replace(passage, text=text) for text in texts if text] or [passage]

    def num_cut(self, questions: Sequence[Question], num_passages: int) -> int:
        """How many of the passages to be read are longer than the retrieved length."""
        read = [passage for question in questions for passage in question.passages[:num_passages]]
        # Many questions are about the same passage, whose text is cut into tokens once.
        lengths = {passage: len(self.tokenizer.encode(written_passage(passage))) for passage in set(read)}
        return sum(lengths[passage] > self.passage_len for passage in read)


class PromptFormat(Format):
    """The same with the passages in the prompt, in front of the question and the best one last.

    The tokens are those that `Prepended` reads, so that a model is tuned on what it will be asked.
    """

    def __init__(self, tokenizer: Tokenizer, chunk_len: int, passage_len: int = PASSAGE_LEN) -> None:
        super().__init__(tokenizer, chunk_len)
        self._passage_len = passage_len

    @property
    def passage_len(self) -> int:
        return self._passage_len

    def read(self, question: Question, num_passages: int) -> tuple[list[int], list[Neighbour]]:
        encode, tokens = self.tokenizer.encode, []
        for passage in reversed(question.passages[:num_passages]):
            tokens += [*encode(written_passage(passage))[: self.passage_len], *encode(ENDING)]
        return self._padded([*tokens, *encode(PROMPT.format(question=question.text))]), []

    def prompt_len(self, question: Question, num_passages: int) -> int:
        return len(self.read(question, num_passages)[0])

    def has_neighbours(self, question: Question, num_passages: int) -> bool:
        return False


def written_example(question: Question, with_passage: bool) -> str:
    """A question with its answer, and in front of it with its first passage, as a prompt would show them."""
    answer = question.target or question.answers[0]
    shown = f"{written_passage(question.passages[0])}{ENDING}" if with_passage else ""
    return f"{shown}{PROMPT.format(question=question.text)}{ANSWER.format(answer=answer)}\n"


def written_passage(passage: Passage) -> str:
    return PASSAGE.format(title=passage.title, text=passage.text)
