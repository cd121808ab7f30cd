"""Kills at random moments of every stage: the end is that of an unbroken run, and nothing finished is lost.

`RETRO_KILLS` is the number of kills in all, over the stages in turn; `RETRO_SEED` gives other moments.
`RETRO_STAGES="db sync; train --extend"` kills these alone and runs the others unbroken.
"""

import os
import random
import zipfile
from pathlib import Path

import pytest

from tests.kills.killing import Killer
from tests.kills.stages import stages

KILLS = int(os.environ.get("RETRO_KILLS", "24"))
CHOSEN = {name.strip() for name in os.environ.get("RETRO_STAGES", "").split(";") if name.strip()}
FEW = {"ingest": 2, "build": 0, "db add": 2, "ingest, after changes": 1, "db sync": 1}
"""Kills of the default tests; what stands between them is run unbroken."""
BETWEEN_FILES = {
    "ingest": 6,
    "build": 0,
    "neighbours": 6,
    "db add": 0,
    "neighbours, brought up to date": 3,
    "ingest, after changes": 6,
}
SMALL_FILE = 512
"""So few bytes that tokens and neighbours are cut into hundreds of files."""


@pytest.fixture
def killer(tmp_path: Path) -> Killer:
    (tmp_path / "work").mkdir()
    wheel = tmp_path / "shelf" / "little_texts-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    about = "Metadata-Version: 2.1\nName: little-texts\nVersion: 1.0\n"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(200):
            archive.writestr(f"little_texts/data/{number}.txt", random.Random(number).randbytes(50_000).hex())
        archive.writestr("little_texts-1.0.dist-info/METADATA", about)
        archive.writestr("little_texts-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("little_texts-1.0.dist-info/RECORD", "")
    return Killer(tmp_path, wheel, random.Random(int(os.environ.get("RETRO_SEED", "0"))))


@pytest.fixture
def sources(tmp_path: Path, texts: list[str]) -> tuple[Path, Path]:
    """A corpus, and a folder of documents that are added to its datastore."""
    rng = random.Random(0)
    lines = sorted({line for text in texts for line in text.splitlines()[2:]})
    for name, count in (("source", 240), ("more", 60)):
        (tmp_path / name).mkdir()
        for number in range(count):
            text = f"{name} {number}\n\n" + "\n".join(rng.choices(lines, k=rng.randint(3, 20)))
            (tmp_path / name / f"{name}-{number:03d}.txt").write_text(text)
    return tmp_path / "source", tmp_path / "more"


def kill(
    killer: Killer, sources: tuple[Path, Path], embedder: str, kills: dict[str, int], file_bytes: int = 0
) -> None:
    """The life of a workspace, as far as its stages are named, each killed so many times."""
    for stage in stages(*sources, embedder, file_bytes):
        if stage.name in kills:
            killer.begin(stage)
            killer.kill(stage, kills[stage.name])
            killer.end()


def test_a_few_kills_lose_nothing(killer: Killer, sources: tuple[Path, Path], static_encoder: str) -> None:
    kill(killer, sources, static_encoder, FEW)
    assert sum(outcome.kills for outcome in killer.outcomes.values()) == sum(FEW.values())


@pytest.mark.slow
def test_kills_between_the_files_of_a_store_lose_nothing(
    killer: Killer, sources: tuple[Path, Path], static_encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens and neighbours in hundreds of files; each kill leaves some written, and others not."""
    try:
        kill(killer, sources, static_encoder, BETWEEN_FILES, SMALL_FILE)
    finally:
        with capsys.disabled():
            print("\n".join(["", *killer.table()]))  # noqa: T201
    outcomes = [outcome for outcome in killer.outcomes.values() if outcome.kills]
    assert len(outcomes) == 4
    assert all(outcome.equal == outcome.resumed > 0 for outcome in outcomes)
    assert len([*(killer.work / "tokens" / "train").glob("tokens-*.npy")]) > 100


@pytest.mark.slow
def test_many_kills_lose_nothing(
    killer: Killer, sources: tuple[Path, Path], static_encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [stage.name for stage in stages(*sources, static_encoder)]
    chosen = [name for name in names if name in CHOSEN] if CHOSEN else names
    kills = dict.fromkeys(names, 0)
    for number, name in enumerate(chosen):
        kills[name] = KILLS // len(chosen) + (number < KILLS % len(chosen))
    try:
        kill(killer, sources, static_encoder, kills)
    finally:
        with capsys.disabled():
            print("\n".join(["", *killer.table()]))  # noqa: T201
