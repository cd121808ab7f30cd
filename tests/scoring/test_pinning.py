"""An evaluation keeps the neighbours that it was made with: later documents change nothing about it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from retro.cli.main import main
from retro.corpus.documents import Document
from retro.errors import ArtifactError
from retro.jobs.retrieval import find_neighbours
from retro.jobs.scoring import evaluate_split, evaluate_task, open_evaluation
from retro.retrieval.pinned import open_pinned, pin
from retro.scoring import bits_per_byte
from retro.scoring.evaluate import NEIGHBOURS, evaluate, version_note
from retro.workspace import Workspace
from tests.scoring.runs import workspace_with_run
from tests.workspaces import small_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Path:
    """A workspace with an evaluated run."""
    work = workspace_with_run(tmp_path_factory.mktemp("pinning") / "work", text_folder, static_encoder)
    evaluate_split(work.run("retro"), "test", small_run(static_encoder).evaluation)
    return work.path


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Workspace:
    """A copy, since the tests change its datastore."""
    return Workspace(Path(shutil.copytree(made, tmp_path / "work")))


def add_copies(work: Workspace) -> None:
    """Add a copy of each test document: the best of all neighbours, which the evaluation has not seen."""
    store, tokenizer = work.store("test"), work.datastore().tokenizer
    texts = [tokenizer.decode(store.document(number)) for number in range(len(store))]
    work.datastore().add(Document(f"copy {n}", f"{text}!", "later") for n, text in enumerate(texts))


def test_a_finished_evaluation_opens_after_documents_were_added(
    work: Workspace, static_encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_run(static_encoder).evaluation
    before = open_evaluation(work.run("retro"), "test").evaluation
    first = work.datastore().snapshot().version.number
    assert version_note(before.artifact, work.datastore()) == ""
    add_copies(work)
    work = Workspace(work.path)
    assert open_evaluation(work.run("retro"), "test").evaluation.results == before.results
    find_neighbours(work, "test")  # others now
    assert open_evaluation(work.run("retro"), "test").evaluation.results == before.results
    assert evaluate_split(work.run("retro"), "test", config).artifact.manifest == before.artifact.manifest
    shape = ["--window", "32", "--stride", "16", "--num-neighbours", "1", "2", "--leakage-neighbours", "3"]
    assert main(["evaluate", str(work.path), "retro", *shape]) == 0
    shown = capsys.readouterr().out
    assert f"was made with version {first} of the datastore, which is at version {first + 1} now" in shown


def test_inspection_shows_the_neighbours_of_the_evaluation(
    work: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def record() -> dict[str, object]:
        page = tmp_path / "page.html"
        assert main(["inspect", str(work.path), "retro", "--out", str(page)]) == 0
        found: dict[str, object] = json.loads(page.with_suffix(".json").read_text())
        return found

    before = record()
    assert "version" not in capsys.readouterr().out
    add_copies(work)
    find_neighbours(Workspace(work.path), "test")
    assert record() == before
    assert "was made with version" in capsys.readouterr().out


def test_neighbours_that_were_deleted_since_are_not_shown(work: Workspace, static_encoder: str) -> None:
    add_copies(work)
    work.datastore().delete(sources=["later"])
    open_evaluation(work.run("retro"), "test")  # none of those that were scored with is gone
    neighbours = work.neighbours("test")
    hit = neighbours.describe(np.array([0]), 1)[0][0]
    work.datastore().delete(ids=[hit.document])
    work = Workspace(work.path)
    with pytest.raises(ArtifactError, match="was made with other neighbours than are here now"):
        open_evaluation(work.run("retro"), "test")
    with pytest.raises(
        ArtifactError, match=r"some were deleted from the datastore; remove .* and run: retro"
    ):
        evaluate_split(work.run("retro"), "test", small_run(static_encoder).evaluation)


def test_an_interrupted_evaluation_goes_on_with_its_own_neighbours(
    work: Workspace, static_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_run(static_encoder).evaluation
    expected = open_evaluation(work.run("retro"), "test").evaluation.results
    shutil.rmtree(work.evaluation_path("retro", "test"))

    def interrupt(done: int, total: int, step: str = "", note: str = "") -> None:
        if "on-1" in step and 0 < done < total:
            raise KeyboardInterrupt

    monkeypatch.setattr(bits_per_byte, "PART", 1)
    with pytest.raises(KeyboardInterrupt):
        evaluate_split(work.run("retro"), "test", config, interrupt)
    add_copies(work)
    work = Workspace(work.path)
    find_neighbours(work, "test")
    assert evaluate_split(work.run("retro"), "test", config).results == expected


def test_an_evaluation_without_its_own_neighbours_is_read_as_long_as_they_are_the_same(
    work: Workspace, static_encoder: str
) -> None:
    """As they were written before evaluations kept theirs."""
    config = small_run(static_encoder).evaluation
    shutil.rmtree(work.evaluation_path("retro", "test") / NEIGHBOURS)
    assert (
        open_evaluation(work.run("retro"), "test").evaluation.results
        == evaluate_split(work.run("retro"), "test", config).results
    )
    add_copies(work)
    work = Workspace(work.path)
    with pytest.raises(ArtifactError, match="was made with other neighbours than are here now"):
        open_evaluation(work.run("retro"), "test")
    with pytest.raises(ArtifactError, match="neighbours differ"):
        evaluate_split(work.run("retro"), "test", config)


def test_a_finished_task_opens_after_documents_were_added(
    work: Workspace, tmp_path: Path, static_encoder: str
) -> None:
    source = tmp_path / "passages.jsonl"
    source.write_text(json.dumps({"text": "The licence permits anyone to use this software"}))
    config = small_run(static_encoder).evaluation
    before = evaluate_task(work.run("retro"), "lambada", config, str(source))
    add_copies(work)
    after = evaluate_task(Workspace(work.path).run("retro"), "lambada", config, str(source))
    assert after.artifact.manifest == before.artifact.manifest
    assert "was made with version" in version_note(after.artifact, work.datastore())


def test_pinned_neighbours_are_links_or_copies(
    work: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbours = work.neighbours("test")
    pinned = pin(neighbours, tmp_path / "links")
    assert pinned.artifact.file("neighbours.npy").stat().st_nlink > 1
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    copied = pin(neighbours, tmp_path / "copies")
    assert copied.artifact.file("neighbours.npy").stat().st_nlink == 1
    for found in (pinned, copied):
        assert found.fingerprint == neighbours.fingerprint
        np.testing.assert_array_equal(found.chunks, neighbours.chunks)
        assert found.num_deleted(4) == 0
    copied.artifact.file("distances.npy").unlink()
    assert open_pinned(tmp_path / "copies", neighbours.store, neighbours.datastore) is None
    assert open_pinned(tmp_path / "links", work.store("train"), neighbours.datastore) is None


def test_a_broken_pin_is_made_again(work: Workspace, static_encoder: str) -> None:
    """A kill while the neighbours are pinned leaves some of the files."""
    model, run = work.run("retro").model, work.run("retro").run
    neighbours, path = work.neighbours("test"), work.path / "evaluations" / "broken"
    partial = path.with_name("broken.partial") / NEIGHBOURS
    partial.mkdir(parents=True)
    (partial / "neighbours.npy").write_bytes(b"half")
    found = evaluate(model, run.fingerprint, neighbours, path, small_run(static_encoder).evaluation)
    assert found.results == open_evaluation(work.run("retro"), "test").evaluation.results
