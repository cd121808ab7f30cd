"""Ingesting again after files were added, changed or removed."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retro.config import CorpusConfig
from retro.corpus.documents import Document, split_of
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import check, ingest, mend
from retro.corpus.renewal import Changes
from retro.corpus.tokens import Corpus
from retro.errors import ArtifactError
from retro.stages.executor import LocalExecutor
from retro.stages.files import make_fingerprint, write_json

CONFIG = CorpusConfig(vocab_size=320, valid_fraction=0.2, test_fraction=0.2)


class KilledError(BaseException):
    """What a kill is to the code: nothing catches it."""


@pytest.fixture
def source(texts: list[str], tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number:02d}.txt").write_text(text)
    return folder


@pytest.fixture
def work(source: Path, tmp_path: Path) -> CorpusFolder:
    folder = CorpusFolder(tmp_path / "work")
    again(folder, source)
    return folder


def again(folder: CorpusFolder, *sources: Path, config: CorpusConfig = CONFIG) -> Changes | None:
    """Ingest, and return what has changed if anything may have."""
    told: list[Changes] = []
    ingest(folder, [str(path) for path in sources], config, executor=LocalExecutor(1), told=told.append)
    return told[0] if told else None


def change(source: Path) -> None:
    """One file more, one file less, and one with more in it."""
    (source / "new.txt").write_text("Anyone may read what was added later.\n")
    (source / "03.txt").write_text((source / "03.txt").read_text() + "And a line more.\n")
    (source / "05.txt").unlink()


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def texts_of(work: CorpusFolder) -> dict[str, str]:
    """The text of every document that the token stores hold."""
    tokenizer = work.tokenizer()
    return {
        row["id"]: tokenizer.decode(store.document(index).tolist())
        for store in work.corpus().stores().values()
        for index, row in enumerate(store.documents)
    }


def splits_of(corpus: Corpus) -> dict[str, str]:
    return {row["id"]: split for split, store in corpus.stores().items() for row in store.documents}


def test_the_tokens_follow_the_folder_and_only_new_text_is_cut(
    source: Path, work: CorpusFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, splits = contents(work.tokenizer_path), splits_of(work.corpus())
    change(source)
    cut: list[str] = []
    encode = type(work.tokenizer()).encode
    monkeypatch.setattr(
        type(work.tokenizer()), "encode", lambda self, text: cut.append(text) or encode(self, text)
    )
    changes = again(work, source)
    assert changes == Changes([("notes", "new.txt")], [("notes", "03.txt")], [("notes", "05.txt")], 38)
    assert str(changes) == "1 document added, 1 changed, 1 removed, 38 unchanged"
    assert sorted(cut) == sorted((source / name).read_text() for name in ("new.txt", "03.txt"))
    assert contents(work.tokenizer_path) == tokenizer
    assert texts_of(work) == {path.name: path.read_text() for path in source.iterdir()}
    after = splits_of(work.corpus())
    assert all(after[name] == split for name, split in splits.items() if name != "05.txt")
    assert json.loads((work.tokens_path / "changes.json").read_text())["removed"] == [["notes", "05.txt"]]
    check(work)
    # Afterwards it is a corpus as any other: nothing is left to do.
    before = contents(work.path)
    assert again(work, source) is None
    assert contents(work.path) == before


def test_a_renewed_corpus_is_that_of_a_first_reading_with_the_same_tokenizer(
    source: Path, work: CorpusFolder, tmp_path: Path
) -> None:
    change(source)
    again(work, source)
    fresh = CorpusFolder(tmp_path / "fresh")
    shutil.copytree(work.tokenizer_path, fresh.tokenizer_path)
    again(fresh, source)
    (work.tokens_path / "changes.json").unlink()
    assert contents(work.path) == contents(fresh.path)


def named_for(split: str) -> str:
    """A file of the notes that comes into the split."""
    names = (f"more-{number}.txt" for number in itertools.count())
    return next(name for name in names if split_of(Document(name, "", "notes"), CONFIG) == split)


@pytest.mark.parametrize("is_older", [False, True])
def test_a_split_is_known_by_what_it_holds(source: Path, work: CorpusFolder, is_older: bool) -> None:
    """Whatever belongs to held-out tokens stays theirs when other text comes into the training."""
    if is_older:  # as written before stores knew their content
        for split in ("train", "valid", "test"):
            forget_content(work.tokens_path / split / "manifest.json")
    before = {split: store.fingerprint for split, store in work.corpus().stores().items()}
    (source / named_for("train")).write_text("Anyone may train on this, and test on none of it.\n")
    assert again(work, source)
    after = {split: store.fingerprint for split, store in work.corpus().stores().items()}
    assert {split for split in before if before[split] != after[split]} == {"train"}
    (source / named_for("test")).write_text("This is to measure on.\n")
    assert again(work, source)
    last = {split: store.fingerprint for split, store in work.corpus().stores().items()}
    assert {split for split in before if after[split] != last[split]} == {"test"}
    # One that is mended has the name that it had.
    (work.tokens_path / "valid" / "ends.npy").write_bytes(b"damaged")
    mend(work)
    again(work, source)
    assert work.store("valid").fingerprint == before["valid"]
    chosen = work.store("valid").select([0])
    assert chosen.fingerprint not in (last["valid"], work.store("valid").select([1]).fingerprint)


def forget_content(manifest: Path) -> None:
    record = json.loads(manifest.read_text())
    del record["counts"]["content"]
    del record["manifest"]
    write_json(manifest, {**record, "manifest": make_fingerprint(record)})


def test_touched_files_change_nothing(source: Path, work: CorpusFolder) -> None:
    before = contents(work.path)
    os.utime(source / "07.txt", (1, 1))
    changes = again(work, source)
    assert changes is not None
    assert not changes
    assert changes.unchanged == 40
    assert contents(work.path) == before


def test_other_settings_are_refused_by_name_with_the_way_out(source: Path, work: CorpusFolder) -> None:
    before = contents(work.path)
    change(source)
    other = CorpusConfig(vocab_size=330, valid_fraction=0.1, test_fraction=0.2)
    with pytest.raises(
        ArtifactError,
        match=rf"work was made with other settings \(valid_fraction, vocab_size differ\); .*"
        rf"run: retro ingest {source} --out {work.path} --redo",
    ):
        again(work, source, config=other)
    with pytest.raises(ArtifactError, match=r"remove_names differ"):
        ingest(work, [str(source)], CONFIG, names=frozenset({"00.txt"}))
    assert contents(work.path) == before


def test_a_source_may_be_added_but_not_forgotten(source: Path, work: CorpusFolder, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    (more / "a.txt").write_text("Words of another folder.\n")
    with pytest.raises(ArtifactError, match=rf"work was made of {source} as well, which is not named now"):
        again(work, more)
    assert again(work, source, more) == Changes([("more", "a.txt")], [], [], 40)


def test_a_folder_that_was_moved_is_the_same_source(source: Path, work: CorpusFolder, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / source.name
    moved.parent.mkdir()
    source.rename(moved)
    change(moved)
    assert str(again(work, moved)) == "1 document added, 1 changed, 1 removed, 38 unchanged"


def test_a_first_reading_that_was_killed_goes_on_with_changed_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = CorpusFolder(tmp_path / "work")
    for place in ("gathering.write_shard", "ingest.make_tokenizer", "encode._encode_shard", "pack.removals"):

        def killed(*_: object) -> None:
            raise KilledError

        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(f"retro.corpus.{place}", killed)
            again(work, source)
        (source / f"{place}.txt").write_text("One more while it was away.\n" + place)
    again(work, source)
    assert texts_of(work) == {path.name: path.read_text() for path in source.iterdir()}
    assert {path.name for path in work.path.iterdir()} == {"text", "tokenizer", "encoded", "tokens"}


def test_a_kill_before_any_rename_leaves_the_old_or_the_new(
    source: Path, work: CorpusFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and every folder gets its name by a rename, so these are all the moments that differ."""
    first = texts_of(work)
    change(source)
    unbroken = CorpusFolder(tmp_path / "unbroken")
    shutil.copytree(work.path, unbroken.path)
    num_renames = renames(monkeypatch, lambda: again(unbroken, source))
    second = texts_of(unbroken)
    assert num_renames > 15
    states = []
    for number in range(num_renames):
        killed = CorpusFolder(tmp_path / "killed")
        shutil.copytree(work.path, killed.path)
        with pytest.raises(KilledError):
            renames(monkeypatch, lambda: again(killed, source), stop_at=number)  # noqa: B023
        found = texts_of(killed)
        assert found in (first, second)
        states.append(found == second)
        again(killed, source)
        assert contents(killed.path) == contents(unbroken.path)
        shutil.rmtree(killed.path)
    # Once it is the new one it stays the new one.
    assert states == sorted(states)
    assert {False, True} == set(states)


