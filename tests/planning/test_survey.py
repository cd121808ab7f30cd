"""What is seen of a text before anything is chosen, and which text is too little."""

from pathlib import Path

import pytest

from retro.errors import DataError
from retro.planning.survey import survey


def write(folder: Path, texts: list[str]) -> str:
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number:03d}.txt").write_text(text)
    return str(folder)


def test_copies_count_once(tmp_path: Path) -> None:
    found = survey([write(tmp_path, ["one " * 10, "two " * 20, "one " * 10])])
    assert found.num_documents == 2
    assert found.num_bytes == 120
    assert found.num_duplicates == 1
    assert sorted(found.draws) == list(found.draws)


def test_pieces_are_as_long_as_chunks(tmp_path: Path) -> None:
    found = survey([write(tmp_path, ["a" * 1000, "b" * 1000])])
    assert [len(piece) for piece in found.pieces(300, 5)] == [300, 300, 300, 100, 300]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["short"] * 3, r"1 document, 0\.0 kB besides 2 copies; expected at least 10 .* add more text"),
        (["long " * 20_000], "1 document, 0.10 MB; expected .* cut the text into more files"),
        ([f"{number} " * 20 for number in range(30)], "30 documents, .* add more text"),
    ],
)
def test_too_little_text_is_refused_in_one_line(tmp_path: Path, texts: list[str], message: str) -> None:
    source = write(tmp_path, texts)
    with pytest.raises(DataError, match=message) as caught:
        survey([source]).expect_enough([source])
    assert "\n" not in str(caught.value)


def test_enough_is_enough(tmp_path: Path) -> None:
    source = write(tmp_path, [f"{number} word " * 1000 for number in range(12)])
    survey([source]).expect_enough([source])
