"""Questions with answers and passages, from the JSON that DPR and FiD write, or that of SQuAD.

A file holds one array, or one object a line, and may be compressed. SQuAD itself is in the catalogue.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from retro import catalogue
from retro.corpus.readers.squad import FILES, SQUAD, is_squad, records_of_squad, squad_file
from retro.corpus.readers.streams import BROKEN, open_stream
from retro.errors import DataError
from retro.retrieval.retriever import Passage

EXPECTED = "expected objects with question, answers and ctxs (title, text, score), or SQuAD's format"
DPR_TRAINING = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
"""Where DPR's own training files keep passages."""


@dataclass(frozen=True)
class Question:
    """A question, every answer that counts as right, and its passages, best first."""

    text: str
    answers: tuple[str, ...] = ()
    passages: tuple[Passage, ...] = ()
    target: str = ""
    """The answer to learn, if the file names one; else any of the answers."""


@dataclass(frozen=True)
class Questions:
    """The questions of a file, and how often something was missing."""

    rows: list[Question]
    notes: Counter[str] = field(default_factory=Counter)

    def with_answers(self) -> list[Question]:
        return [question for question in self.rows if question.answers]

    def warnings(self) -> list[str]:
        return [f"{count:,} {note}" for note, count in self.notes.items()]


def read_questions(source: str | Path, num_passages: int | None = None) -> Questions:
    """The questions of a file, or of `squad@train` or `squad@valid`, each with its best `num_passages`
    passages.

    What lacks a question is left out; whatever is missing is counted.

    Passages keep the file's order, unless all of a question's passages have a score.
    """
    found = Questions([])
    for where, record in _records(_file_of(source)):
        if not isinstance(record, Mapping):
            raise DataError(f"{where} is no object; {EXPECTED}")
        for asked in records_of_squad(record) if is_squad(record) else [record]:
            question = _question(asked, found.notes, num_passages)
            if question is not None:
                found.rows.append(question)
    if not found.rows:
        raise DataError(f"{source} holds no question; {EXPECTED}")
    return found


def _file_of(source: str | Path) -> Path:
    """The file that is named; a name of the catalogue comes first, and `./NAME` names the file."""
    name, _, split = str(source).partition("@")
    if name != SQUAD or isinstance(source, Path):
        return Path(source)
    if split not in FILES:
        known = " or ".join(f"{SQUAD}@{split}" for split in FILES)
        raise DataError(f"{source} names no split of {SQUAD}; expected {known}")
    catalogue.fetch_if_missing(SQUAD)
    return squad_file(split)


def read_passages(path: Path) -> list[Passage]:
    """The passages of a file: objects with text and title."""
    passages = [_passage(record) for _, record in _records(path)]
    kept = [passage for passage in passages if passage is not None]
    if not kept:
        raise DataError(f"{path} holds no passage; expected objects with text, and title where there is one")
    return kept


def _question(record: Mapping[str, Any], notes: Counter[str], num_passages: int | None) -> Question | None:
    text = _line(record.get("question"))
    if not text:
        notes["left out: without a question"] += 1
        return None
    target = _line(record.get("target"))
    listed_answers = _list(record.get("answers", record.get("answer")))
    answers = tuple(filter(None, map(_line, listed_answers)))
    # A file may name only the target.
    if not answers and target:
        answers = (target,)
    if not answers:
        notes["without an answer: neither trained on nor scored"] += 1
    if "ctxs" in record:
        listed = _list(record["ctxs"])
    else:
        listed = [entry for name in DPR_TRAINING for entry in _list(record.get(name))]
    read = [_passage(entry) for entry in listed]
    passages = [passage for passage in read if passage is not None]
    notes["passages left out: without text"] += len(read) - len(passages)
    notes["without a passage of their own"] += not passages
    # If some have no score, the file's own order is the best that is known.
    if all(passage.score is not None for passage in passages):
        passages.sort(key=lambda passage: -(passage.score or 0.0))
    # Adding 0 leaves an entry behind, which would become a warning about nothing.
    for note in [note for note, count in notes.items() if not count]:
        del notes[note]
    return Question(text, answers, tuple(passages[:num_passages]), target)


def _passage(entry: Any) -> Passage | None:
    if isinstance(entry, str):
        entry = {"text": entry}
    text = entry.get("text") if isinstance(entry, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        score = float(entry["score"])  # FiD's files have it as a string
    except (KeyError, TypeError, ValueError):
        score = None
    return Passage(" ".join(text.split()), _line(entry.get("title")), score)


def _line(value: Any) -> str:
    """A value as one line of text."""
    if isinstance(value, str):
        return " ".join(value.split())
    return str(value) if isinstance(value, int | float) else ""


def _list(value: Any) -> list[Any]:
    """A value as a list; files may give a single value without one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """The objects of a file, each with a description of where it is."""
    try:
        with open_stream(path) as file:
            # Objects on lines are read one by one; an array, or one object on many lines, is read whole.
            first = next((line for line in file if line.strip()), b"")
            if first.lstrip().startswith(b"["):
                for number, record in enumerate(_parse(first + file.read(), str(path)), start=1):
                    yield f"{path} entry {number}", record
                return
            if first.strip() == b"{":
                yield str(path), _parse(first + file.read(), str(path))
                return
            for number, line in enumerate(chain([first], file), start=1):
                if line.strip():
                    yield f"{path} line {number}", _parse(line, f"{path} line {number}")
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"{path} is no file; expected one in JSON or JSON Lines") from None
    except BROKEN as error:
        raise DataError(f"{path} cannot be read ({error}); expected a whole file; fetch it again") from None


def _parse(content: bytes, where: str) -> Any:
    try:
        # A file may begin with a byte-order mark.
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON ({getattr(error, 'msg', error)}); {EXPECTED}") from None
