"""The road of text that changes, as a user types it: again, in step, anew, longer, another k."""

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.config import CorpusConfig
from retro.corpus.documents import Document, split_of

MODEL = [
    "--model.d-model",
    "16",
    "--model.num-layers",
    "2",
    "--model.num-heads",
    "2",
    "--model.head-dim",
    "8",
]
MODEL += ["--model.ffw-dim", "32", "--model.chunk-len", "8"]
MODEL += ["--model.retrieval.cross-attention-layers", "2"]
MODEL += ["--model.retrieval.encoder.d-model", "16", "--model.retrieval.encoder.num-layers", "1"]
TRAINING = ["--seq-len", "32", "--batch-size", "2", "--num-steps", "4", "--warmup-steps", "1"]
CORPUS = ["--vocab-size", "320", "--valid-fraction", "0.15", "--test-fraction", "0.15", "--workers", "1"]
CORPUS += ["--max-document-bytes", "0"]
SPLITTING = CorpusConfig(valid_fraction=0.15, test_fraction=0.15)
SCORING = ["--window", "32", "--stride", "16", "--leakage-neighbours", "3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, texts: list[str], static_encoder: str) -> Path:
    folder = tmp_path_factory.mktemp("road")
    (folder / "notes").mkdir()
    for number, text in enumerate(texts):
        (folder / "notes" / f"{number:02d}.txt").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["ingest", "notes", "--out", "work", *CORPUS]) == 0
        datastore = ["--embedder", static_encoder, "--chunk-len", "8", "--num-neighbours", "4"]
        assert main(["build", "work", "--workers", "1", *datastore]) == 0
        assert main(["neighbours", "work"]) == 0
        assert main(["train", "work", *MODEL, *TRAINING]) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "road")
    monkeypatch.chdir(tmp_path / "road")
    return tmp_path / "road"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(*arguments: str, code: int = 0) -> str:
        assert main(list(arguments)) == code
        told = capsys.readouterr()
        return re.sub(r"\s+", " ", told.out + told.err)

    return run


def test_text_changes_and_everything_follows(folder: Path, run) -> None:  # type: ignore[no-untyped-def]
    run("evaluate", "work", *SCORING, "--num-neighbours", "2")
    for number in range(6):
        (folder / "notes" / f"new-{number}.txt").write_text(f"Number {number} permits a zebra. " * 9)
    (folder / "notes" / "03.txt").unlink()
    told = run("ingest", "notes", "--out", "work", *CORPUS)
    assert "6 documents added, 0 changed, 1 removed, 39 unchanged" in told
    assert "work/tokenizer stays as it was" in told
    assert "run: retro db sync work; then run: retro neighbours work" in told
    assert "version 2;" in run("db", "sync", "work")
    assert "searched" in run("neighbours", "work")
    # The run is as usable as before, and says what it was trained on.
    assert run("sample", "work", "The licence", "--max-tokens", "4")
    card = (folder / "work" / "runs" / "retro" / "README.md").read_text()
    assert "version 1 of the datastore" in card
    told = run("evaluate", "work", *SCORING, "--num-neighbours", "2", code=1)
    assert "was trained on other tokens than work/tokens holds" in told
    assert "was trained with version 1 of the datastore, which is at 2 now" in told
    assert "work/evaluations/retro/test was made with other documents than work/tokens/test holds now" in told
    assert re.search(r"\(\d of \d are new or changed, \d of 3 are gone\); name another folder, or", told)
    assert "begin anew; run: retro evaluate work retro --split test --redo" in told
    assert "was made with other documents than" in run("inspect", "work", code=1)
    told = run("evaluate", "work", *SCORING, "--num-neighbours", "2", "--redo")
    assert "--redo: removes work/evaluations/retro/test" in told
    assert "on-2" in told


def in_split(split: str, number: int) -> str:
    """The number-th name of a new note that comes into the split."""
    names = (f"later-{n}.txt" for n in itertools.count())
    found = (name for name in names if split_of(Document(name, "", "notes"), SPLITTING) == split)
    return next(itertools.islice(found, number, None))


def follow(run) -> str:  # type: ignore[no-untyped-def]
    """Bring the workspace to the state of the notes; what ingesting tells."""
    told: str = run("ingest", "notes", "--out", "work", *CORPUS)
    run("db", "sync", "work")
    run("neighbours", "work")
    return told


