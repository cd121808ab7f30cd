"""Files of questions as users have them, good and bad."""

import gzip
import json
from pathlib import Path

import pytest

from retro import catalogue
from retro.errors import DataError
from retro.questions.examples import Question, read_passages, read_questions
from retro.retrieval.retriever import Passage
from retro.stages.stage import Stage, run_stage

FID = {
    "question": "who wrote  it",
    "answers": ["Ada", "A. Lovelace"],
    "target": "Ada",
    "ctxs": [{"title": "T", "text": "one", "score": "1.5"}, {"title": "U", "text": "two", "score": "2.5"}],
}
DPR = {
    "question": "where",
    "answers": ["here"],
    "positive_ctxs": [{"title": "P", "text": "p"}],
    "hard_negative_ctxs": [{"text": "n"}],
}


def test_an_array_and_lines_packed_or_not_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "array.json").write_text(json.dumps([FID, DPR], indent=1))
    lines = "\n" + json.dumps(FID) + "\n\n" + json.dumps(DPR) + "\n"
    (tmp_path / "lines.jsonl").write_text(lines)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    found = [read_questions(path) for path in sorted(tmp_path.iterdir())]
    assert found[0] == found[1] == found[2]
    first, second = found[0].rows
    assert (first.text, first.answers, first.target) == ("who wrote it", ("Ada", "A. Lovelace"), "Ada")
    assert [(p.title, p.text, p.score) for p in first.passages] == [
        ("U", "two", 2.5),
        ("T", "one", 1.5),
    ]  # by score
    assert [(p.title, p.text) for p in second.passages] == [("P", "p"), ("", "n")]  # as in the file
    assert not found[0].notes
    assert [len(row.passages) for row in read_questions(tmp_path / "lines.jsonl", 1).rows] == [1, 1]


def test_what_is_missing_is_counted(tmp_path: Path) -> None:
    rows = [
        {"answers": ["a"]},
        {"question": " ", "answers": ["a"]},
        {"question": "q", "answer": "a"},
        {"question": "q", "answers": ["", None], "ctxs": [{"title": "no text"}, "bare text", 3]},
        {"question": "q", "target": "t", "ctxs": []},
        FID,
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_questions(tmp_path / "q.jsonl")
    assert [row.answers for row in found.rows] == [("a",), (), ("t",), ("Ada", "A. Lovelace")]
    assert found.warnings() == [
        "2 left out: without a question",
        "2 without a passage of their own",
        "1 without an answer: neither trained on nor scored",
        "2 passages left out: without text",
    ]
    assert len(found.with_answers()) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no question"),
        (b'{"text": "x"}', "holds no question"),
        (b'{"question": "x"}\n{"question": ', "line 2 is not JSON"),
        (b"[1, 2]", "entry 1 is no object"),
        (b'[{"question": "x"}', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (gzip.compress(b'{"question": "x"}', mtime=0)[:-9], "cannot be read"),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "q.json").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_questions(tmp_path / "q.json")


def test_no_file_and_passages(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no file"):
        read_questions(tmp_path / "absent.json")
    (tmp_path / "p.jsonl").write_text('{"title": "T", "text": "x\\ny"}\n{"text": ""}\n')
    assert [(p.title, p.text) for p in read_passages(tmp_path / "p.jsonl")] == [("T", "x y")]
    (tmp_path / "p.jsonl").write_text('{"title": "T"}\n')
    with pytest.raises(DataError, match="holds no passage"):
        read_passages(tmp_path / "p.jsonl")


SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "Ada_Lovelace",
            "paragraphs": [
                {
                    "context": "Ada wrote it.",
                    "qas": [{"question": "Who wrote it?", "answers": [{"text": "Ada"}, {"text": "Ada"}]}],
                },
                "no paragraph",
            ],
        }
    ],
}
ADA = Question("Who wrote it?", ("Ada",), (Passage("Ada wrote it.", "Ada Lovelace"),))


@pytest.mark.parametrize("indent", [None, 1])
def test_squad_s_own_format(tmp_path: Path, indent: int | None) -> None:
    (tmp_path / "squad.json").write_text(json.dumps(SQUAD, indent=indent))
    assert read_questions(tmp_path / "squad.json").rows == [ADA]
    (tmp_path / "squad.json").write_text(json.dumps({"data": []}, indent=indent))
    with pytest.raises(DataError, match="holds no question"):
        read_questions(tmp_path / "squad.json")


def test_squad_of_the_catalogue_has_two_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of that name is named by `./`, or as a path."""
    monkeypatch.setenv("RETRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def work(stage: Stage) -> None:
        stage.file("dev-v1.1.json").write_text(json.dumps(SQUAD))

    run_stage(catalogue.folder_of("squad"), "fetched", {}, {}, work, "retro fetch squad")
    assert read_questions("squad@valid").rows == [ADA]
    for name in ("squad", "squad@test"):
        with pytest.raises(DataError, match=f"{name} names no split.*squad@train or squad@valid"):
            read_questions(name)
    Path("squad@valid").write_text(json.dumps(FID))
    for file in ("./squad@valid", Path("squad@valid")):
        assert read_questions(file).rows[0].text == "who wrote it"
