import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from retro.config import CorpusConfig
from retro.corpus.documents import Document, split_of
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import check, decontaminate, ingest, mend
from retro.corpus.readers.problems import FATAL, Kind
from retro.corpus.text import TextStore, read_shard
from retro.corpus.tokenizers.sentencepiece import END_ID
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokenizers.training import sample_text
from retro.corpus.tokens import Corpus
from retro.errors import ArtifactError, DataError
from retro.stages.executor import LocalExecutor

CONFIG = CorpusConfig(vocab_size=320, valid_fraction=0.2, test_fraction=0.2)


def write_jsonl(texts: list[str], path: Path) -> Path:
    rows = [
        {"id": str(number), "text": text, "title": f"T{number}", "source": "test"}
        for number, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make(texts: list[str], folder: Path, config: CorpusConfig = CONFIG, workers: int = 1) -> Corpus:
    source = write_jsonl(texts, folder / "data.jsonl")
    return ingest(CorpusFolder(folder / "work"), [str(source)], config, executor=LocalExecutor(workers))


def drawn(number: int, config: CorpusConfig = CONFIG) -> str | None:
    return split_of(Document(str(number), "x", "test"), config)


def test_splits_depend_on_the_document_alone(texts: list[str]) -> None:
    splits = [drawn(number) for number in range(len(texts))]
    assert set(splits) == {"train", "valid", "test"}
    assert split_of(Document("1", "x", "test", split="valid"), CONFIG) == "valid"


def test_stores_hold_every_document_exactly(texts: list[str], tmp_path: Path) -> None:
    make(texts, tmp_path)
    tokenizer = Tokenizer.open(tmp_path / "work" / "tokenizer")
    seen = []
    for split, store in Corpus.open(tmp_path / "work" / "tokens").stores().items():
        assert store.tokens.dtype == np.uint16
        for index, row in enumerate(store.documents):
            tokens = store.document(index)
            assert tokens[-1] == END_ID
            assert tokenizer.decode(tokens.tolist()) == texts[int(row["id"])]
            assert store.num_bytes[index] == len(texts[int(row["id"])].encode())
            assert row["title"] == f"T{row['id']}"
            assert drawn(int(row["id"])) == split
            seen.append(row["id"])
    assert sorted(seen) == sorted(map(str, range(len(texts))))


def test_duplicates_and_near_duplicates_of_held_out_documents_leave_the_training_set(
    texts: list[str], tmp_path: Path
) -> None:
    held_out = next(
        number for number in range(len(texts)) if drawn(number) == "test" and len(texts[number]) > 400
    )
    copies = [texts[held_out], *(texts[held_out] + f"{number}" for number in range(1, 20))]
    corpus = make([*texts, *copies], tmp_path)
    removed = {
        row["document"]: row
        for row in json.loads((tmp_path / "work" / "tokens" / "removed.json").read_text())
    }
    exact = str(len(texts))
    assert removed[exact]["reason"] == "duplicate"
    assert removed[exact]["matches"] == str(held_out)
    near = {str(len(texts) + number) for number in range(1, 20) if drawn(len(texts) + number) == "train"}
    assert near
    assert near == {name for name, row in removed.items() if row["reason"] == "contaminated"}
    assert not removed.keys() & {row["id"] for row in corpus.train.documents}
    # They can be read back, to measure what they would have brought.
    back = {document.id: document.text for document in CorpusFolder(tmp_path / "work").contaminated()}
    assert back == {name: [*texts, *copies][int(name)] for name in near}


def test_ingesting_again_reuses_and_other_text_is_taken(texts: list[str], tmp_path: Path) -> None:
    first = make(texts, tmp_path)
    source = tmp_path / "data.jsonl"
    again = ingest(CorpusFolder(tmp_path / "work"), [str(source)], CONFIG)
    assert again.train.fingerprint == first.train.fingerprint
    less = make(texts[:-1], tmp_path)
    assert sum(map(len, less.stores().values())) == len(texts) - 1
    assert less.train.tokenizer_fingerprint == first.train.tokenizer_fingerprint


@pytest.mark.parametrize("names", [frozenset(), frozenset({"T1"})])
def test_a_finished_corpus_is_only_opened(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: frozenset[str]
) -> None:
    """Looking for duplicates and contamination takes as long as all the rest together."""
    source = str(write_jsonl(texts, tmp_path / "data.jsonl"))
    work = CorpusFolder(tmp_path / "work")
    first = ingest(work, [source], CONFIG, names=names)
    report = work.tokens_path / "removed.json"
    times = {path: path.stat().st_mtime_ns for path in (report, *report.parent.rglob("*.*"))}

    def looked(*_: object) -> None:
        raise AssertionError("the tokens were compared again")

    with monkeypatch.context() as patch:
        patch.setattr("retro.corpus.pack.find_contaminated", looked)
        patch.setattr("retro.corpus.encode.EncodedStore.documents", looked)
        again = ingest(work, [source], CONFIG, names=names)
    assert list(again.stores()) == list(first.stores()) == ["train", "valid", "test"]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    # A kill before the report, or a store that was removed, still leaves something to do.
    before = report.read_bytes()
    report.unlink()
    shutil.rmtree(work.tokens_path / "valid")
    again = ingest(work, [source], CONFIG, names=names)
    assert again.valid is not None
    assert report.read_bytes() == before


def test_a_held_out_split_that_is_all_duplicates_stays_absent(texts: list[str], tmp_path: Path) -> None:
    """A document of valid that also stands in test is removed, here the only one."""
    held_out = {split: next(n for n in range(999) if drawn(n) == split) for split in ("test", "valid")}
    rows = [
        {"id": str(number), "text": texts[number], "source": "test"}
        for number in range(len(texts))
        if drawn(number) == "train"
    ]
    rows += [{"id": str(number), "text": "the same", "source": "test"} for number in held_out.values()]
    source = tmp_path / "data.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for _ in range(2):
        corpus = ingest(CorpusFolder(tmp_path / "work"), [str(source)], CONFIG, executor=LocalExecutor(1))
        assert list(corpus.stores()) == ["train", "test"]
        assert CorpusFolder(tmp_path / "work").removed() == {"duplicate": 1}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_workers_and_shards_do_not_change_the_tokens(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make(texts, tmp_path)
    monkeypatch.setattr("retro.corpus.text.SHARD_BYTES", 1500)
    results = []
    for workers in (1, 2):
        folder = tmp_path / f"{workers}"
        ingest(CorpusFolder(folder), [str(tmp_path / "data.jsonl")], CONFIG, executor=LocalExecutor(workers))
        results.append(contents(folder))
        assert len(TextStore.open(folder / "text").shards) > 5
    assert results[0] == results[1]
    assert np.array_equal(Corpus.open(tmp_path / "1" / "tokens").train.tokens, whole.train.tokens)


def test_a_broken_shard_is_made_again_alone(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retro.corpus.text.SHARD_BYTES", 1500)
    make(texts, tmp_path)
    work = CorpusFolder(tmp_path / "work")
    before = contents(work.encoded_path)
    times = {path: path.stat().st_mtime_ns for path in work.encoded_path.glob("*.npy")}
    broken = sorted(times)[2]
    data = bytearray(broken.read_bytes())
    data[-1] ^= 1
    broken.write_bytes(data)
    with pytest.raises(ArtifactError, match=f"{broken.name} does not match its checksum"):
        check(work)
    assert mend(work) == [str(broken)]
    ingest(work, [str(tmp_path / "data.jsonl")], CONFIG)
    check(work)
    assert contents(work.encoded_path) == before
    assert [path for path, when in times.items() if path.stat().st_mtime_ns != when] == [broken]


def test_records_that_cannot_be_read_are_listed_or_fatal(texts: list[str], tmp_path: Path) -> None:
    source = write_jsonl(texts, tmp_path / "data.jsonl")
    with source.open("a") as file:
        file.write('{"id": "no text"}\n{broken\n')
    work = CorpusFolder(tmp_path / "work")
    with pytest.raises(DataError, match=r"data.jsonl line 41 has no text"):
        ingest(work, [str(source)], CONFIG, strict=True)
    ingest(work, [str(source)], CONFIG, strict=False)
    assert sum(tally.documents for kind, tally in work.left_out().items() if kind in FATAL) == 2
    listed = [json.loads(line) for line in work.left_out_path.read_text().splitlines()]
    assert [row["where"] for row in listed] == [f"{source} line {line}" for line in (41, 42)]
    assert [row["kind"] for row in listed] == [Kind.NO_TEXT, Kind.UNREADABLE]


def test_a_sample_for_the_tokenizer_is_even_and_bounded(texts: list[str], tmp_path: Path) -> None:
    make(texts, tmp_path)
    text = TextStore.open(tmp_path / "work" / "text")
    training = [
        document for shard in text.shards for document in read_shard(shard) if document.split == "train"
    ]
    assert [d.id for d in sample_text(text, 1 << 30)] == [d.id for d in training]
    half = list(sample_text(text, sum(len(d.text.encode()) for d in training) // 2))
    assert 0 < len(half) < len(training)


def test_named_documents_and_those_close_to_a_given_set_are_removed(texts: list[str], tmp_path: Path) -> None:
    training = [number for number in range(len(texts)) if drawn(number) == "train"]
    named, close = training[0], next(number for number in training[1:] if len(texts[number]) > 400)
    source = write_jsonl(texts, tmp_path / "data.jsonl")
    work = CorpusFolder(tmp_path / "work")
    corpus = ingest(work, [str(source)], CONFIG, names=frozenset({f"T{named}"}))
    assert str(named) not in {row["id"] for row in corpus.train.documents}
    assert work.removed() == {"named": 1}
    assert work.by_source()["test"]["documents"] == len(texts) - 1
    (tmp_path / "evaluation.txt").write_text(texts[close] + "a little more")
    cleaned = decontaminate(work, tmp_path / "clean", [str(tmp_path / "evaluation.txt")])
    gone = {row["document"]: row for row in json.loads((tmp_path / "clean" / "removed.json").read_text())}
    assert set(gone) == {str(close)}
    assert gone[str(close)]["matches"] == "given document 0"
    assert len(cleaned.train) == len(corpus.train)  # one is back, since no name was given, and one is gone


def test_documents_that_are_too_long_or_empty_are_left_out(tmp_path: Path) -> None:
    config = CorpusConfig(vocab_size=280, max_document_bytes=12, valid_fraction=0.0, test_fraction=0.0)
    corpus = make(["short words", "this one is too long", "other words"], tmp_path, config)
    assert [row["id"] for row in corpus.train.documents] == ["0", "2"]


def test_an_empty_corpus_is_refused_with_what_was_skipped(texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(DataError, match=r"no training document with text; skipped: .*line 1 has no text"):
        ingest(CorpusFolder(tmp_path / "work"), [str(tmp_path / "data.jsonl")], CONFIG, strict=False)
    assert not (tmp_path / "work" / "text").exists()
    # Nothing is left behind that would stand in the way of a mended file.
    assert make(texts, tmp_path).train


INGEST = """
import sys
from retro.cli.main import main
from retro.corpus import text

text.SHARD_BYTES = 2000
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ten_kills_leave_the_result_byte_for_byte(texts: list[str], tmp_path: Path) -> None:
    source = write_jsonl(texts * 3, tmp_path / "data.jsonl")
    options = ["--vocab-size", "320", "--valid-fraction", "0.2", "--test-fraction", "0.2", "--workers", "2"]

    def start(folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", INGEST, "ingest", str(source), "--out", str(folder), *options]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    started = time.monotonic()
    assert start(tmp_path / "unbroken").wait() == 0
    seconds = time.monotonic() - started
    rng, kills = random.Random(0), 0
    while kills < 10:
        process = start(tmp_path / "broken")
        try:
            process.wait(timeout=rng.uniform(0.3, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        kills += 1
    assert start(tmp_path / "broken").wait() == 0
    assert contents(tmp_path / "broken") == contents(tmp_path / "unbroken")


def test_a_corpus_is_cut_by_the_tokenizer_of_a_run(text_folder: Path, tmp_path: Path) -> None:
    """Whoever is given a run builds a datastore for it with the tokenizer that it carries."""
    first, second = CorpusFolder(tmp_path / "first"), CorpusFolder(tmp_path / "second")
    ingest(first, [str(text_folder)], CorpusConfig(vocab_size=320))
    ingest(second, [str(text_folder)], CorpusConfig(tokenizer=str(first.tokenizer_path)))
    assert second.tokenizer().fingerprint == first.tokenizer().fingerprint
    assert second.store("train").tokenizer_fingerprint == first.store("train").tokenizer_fingerprint
    again = ingest(second, [str(text_folder)], CorpusConfig(tokenizer=str(first.tokenizer_path)))
    assert again.train.fingerprint == second.store("train").fingerprint
