"""What a corpus leaves out: told by kind, the same by a dry run, and listed in full."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retro.config import CorpusConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest, look
from retro.corpus.pack import duplicates, removal_tallies
from retro.corpus.readers.problems import Kind, Problems, lost_share, to_counts
from retro.corpus.text import TextStore
from retro.errors import ConfigError
from retro.recipes import corpus_for, get
from retro.stages.executor import LocalExecutor

CONFIG = CorpusConfig(
    vocab_size=320, valid_fraction=0.1, test_fraction=0.1, sample_fraction=0.8, max_document_bytes=2_000
)


@pytest.fixture
def folder(tmp_path: Path, texts: list[str]) -> Path:
    """Text, too long a text, text that is not sampled, records without text, a picture and more."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text[:1_500])
    (folder / "long.txt").write_text("word " * 1_000)
    (folder / "longer.txt").write_text("word " * 2_000)
    (folder / "rows.jsonl").write_text('{"text": "some words"}\n{"body": "words"}\n{oops\n' * 20)
    (folder / "picture").write_bytes(b"\x89PNG and more")
    (folder / "empty.md").touch()
    (folder / ".hidden").write_text("x")
    (folder / "latin.txt").write_bytes("Übergrößenträger süßer Äpfel\n".encode("latin-1"))
    return folder


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dry_run_tells_what_the_run_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr("retro.corpus.text.SHARD_BYTES", 2_000)
    executor = LocalExecutor(workers)
    before = sorted(tmp_path.rglob("*"))
    ((_, counts, problems),) = look([str(folder)], CONFIG, executor=executor)
    assert sorted(tmp_path.rglob("*")) == before
    work = CorpusFolder(tmp_path / "work")
    ingest(work, [str(folder)], CONFIG, strict=False, executor=executor)
    text = TextStore.open(work.text_path)
    assert len(text.shards) > 3
    assert to_counts(text.left_out()) == to_counts(problems.tallies)
    assert text.encodings() == problems.encodings == {"windows-1252": 1}
    assert {name: text.artifact.counts[name] for name in counts} == counts
    assert text.num_bytes() == sum(counts[f"bytes of {split}"] for split in ("train", "valid", "test"))


def test_copies_are_told_with_their_size_before_and_after(folder: Path, tmp_path: Path) -> None:
    """By the dry run exactly as by the run, also among several sources."""
    (tmp_path / "more").mkdir()
    for number in range(6):
        (tmp_path / "more" / f"copy-{number}.txt").write_text((folder / f"{number}.txt").read_text())
    sources = [str(folder), str(tmp_path / "more")]
    config = replace(CONFIG, sample_fraction=1.0)
    kept: list[dict[str, Any]] = []
    list(look(sources, config, kept=kept))
    told = removal_tallies(row for _, row in duplicates(lambda: kept))
    work = CorpusFolder(tmp_path / "work")
    ingest(work, sources, config, strict=False)
    found = work.removed_tallies()
    assert told[Kind.DUPLICATE] == found[Kind.DUPLICATE]
    # Twenty records say the same.
    assert found[Kind.DUPLICATE].documents == 6 + 19
    copies = sum((tmp_path / "more" / f"copy-{number}.txt").stat().st_size for number in range(6))
    assert found[Kind.DUPLICATE].num_bytes == copies + 19 * len("some words")
    assert "is the same as" in found[Kind.DUPLICATE].first[0][1]


def test_all_of_it_is_listed_in_one_file(folder: Path, tmp_path: Path) -> None:
    work = CorpusFolder(tmp_path / "work")
    ingest(work, [str(folder)], CONFIG, strict=False)
    rows = [json.loads(line) for line in work.left_out_path.read_text().splitlines()]
    tallies = work.left_out()
    assert Counter(row["kind"] for row in rows) == {kind: tally.documents for kind, tally in tallies.items()}
    assert tallies[Kind.TOO_LONG].num_bytes == sum(
        row["bytes"] for row in rows if row["kind"] == Kind.TOO_LONG
    )
    assert {row["where"] for row in rows if row["kind"] == Kind.TOO_LONG} <= {
        "mine/long.txt",
        "mine/longer.txt",
    }
    assert tallies[Kind.NO_TEXT].documents == tallies[Kind.UNREADABLE].documents == 20
    assert tallies[Kind.NOT_SAMPLED].documents > 0
    assert {Kind.BINARY, Kind.EMPTY, Kind.HIDDEN} <= tallies.keys()
    # Every file and record is either in the corpus or in the list.
    num_kept = TextStore.open(work.text_path).artifact.counts["documents"]
    assert num_kept + len(rows) == 40 + 2 + 60 + 4


def test_the_share_counts_what_may_be_missed() -> None:
    problems = Problems()
    problems.add("a.png", "is binary", Kind.BINARY, 10_000)
    problems.add("a/1", "is not sampled", Kind.NOT_SAMPLED, 10_000)
    assert lost_share(problems.tallies, 900) == 0.0
    problems.add("a/2", "is too long", Kind.TOO_LONG, 100)
    assert lost_share(problems.tallies, 900) == 0.1


def test_a_recipe_s_limit_is_for_its_own_text() -> None:
    tiny, mini = get("tiny"), get("massive-text-mini")
    assert corpus_for(tiny, ["licences"]) == corpus_for(tiny, []) == tiny.corpus
    assert tiny.corpus.max_document_bytes == 10_000
    for sources in (["notes/"], ["enwik8"], ["licences", "notes/"]):
        assert corpus_for(tiny, sources).max_document_bytes == 0
    assert corpus_for(mini, ["kjv"]) == mini.corpus


def test_a_workspace_inside_its_source_is_refused(folder: Path) -> None:
    for place in (folder, folder / "work", folder / "deep" / "work"):
        with pytest.raises(
            ConfigError, match=r"lies inside the source.*run: retro ingest .* --out .*mine-work"
        ):
            ingest(CorpusFolder(place), [str(folder)], CONFIG)
    assert not (folder / "work").exists()


def test_a_workspace_may_have_the_name_of_what_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("kjv", "stdlib"):
        (tmp_path / name).mkdir()
        CorpusFolder(Path(name)).expect_outside([name])
