"""A token store whose files are damaged or do not fit is refused in one line that says what to run."""

import json
import re
import shutil
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from retro.cli.main import main
from retro.config import CorpusConfig
from retro.corpus import table, tokens
from retro.corpus.documents import Document
from retro.corpus.encode import EncodedDocument, row_of
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import check, ingest, mend
from retro.corpus.table import TableWriter
from retro.corpus.tokens import TokenStore, write_tokens
from retro.errors import ArtifactError
from retro.scoring.sets import write_set
from retro.stages.executor import LocalExecutor
from retro.stages.files import file_checksum, make_fingerprint
from retro.stages.stage import MANIFEST
from tests.scoring.stores import ByteTokenizer


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
    file = folder / "documents.arrow"
    rows = list(TokenStore.open(folder).documents)
    with file.open("wb") as stream, TableWriter(stream) as writer:
        for row in (*rows, rows[0]):
            writer.add(row)
    with pytest.raises(ArtifactError, match=r"documents.arrow describes 41 documents"):
        TokenStore.open(folder)
    truncate(file)
    with pytest.raises(ArtifactError, match=r"documents.arrow is damaged .*retro doctor"):
        TokenStore.open(folder)


def as_before(folder: Path) -> None:
    """Make a store what earlier versions wrote: lines of JSON, in a manifest without what came later."""
    store = TokenStore.open(folder)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in store.documents]
    (folder / "documents.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "documents.arrow").unlink()
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["counts"]["held"], manifest["files"]["documents.arrow"], manifest["manifest"]
    manifest["files"]["documents.jsonl"] = file_checksum(folder / "documents.jsonl")
    # What they called it: a fingerprint of the checksums of its four files.
    files = ("tokens.npy", "ends.npy", "num_bytes.npy", "documents.jsonl")
    checksums = {name: manifest["files"][name] for name in files}
    manifest["counts"]["content"] = make_fingerprint(checksums, store.tokenizer_fingerprint)
    (folder / MANIFEST).write_text(json.dumps({**manifest, "manifest": make_fingerprint(manifest)}))


def test_a_store_of_an_earlier_version_opens_and_is_the_same(work: Path, text_folder: Path) -> None:
    folder = work / "tokens" / "train"
    new = TokenStore.open(folder)
    rows, fingerprint = list(new.documents), new.fingerprint
    as_before(folder)
    old = TokenStore.open(folder)
    assert old.fingerprint == fingerprint
    assert list(old.documents) == rows
    corpus = CorpusFolder(work)
    check(corpus)
    # Damaged and mended it is a new one, and still called what it was.
    (folder / "documents.jsonl").write_text("{}")
    with pytest.raises(ArtifactError, match=r"documents.jsonl is damaged"):
        TokenStore.open(folder)
    assert mend(corpus) == [str(folder / "documents.jsonl")]
    config = CorpusConfig(vocab_size=320, valid_fraction=0.0, test_fraction=0.0)
    mended = ingest(corpus, [str(text_folder)], config, executor=LocalExecutor(1)).train
    assert mended.fingerprint == fingerprint
    assert list(mended.documents) == rows
    assert not (folder / "documents.jsonl").exists()


def test_a_large_store_is_opened_without_reading_its_tables(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`retro doctor` compares all files with their checksums; opening does so where it takes no time."""
    folder = work / "tokens" / "train"
    file = folder / "documents.arrow"
    data = file.read_bytes()
    digest = bytes.fromhex(TokenStore.open(folder).documents[3]["content_hash"])
    assert data.count(digest) == 1
    file.write_bytes(data.replace(digest, bytes(16)))
    with pytest.raises(ArtifactError, match=r"documents.arrow does not match its checksum"):
        TokenStore.open(folder)
    monkeypatch.setattr(tokens, "CHECKED_BYTES", 100)
    assert TokenStore.open(folder).documents[3]["content_hash"] == bytes(16).hex()
    with pytest.raises(ArtifactError, match=r"documents.arrow does not match its checksum"):
        check(CorpusFolder(work))


def test_memory_does_not_grow_with_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows alone would take twenty times of what is allowed here."""
    monkeypatch.setattr(table, "BATCH", 100)
    tokenizer, number = ByteTokenizer(), 20_000

    def documents() -> Iterator[EncodedDocument]:
        for index in range(number):
            document = Document(str(index), f"text {index}", "s", f"the title of document {index}")
            text = np.array(tokenizer.encode(document.text), dtype=tokenizer.dtype)
            yield EncodedDocument(index, row_of(document, len(text)), text)

    def peak_of(work: Callable[[], object]) -> int:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
        work()
        return tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before

    def walk() -> None:
        store = TokenStore.open(tmp_path / "store")
        assert sum(len(store.document(index)) for index in range(number)) == len(store.tokens)
        assert all(row["id"] == str(index) for index, row in enumerate(store.documents))

    tracemalloc.start()
    try:
        write = partial(write_tokens, documents(), tmp_path / "store", tokenizer, {}, {}, file_bytes=5000)
        assert peak_of(write) < 40 * number + 500_000
        assert peak_of(partial(TokenStore.open, tmp_path / "store")) < 20 * number
        assert peak_of(walk) < 60 * number
    finally:
        tracemalloc.stop()
    assert len(list((tmp_path / "store").glob("tokens-*.npy"))) > 30


def test_sizes_by_source_are_sums_over_documents(work: Path, tmp_path: Path) -> None:
    source = tmp_path / "data.jsonl"
    texts = {str(n): f"some words and others {n}" * n for n in range(1, 9)}
    lines = [{"text": text, "id": n, "source": "ab"[int(n) % 2]} for n, text in texts.items()]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store = write_set(str(source), tmp_path / "set", CorpusFolder(work).tokenizer())
    expected: dict[str, Counter[str]] = defaultdict(Counter)
    for number, row in enumerate(store.documents):
        num_tokens, num_bytes = len(store.document(number)), len(texts[row["id"]])
        expected[row["source"]].update(documents=1, tokens=num_tokens, bytes=num_bytes)
    assert len(expected) == 2
    assert store.by_source() == expected
