"""How a question, its answer and its passages become tokens.

The prompt is padded at its left, so that `answer:` ends a chunk: the first of the chunks that read the passages begins there. A
question that needs more than a chunk takes as many as it needs, and still ends at a chunk's end.
"""

from collections.abc import Sequence

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.questions.examples import Question
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Passage, Passages

PROMPT = "question: {question} \n answer:"
ANSWER = " {answer}"
PASSAGE = "title: {title}, source: {text}"


class Format:
    """The format of the paper for one tokenizer and chunk length."""

    def __init__(self, tokenizer: Tokenizer, chunk_len: int) -> None:
        self.tokenizer, self.chunk_len = tokenizer, chunk_len

    def prompt(self, question: str) -> list[int]:
        """What is answered; its length is a multiple of the chunk length."""
        tokens = self.tokenizer.encode(PROMPT.format(question=question))
        return [self.tokenizer.pad_id] * (-len(tokens) % self.chunk_len) + tokens

    def answer(self, answer: str) -> list[int]:
        """What follows the prompt; it is encoded apart, so that no token lies across the chunk's end."""
        return [*self.tokenizer.encode(ANSWER.format(answer=answer)), self.tokenizer.end_id]

    def passages(self, passages: Sequence[Passage]) -> list[Neighbour]:
        """The passages with their titles, each cut or padded to the retrieved length."""
        written = [Passage(written_passage(passage), passage.title) for passage in passages]
        return Passages(written, self.tokenizer, self.chunk_len).neighbours if written else []

    def num_cut(self, questions: Sequence[Question], num_passages: int) -> int:
        """How many of the passages that will be read are longer than the retrieved length."""
        written = (
            written_passage(passage) for question in questions for passage in question.passages[:num_passages]
        )
        return sum(len(self.tokenizer.encode(text)) > 2 * self.chunk_len for text in written)


def written_passage(passage: Passage) -> str:
    return PASSAGE.format(title=passage.title, text=passage.text)