def test_scores_outlast_other_training_text(folder: Path, run) -> None:  # type: ignore[no-untyped-def]
    """Only what was scored itself makes scores those of other documents."""
    scored = folder / "work" / "evaluations" / "retro" / "test"
    run("evaluate", "work", *SCORING, "--num-neighbours", "2")
    before = json.loads((scored / "results.json").read_text())
    (folder / "notes" / in_split("train", 0)).write_text("A zebra is permitted. " * 20)
    assert "1 document added, 0 changed" in follow(run)
    told = run("evaluate", "work", *SCORING, "--num-neighbours", "2")
    assert "was made with version 1 of the datastore, which is at version 2 now" in told
    assert json.loads((scored / "results.json").read_text()) == before
    # Another k is scored with the neighbours of the others, and the overlap is of their version.
    run("evaluate", "work", *SCORING, "--num-neighbours", "1")
    after = json.loads((scored / "results.json").read_text())
    assert after["modes"]["on-2"] == before["modes"]["on-2"]
    assert "on-1" in after["modes"]
    assert after["overlap"] == before["overlap"]
    assert json.loads((scored / "manifest.json").read_text())["counts"]["datastore_version"] == 1
    assert run("inspect", "work", "--list")
    # A training document that is another now takes its chunks out of the datastore: the scores are
    # history, and nothing can be added to them.
    for path in sorted((folder / "notes").glob("*.txt")):
        if split_of(Document(path.name, "", "notes"), SPLITTING) == "train":
            path.write_text(path.read_text() + " And more.")
    follow(run)
    told = run("evaluate", "work", *SCORING, "--num-neighbours", "1", "2")
    assert "was made with version 1 of the datastore, which is at version 3 now" in told
    told = run("evaluate", "work", *SCORING, "--num-neighbours", "1", "2", "3", code=1)
    assert "as some were deleted from the datastore; remove work/evaluations/retro/test and run:" in told
    # A test document more, and they are scores of other documents.
    (folder / "notes" / in_split("test", 0)).write_text("Nothing of this was scored. " * 9)
    follow(run)
    told = run("evaluate", "work", *SCORING, "--num-neighbours", "1", "2", code=1)
    assert "(1 of 4 are new or changed, 0 of 3 are gone)" in told
    run("evaluate", "work", *SCORING, "--num-neighbours", "2", "--redo")
    counts = json.loads((scored / "manifest.json").read_text())["counts"]
    assert (counts["documents"], counts["datastore_version"]) == (4, 3)


def test_a_run_is_extended_and_another_k_is_added(folder: Path, run) -> None:  # type: ignore[no-untyped-def]
    run("train", "work", "--extend", "3")
    record = json.loads((folder / "work" / "runs" / "retro" / "run.json").read_text())
    assert (record["counts"]["steps"], record["training"]["schedule_steps"]) == (7, 4)
    # Long enough for its first steps to be timed, it says how many epochs all of them are.
    assert "20 steps of 2 ×" in run("train", "work", "--extend", "13")
    assert "expected it alone" in run("train", "work", "--extend", "3", "--seq-len", "64", code=1)
    assert "extend is -1" in run("train", "work", "--extend", "-1", code=1)
    assert "on-1" not in run("evaluate", "work", *SCORING, "--num-neighbours", "2")
    told = run("evaluate", "work", *SCORING, "--num-neighbours", "1", "2")
    assert "on-1" in told
    assert "on-2" in told


def test_stages_begin_anew(folder: Path, run, static_encoder: str) -> None:  # type: ignore[no-untyped-def]
    assert "nowhere" in run("ingest", "nowhere", "--out", "work", *CORPUS, "--redo", code=1)
    assert (folder / "work" / "tokens").exists()
    other = [*CORPUS, "--vocab-size", "330"]
    told = run("ingest", "notes", "--out", "work", *other, code=1)
    assert "vocab_size" in told
    assert "--redo" in told
    told = run("ingest", "notes", "--out", "work", *other, "--redo")
    assert "--redo: removes work/tokenizer" in told
    assert "--redo: work/runs/retro was made from it and stays as it is" in told
    datastore = ["--embedder", static_encoder, "--chunk-len", "8", "--num-neighbours", "4"]
    assert "run: retro build work --redo" in run("build", "work", *datastore, code=1)
    told = run("build", "work", "--workers", "1", *datastore, "--redo")
    assert "removes work/datastore" in told
    assert "removes work/neighbours/valid" in told
    run("neighbours", "work")
    assert "removes work/neighbours/train" in run("neighbours", "work", "--redo")
    assert "run: retro train work --name retro --redo" in run("train", "work", *MODEL, *TRAINING, code=1)
    told = run("train", "work", *MODEL, *TRAINING, "--redo")
    assert "--redo: removes work/runs/retro (" in told
    assert "--redo: removes work/runs/retro.checkpoint (" in told
