"""A disk that fills up at every stage: one line, nothing finished is lost, and running again goes on.

Fetching is in `tests/catalogue`, and a study, which goes on to its report, in `tests/test_own_text.py`.
"""

import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from tests.full_disk import disk_of

SHAPE = ["--seq-len", "32", "--batch-size", "2"]
MODEL = ["--model.chunk-len", "8", "--model.num-layers", "2"]
LAYERS = ["--model.retrieval.cross-attention-layers", "2"]
SMALL = ["--num-steps", "4", "--warmup-steps", "1", "--checkpoint-every", "2", "--validate-every", "2"]
WINDOWS = ["--window", "32", "--stride", "16", "--leakage-neighbours", "3", "--num-neighbours", "2"]
CORPUS = ["--vocab-size", "320", "--valid-fraction", "0.15", "--test-fraction", "0.15"]
CHANGED = "ingest after changes"
STAGES = {
    "ingest": ["ingest", "{texts}", "--out", "{work}", *CORPUS],
    "build": ["build", "{work}", "--embedder", "{embedder}", "--chunk-len", "8", "--num-neighbours", "4"],
    "neighbours": ["neighbours", "{work}"],
    "baseline": ["train", "{work}", "--baseline", *MODEL, *LAYERS, *SHAPE, *SMALL],
    "train": ["train", "{work}", *MODEL, *LAYERS, *SHAPE, *SMALL],
    "fit": ["fit", "{work}", "--fit.cross-attention-layers", "2", *SHAPE, *SMALL],
    "evaluate": ["evaluate", "{work}", "retro", *WINDOWS],
    "knn": ["knn", "{work}", "baseline", "--evaluation.window", "32", "--evaluation.stride", "16"],
    "page": ["inspect", "{work}", "retro", "--out", "{work}/page.html"],
    "sample": ["sample", "{work}", "The licence permits", "--max-tokens", "9", "--html", "{work}/s.html"],
    "decontaminate": ["decontaminate", "{work}", "--out", "{work}/clean", "--against", "{texts}/00.txt"],
    "add": ["db", "add", "{work}", "{more}"],
    "delete": ["db", "delete", "{work}", "--source", "more.txt"],
    "compact": ["db", "compact", "{work}"],
    "another k": ["evaluate", "{work}", "retro", *WINDOWS, "3"],
    CHANGED: ["ingest", "{texts}", "--out", "{work}", *CORPUS],
    "sync": ["db", "sync", "{work}"],
    "neighbours after sync": ["neighbours", "{work}"],
    "extend": ["train", "{work}", "--name", "retro", "--extend", "4"],
}
REPLACING = ("another k", CHANGED, "neighbours after sync", "extend")
"""Stages that put new folders in the place of finished ones, once they succeed."""


def finished(folder: Path) -> dict[str, bytes]:
    """The manifests of what is finished, and of the neighbours that are set aside while others are found."""
    found = [path for path in folder.rglob("manifest.json") if ".partial/" not in str(path)]
    return {str(path).replace(".former/", "/"): path.read_bytes() for path in found}


def change(texts: Path) -> None:
    """Add, change and remove a document."""
    files = sorted(texts.glob("*.txt"))
    files[0].unlink()
    files[1].write_text(files[1].read_text() + " One more sentence.")
    (texts / "new.txt").write_text("Whoever shares the software shares its source. " * 30)


def test_each_stage_says_that_the_disk_is_full_and_goes_on(
    tmp_path: Path, text_folder: Path, static_encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = tmp_path / "more.txt"
    more.write_text("Anyone may share the software without warranty. " * 20)
    work = tmp_path / "work"
    texts = tmp_path / "texts"
    shutil.copytree(text_folder, texts)
    names = {"work": work, "texts": texts, "embedder": static_encoder, "more": more}
    refused = set()
    for name, stage in STAGES.items():
        if name == CHANGED:
            change(texts)
        arguments = [argument.format(**names) for argument in stage]
        for num_bytes in (100, 20_000):
            before = finished(work)
            capsys.readouterr()
            with disk_of(num_bytes):
                code = main(arguments)
            error = capsys.readouterr().err
            if code != 0 or name not in REPLACING:
                assert finished(work).items() >= before.items()
            if code == 0:
                break
            refused.add(name)
            # SQLite takes a file that may not grow for a broken disk; a full one it knows.
            assert "the disk is full" in error or "disk I/O error" in error, f"{name}: {error}"
            # What is only worth knowing stands before it, behind a mark.
            assert len([line for line in error.splitlines() if not line.startswith("! ")]) == 1, error
        assert main(arguments) == 0, capsys.readouterr().err
    assert refused == set(STAGES)
    assert main(["db", "verify", str(work)]) == 0
