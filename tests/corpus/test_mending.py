"""A damaged file of any kind is found, named, and made again, alone where it is one of many shards."""

import os
import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.config import CorpusConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest, mend
from retro.errors import ArtifactError
from retro.stages.executor import LocalExecutor

CONFIG = CorpusConfig(vocab_size=320, valid_fraction=0.2, test_fraction=0.2)
OPTIONS = ["--vocab-size", "320", "--valid-fraction", "0.2", "--test-fraction", "0.2", "--workers", "1"]
SHARDS = {
    "text/000002.jsonl.zst": {"text/000002.jsonl.zst", "text/000002.jsonl.summary"},
    "text/000002.jsonl.summary": {"text/000002.jsonl.zst", "text/000002.jsonl.summary"},
    "encoded/000002.npy": {"encoded/000002.npy", "encoded/000002.jsonl"},
    "encoded/000002.jsonl": {"encoded/000002.npy", "encoded/000002.jsonl"},
}
"""A file of a shard, and what is made again for it."""
WHOLE = ["tokenizer/tokenizer.model", "tokenizer/vocabulary.json"]
WHOLE += [f"tokens/train/{name}" for name in ("tokens.npy", "ends.npy", "num_bytes.npy", "documents.arrow")]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retro.corpus.text.SHARD_BYTES", 1500)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, text_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "work"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retro.corpus.text.SHARD_BYTES", 1500)
        assert main(["ingest", str(text_folder), "--out", str(folder), *OPTIONS]) == 0
    return folder


@pytest.fixture
def work(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "work"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def times(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 1
    else:
        del data[len(data) // 2 :]
    file.write_bytes(data)


@pytest.mark.parametrize("how", ["flip", "truncate"])
@pytest.mark.parametrize("name", [*SHARDS, *WHOLE])
def test_a_damaged_file_is_found_named_and_made_again(
    capsys: pytest.CaptureFixture[str], work: Path, text_folder: Path, name: str, how: str
) -> None:
    before, then = contents(work), times(work)
    assert len(list((work / "text").glob("*.zst"))) > 5
    damage(work / name, how)
    assert main(["doctor", "--work", str(work)]) == 1
    assert f"{work / name} does not match its checksum" in capsys.readouterr().err
    assert main(["doctor", "--work", str(work), "--mend"]) == 0
    assert main(["ingest", str(text_folder), "--out", str(work), *OPTIONS]) == 0
    assert main(["doctor", "--work", str(work)]) == 0
    assert contents(work) == before
    stage = str(Path(name).parent)
    touched = {path for path, when in times(work).items() if when != then[path]} - {
        f"{stage}/manifest.json",
        "text/left-out.jsonl",
        "tokens/removed.json",
    }
    assert touched <= SHARDS.get(name, {path for path in before if path.startswith(stage)})
    assert name in touched


def test_two_stages_can_be_broken_at_once(work: Path, text_folder: Path) -> None:
    before = contents(work)
    damage(work / "text" / "000001.jsonl.zst", "flip")
    (work / "encoded" / "000003.npy").unlink()
    assert main(["doctor", "--work", str(work), "--mend"]) == 0
    assert main(["ingest", str(text_folder), "--out", str(work), *OPTIONS]) == 0
    assert contents(work) == before


@pytest.mark.parametrize("change", ["text", "time", "more"])
def test_a_source_that_changed_meanwhile_is_refused(
    work: Path, text_folder: Path, tmp_path: Path, change: str
) -> None:
    """A shard of other text must not come to stand among the old ones."""
    source = Path(shutil.copytree(text_folder, tmp_path / "texts"))
    shutil.rmtree(work)
    folder = CorpusFolder(work)
    ingest(folder, [str(source)], CONFIG, executor=LocalExecutor(1))
    damage(work / "text" / "000001.jsonl.zst", "flip")
    assert mend(folder) == [str(work / "text" / "000001.jsonl.zst")]
    if change == "text":
        (source / "05.txt").write_text("something else")
    elif change == "time":
        os.utime(source / "05.txt")
    else:
        (source / "99.txt").write_text("one more")
    kept = contents(work / "text.partial")
    with pytest.raises(
        ArtifactError, match=r"text.partial was made with other settings or inputs \(.*texts differ\)"
    ):
        ingest(folder, [str(source)], CONFIG, executor=LocalExecutor(1))
    assert contents(work / "text.partial") == kept
