"""A token store whose files are damaged or do not fit is refused in one line that says what to run."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retro.cli.main import main
from retro.config import CorpusConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError
from retro.stages.executor import LocalExecutor


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, text_folder: Path) -> Path:
    folder = CorpusFolder(tmp_path_factory.mktemp("finished") / "work")
    config = CorpusConfig(vocab_size=320, valid_fraction=0.0, test_fraction=0.0)
    ingest(folder, [str(text_folder)], config, executor=LocalExecutor(1))
    return folder.path


@pytest.fixture
def work(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "work"))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def cut_header(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:20])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def garble(file: Path) -> None:
    file.write_bytes(b"PK\x03\x04 something else " * 50)


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("name", ["tokens.npy", "ends.npy", "num_bytes.npy"])
@pytest.mark.parametrize("damage", [truncate, cut_header, empty, garble, remove])
def test_a_damaged_array_is_named_with_what_to_run(
    work: Path, name: str, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    file = work / "tokens" / "train" / name
    damage(file)
    with pytest.raises(ArtifactError) as caught:
        TokenStore.open(file.parent)
    message = str(caught.value)
    assert message.startswith(f"{file} is damaged (")
    assert f"run: retro doctor --work {work} --mend; then run: retro ingest SOURCE --out {work}" in message
    assert "\n" not in message
    assert main(["train", str(work), "--baseline"]) == 1
    assert f"{file} is damaged (" in re.sub(r"\s*\n\s*", " ", capsys.readouterr().err)


def too_long(ends: np.ndarray) -> np.ndarray:
    return np.concatenate([ends, ends[-1:] + 9])


def too_short(ends: np.ndarray) -> np.ndarray:
    return ends[:-1]


def backwards(ends: np.ndarray) -> np.ndarray:
    return np.concatenate([ends[:2][::-1], ends[2:]])


def broken(ends: np.ndarray) -> np.ndarray:
    return ends.astype(np.float64)


def square(ends: np.ndarray) -> np.ndarray:
    return ends[None]


@pytest.mark.parametrize("change", [too_long, too_short, backwards, broken, square])
def test_ends_that_do_not_fit_the_tokens_are_refused(
    work: Path, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    file = work / "tokens" / "train" / "ends.npy"
    np.save(file, change(np.load(file)))
    with pytest.raises(
        ArtifactError, match=rf"^{re.escape(str(file))} .*expected .*retro doctor --work .*--mend"
    ):
        TokenStore.open(file.parent)


def test_byte_counts_and_rows_of_another_number_of_documents_are_refused(work: Path) -> None:
    folder = work / "tokens" / "train"
    whole = np.load(folder / "num_bytes.npy")
    np.save(folder / "num_bytes.npy", whole[1:])
    with pytest.raises(
        ArtifactError, match=r"num_bytes.npy describes 39 documents; expected 40 as in ends.npy"
    ):
        TokenStore.open(folder)
    np.save(folder / "num_bytes.npy", whole)
    rows = (folder / "documents.jsonl").read_text()
    (folder / "documents.jsonl").write_text(rows + "{}\n")
    with pytest.raises(ArtifactError, match=r"documents.jsonl describes 41 documents"):
        TokenStore.open(folder)
    (folder / "documents.jsonl").write_text(rows[:-9])
    with pytest.raises(ArtifactError, match=r"documents.jsonl is damaged .*retro doctor"):
        TokenStore.open(folder)


def test_a_title_may_hold_any_character(tmp_path: Path) -> None:
    """Some count as ends of lines for Python, but not for JSON."""
    title = "one\u2028two\x85three"
    source = tmp_path / "data.jsonl"
    source.write_text(json.dumps({"text": "some words and others", "id": "\x0b", "title": title}) + "\n")
    config = CorpusConfig(vocab_size=280, valid_fraction=0.0, test_fraction=0.0)
    corpus = ingest(CorpusFolder(tmp_path / "work"), [str(source)], config, executor=LocalExecutor(1))
    assert corpus.train.documents[0]["title"] == title
    assert TokenStore.open(tmp_path / "work" / "tokens" / "train").documents[0]["id"] == "\x0b"


def test_a_store_that_stands_alone_is_made_again(work: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(work / "tokens" / "train", tmp_path / "set"))
    truncate(alone / "ends.npy")
    with pytest.raises(
        ArtifactError, match=rf"remove {re.escape(str(alone))} and run the same command again"
    ):
        TokenStore.open(alone)
