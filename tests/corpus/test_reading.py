"""The plan of what is read where: the same corpus, byte for byte, whoever reads it."""

import json
import shutil
from pathlib import Path

import pytest

from retro.config import CorpusConfig
from retro.corpus import gathering, reading
from retro.corpus.documents import Document
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest, look, mend
from retro.corpus.readers import FieldMap, Problems
from retro.corpus.reading import Files, Stream, plan_reading
from retro.corpus.tokens import Corpus
from retro.errors import DataError
from retro.stages.executor import LocalExecutor

CONFIG = CorpusConfig(vocab_size=320, valid_fraction=0.2, test_fraction=0.2)


@pytest.fixture
def sources(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A folder, a source tree and a file, which are read in some ten units; parts of them are left out."""
    monkeypatch.setattr(reading, "UNIT_BYTES", 4_000)
    monkeypatch.setattr("retro.corpus.text.SHARD_BYTES", 1_500)
    folder, tree = tmp_path / "notes", tmp_path / "tree"
    (folder / "deep").mkdir(parents=True)
    (tree / "src").mkdir(parents=True)
    for number, text in enumerate(texts):
        place = folder / "deep" if number % 3 else folder
        (place / f"{number}.txt").write_text(text)
        (tree / "src" / f"{number}.py").write_text(f"# {number}\n{text[::-1]}")
    (folder / "picture.png").write_bytes(b"\x89PNG and more")
    (folder / ".hidden").write_text("x")
    (folder / "rows.jsonl").write_text('{"text": "some words"}\n{oops\n')
    (folder / "latin.txt").write_bytes("Übergrößenträger süßer Äpfel\n".encode("latin-1"))
    (tree / ".gitignore").write_text("*.log\n")
    (tree / "a.log").write_text("x")
    (tree / "empty.py").touch()
    more = tmp_path / "more.jsonl"
    more.write_text(
        "".join(json.dumps({"body": text.upper(), "id": n}) + "\n" for n, text in enumerate(texts))
    )
    return [str(folder), str(tree), f"{more}::text=body"]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_files_are_read_in_units_and_the_rest_as_streams(
    sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = Problems()
    units = plan_reading([*sources, "stdlib"], None, problems)
    kinds = [unit.kind for unit in units if isinstance(unit, Files)]
    assert list(dict.fromkeys(kinds)) == ["folder", "tree", "file"]
    assert kinds.count("folder") > 3
    assert kinds.count("tree") > 3
    assert isinstance(units[-1], Stream)
    assert isinstance(units[-2], Files)
    assert units[-2].fields == FieldMap(text="body")
    # What is left out by its name alone is told by the plan, before anything is read.
    assert {Path(where).name for where, _ in problems.rows} == {".hidden", "a.log"}
    monkeypatch.setattr(reading, "UNIT_FILES", 3)
    assert all(len(unit.names) <= 3 for unit in plan_reading(sources[:1], None, Problems()))
    # There is nothing to share of a single unit but the work on what was read.
    (only,) = plan_reading(sources[2:], None, Problems())
    assert isinstance(only, Stream)
    with pytest.raises(DataError, match="is no file, no folder"):
        plan_reading([*sources, "nowhere"], None, Problems())


def test_whoever_reads_the_corpus_is_the_same(
    sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_here: list[int] = []

    def unit(self: gathering.Sifting, numbered: tuple[int, Files]) -> dict:
        read_here.append(numbered[0])
        return original(self, numbered)

    original = gathering.Sifting.unit
    for workers in (1, 2):
        ingest(
            CorpusFolder(tmp_path / f"{workers}"),
            sources,
            CONFIG,
            strict=False,
            executor=LocalExecutor(workers),
        )
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    listed = (tmp_path / "1" / "text" / "left-out.jsonl").read_text().splitlines()
    rows = [Path(json.loads(row)["where"]).name for row in listed]
    assert rows == [".hidden", "a.log", "picture.png", "rows.jsonl line 2", "empty.py"]
    # As one stream, as it was read before there were units, the documents are the same in the same order.
    monkeypatch.setattr(reading, "UNIT_BYTES", 1 << 30)
    monkeypatch.setattr(gathering.Sifting, "unit", unit)
    ingest(CorpusFolder(tmp_path / "few"), sources, CONFIG, strict=False, executor=LocalExecutor(1))
    assert read_here == [0, 1, 2]
    few, many = (Corpus.open(tmp_path / name / "tokens").train for name in ("few", "1"))
    assert few.fingerprint == many.fingerprint


def test_a_dry_run_reads_by_the_same_plan(sources: list[str], tmp_path: Path) -> None:
    work = CorpusFolder(tmp_path / "work")
    ingest(work, sources, CONFIG, strict=False, executor=LocalExecutor(1))
    looks = list(look(sources, CONFIG, executor=LocalExecutor(1)))
    assert sum(counts["documents"] for _, counts, _ in looks) == (40 + 2) + (40 + 1) + 40
    assert sum(problems.count for _, _, problems in looks) == sum(
        tally.documents for tally in work.left_out().values()
    )


def test_units_that_are_done_are_not_read_again(
    sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CorpusFolder(tmp_path / "whole")
    ingest(whole, sources, CONFIG, strict=False, executor=LocalExecutor(1))
    broken = CorpusFolder(tmp_path / "broken")
    read: list[int] = []
    original = gathering.Sifting.unit

    def unit(self: gathering.Sifting, numbered: tuple[int, Files]) -> dict:
        if len(read) in (3, 7):
            read.append(-1)
            raise KeyboardInterrupt
        read.append(numbered[0])
        return original(self, numbered)

    monkeypatch.setattr(gathering.Sifting, "unit", unit)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            ingest(broken, sources, CONFIG, strict=False, executor=LocalExecutor(1))
    assert read == [0, 1, 2, -1, 3, 4, 5, -1]
    monkeypatch.setattr(gathering.Sifting, "unit", original)
    ingest(broken, sources, CONFIG, strict=False, executor=LocalExecutor(1))
    assert contents(broken.path) == contents(whole.path)


def test_shards_of_another_plan_are_not_taken_for_these(
    sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version with other units, or with none, may have begun the same text."""
    whole = CorpusFolder(tmp_path / "whole")
    ingest(whole, sources, CONFIG, strict=False, executor=LocalExecutor(1))
    broken = CorpusFolder(tmp_path / "broken")
    with monkeypatch.context() as patch:
        patch.setattr(reading, "UNIT_BYTES", 9_000)
        patch.setattr("retro.corpus.text._added_up", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ingest(broken, sources, CONFIG, strict=False, executor=LocalExecutor(1))
    partial = broken.path / "text.partial"
    shutil.copy(next(partial.glob("*.zst")), partial / "000000.jsonl.zst")
    ingest(broken, sources, CONFIG, strict=False, executor=LocalExecutor(1))
    assert contents(broken.path) == contents(whole.path)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_damaged_shard_of_a_unit_is_mended(sources: list[str], tmp_path: Path) -> None:
    work = CorpusFolder(tmp_path / "work")
    ingest(work, sources, CONFIG, strict=False, executor=LocalExecutor(1))
    before = contents(work.path)
    shard = sorted(work.text_path.glob("*-000001.jsonl.zst"))[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    assert mend(work) == [str(shard)]
    ingest(work, sources, CONFIG, strict=False, executor=LocalExecutor(1))
    assert contents(work.path) == before


def test_a_tree_without_text_is_refused_after_its_last_unit(
    sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "UNIT_FILES", 1)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / ".gitignore").write_text("")
    (bare / "empty.py").touch()
    for named in ([str(bare)], [sources[2], str(bare)]):
        with pytest.raises(DataError, match="bare is a source tree without a text file"):
            ingest(CorpusFolder(tmp_path / "work"), named, CONFIG, strict=False, executor=LocalExecutor(1))


def test_what_was_found_is_told_unit_by_unit(sources: list[str]) -> None:
    stream = Stream(iter([Document(f"{number}", "some words", "given") for number in range(3)]), Problems())
    (lines,) = plan_reading([sources[0], sources[2]], None, Problems())[-1:]
    told: list[tuple[int, int, int]] = []
    found = gathering.gather(
        [stream, lines],
        gathering.Sifting(CONFIG, False, 1_000),
        LocalExecutor(1),
        None,
        lambda *numbers: told.append(numbers),
    )
    assert [unit.num_items for unit in found] == [3, 40]
    assert told[-1][0] == 43
