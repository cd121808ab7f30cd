"""Questions out of any text: a name or number of a sentence is asked for, and the text around the sentence is the passage.

They teach a model to look an answer up in a passage before there are many real questions to learn from. None is written by a person, so
they are for training alone.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from retro.corpus.documents import Document
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.questions.examples import Question
from retro.retrieval.retriever import Passage

SENTENCE = re.compile(r"[A-Z][^.!?\n]{40,300}[.!?](?=\s)")
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+(?: (?:of |the )?[A-Z][a-z]+){0,3}\b")
YEAR = re.compile(r"\b1\d{3}\b|\b20\d{2}\b")
NUMBER = re.compile(r"(?<![\d.,])\d[\d,]*(?![\d.,]*\d)")
ASKED = ((YEAR, "when"), (NAME, "what"), (NUMBER, "how many"))
"""What is asked for, and the word that stands for it in the question; the first kind that a sentence has is taken."""
CONTEXT = 6
"""Words of the sentence on either side of the answer that the question keeps."""
PASSAGE = 400
"""Characters of a passage."""


def cloze_questions(
    documents: Iterable[Document], per_document: int = 4, seed: int = 0
) -> Iterator[Question]:
    """At most so many questions of each document, each with the one passage that answers it."""
    rng = np.random.default_rng(seed)
    for document in documents:
        sentences = list(SENTENCE.finditer(document.text))
        for place in rng.permutation(len(sentences))[:per_document]:
            question = _question(document, sentences[place], rng)
            if question is not None:
                yield question


def documents_of(store: TokenStore, tokenizer: Tokenizer) -> Iterator[Document]:
    """The documents of a token store as text again."""
    for number, row in enumerate(store.documents):
        yield Document(
            row["id"], tokenizer.decode(store.document(number).tolist()), row["source"], row["title"]
        )


def _question(document: Document, sentence: re.Match[str], rng: np.random.Generator) -> Question | None:
    kinds = [(found, word) for pattern, word in ASKED if (found := list(pattern.finditer(sentence[0])))]
    if not kinds:
        return None
    found, word = kinds[rng.integers(len(kinds))]
    answer = found[rng.integers(len(found))]
    before, after = (
        sentence[0][: answer.start()].split()[-CONTEXT:],
        sentence[0][answer.end() :].rstrip(".!? ").split()[:CONTEXT],
    )
    text = " ".join([*before, word, *after]).lower()
    if len(before) + len(after) < CONTEXT or answer[0].lower() in text:
        return None
    room = max(1, PASSAGE - len(sentence[0]))
    start = max(0, sentence.start() - int(rng.integers(room)))
    passage = " ".join(document.text[start : start + max(PASSAGE, len(sentence[0]))].split())
    return Question(text, (answer[0],), (Passage(passage, document.title),))
