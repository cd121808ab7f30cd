"""SQuAD's files: articles of Wikipedia, cut into paragraphs that questions were asked about.

The paragraphs are documents; the questions become the records that DPR and FiD write.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from retro import catalogue
from retro.corpus.documents import Document

SQUAD = "squad"
"""The name in the catalogue."""
FILES = {"train": "train-v1.1.json", "valid": "dev-v1.1.json"}
"""The file of each split; SQuAD keeps its test questions to itself, and results are given on `dev`."""


def squad_file(split: str) -> Path:
    """The file of a split, as it was fetched."""
    return catalogue.fetched(SQUAD).file(FILES[split])


def read_squad() -> Iterator[Document]:
    """The paragraphs of both splits."""
    for split in FILES:
        yield from documents_of_squad(json.loads(squad_file(split).read_bytes()), split)


def is_squad(content: Any) -> bool:
    return isinstance(content, Mapping) and isinstance(content.get("data"), list)


def documents_of_squad(content: Mapping[str, Any], split: str) -> Iterator[Document]:
    """One document a paragraph, called by its article and its place there."""
    for title, number, paragraph in _paragraphs(content):
        text = str(paragraph.get("context", "")).strip()
        if text:
            yield Document(
                id=f"{title}/{number}",
                text=text + "\n",
                source=SQUAD,
                title=_plain(title),
                language="en",
                split=split,
            )


def records_of_squad(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every question with its distinct answers, and its paragraph as the only passage."""
    for title, _, paragraph in _paragraphs(content):
        passage = {"title": _plain(title), "text": paragraph.get("context")}
        for question in _objects(paragraph.get("qas")):
            answers = [answer.get("text") for answer in _objects(question.get("answers"))]
            texts = [text for text in answers if isinstance(text, str)]
            yield {
                "question": question.get("question"),
                # Several people answered each question of `dev`, often with the same words.
                "answers": list(dict.fromkeys(texts)),
                "ctxs": [passage],
            }


def _paragraphs(content: Mapping[str, Any]) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Each paragraph with its article's title, as it is in the file, and its place in the article."""
    for article in _objects(content.get("data")):
        title = str(article.get("title", ""))
        for number, paragraph in enumerate(_objects(article.get("paragraphs"))):
            yield title, number, paragraph


def _plain(title: str) -> str:
    """The title that a reader of Wikipedia sees: in the files it is a part of an address."""
    return unquote(title).replace("_", " ")


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