def renames(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], stop_at: int | None = None) -> int:
    """How many renames it takes; it is stopped before the one of this number."""
    replace = Path.replace
    count = 0

    def counted(path: Path, target: Path) -> Path:
        nonlocal count
        if count == stop_at:
            raise KilledError
        count += 1
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", counted)
        run()
    return count


INGEST = """
import sys
from retro.cli.main import main
from retro.corpus import text

text.SHARD_BYTES = 2000
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ten_kills_of_a_renewal_leave_the_result_byte_for_byte(source: Path, tmp_path: Path) -> None:
    options = ["--vocab-size", "320", "--valid-fraction", "0.2", "--test-fraction", "0.2", "--workers", "2"]

    def start(folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", INGEST, "ingest", str(source), "--out", str(folder), *options]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    assert start(tmp_path / "unbroken").wait() == 0
    shutil.copytree(tmp_path / "unbroken", tmp_path / "broken")
    change(source)
    started = time.monotonic()
    assert start(tmp_path / "unbroken").wait() == 0
    seconds = time.monotonic() - started
    rng = random.Random(0)
    for _ in range(10):
        process = start(tmp_path / "broken")
        try:
            process.wait(timeout=rng.uniform(0.3, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        CorpusFolder(tmp_path / "broken").corpus()
    assert start(tmp_path / "broken").wait() == 0
    broken, unbroken = (CorpusFolder(tmp_path / name) for name in ("broken", "unbroken"))
    assert contents(broken.path) == contents(unbroken.path)
    assert np.array_equal(broken.corpus().train.tokens, unbroken.corpus().train.tokens)
