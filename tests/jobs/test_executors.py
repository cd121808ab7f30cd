"""Every stage through an executor: the results are those of one process, byte for byte."""

import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.errors import ArtifactError
from retro.jobs.retrieval import build, find_neighbours, sync
from retro.jobs.scoring import RunModel, evaluate_set, evaluate_split, evaluation_set
from retro.retrieval import finding
from retro.retrieval.datastore import segment_writer
from retro.scoring import bits_per_byte
from retro.stages.executor import Executor, LocalExecutor
from retro.workspace import Workspace
from tests.retrieval.datastores import make_documents
from tests.scoring.runs import workspace_with_run
from tests.sending import Sending
from tests.workspaces import small_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Workspace:
    return workspace_with_run(tmp_path_factory.mktemp("trained") / "work", text_folder, static_encoder)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but two: the ledger, and an index's record, tell how quick the index was measured to be."""
    own = ("catalogue.sqlite", "index.json")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(own)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def go_through(folder: Path, encoder: str, more: Path, executor: Executor) -> None:
    """All stages behind the tokens; the run is there already."""
    config, work = small_run(encoder), Workspace(folder)
    build(work, config.datastore, executor=executor)
    for split in ("train", "valid", "test"):
        find_neighbours(work, split, executor=executor)
    opened = work.run("retro")
    evaluate_split(opened, "test", config.evaluation, executor=executor)
    found = evaluation_set(opened, str(more), executor=executor)
    evaluate_set(opened, found, config.evaluation, executor=executor)
    work.datastore().add(make_documents(["Anyone may copy. " * 30, "Or not. " * 40]), executor=executor)
    work.datastore().delete(ids=["04.txt"])
    find_neighbours(work, "train", executor=executor)
    assert sync(work, executor=executor)  # which brings the deleted document back
    work.datastore().close()


def test_all_stages_are_the_same_wherever_they_run(
    trained: Workspace, tmp_path: Path, static_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small that every stage has several shards.
    monkeypatch.setattr(segment_writer, "SHARD", 64)
    monkeypatch.setattr(finding, "QUERIES", 100)
    monkeypatch.setattr(bits_per_byte, "PART", 1)
    more = tmp_path / "more.txt"
    more.write_text("Anyone may share this software without any warranty. " * 20)
    sending = Sending()
    found = {}
    for name, executor in (("here", LocalExecutor(1)), ("there", sending)):
        # Under one name in turn, since some records name the paths of what they were made from.
        folder = Path(shutil.copytree(trained.path, tmp_path / "work"))
        for made in ("datastore", "neighbours"):
            shutil.rmtree(folder / made)
        go_through(folder, static_encoder, more, executor)
        found[name] = contents(folder)
        shutil.rmtree(folder)
    assert found["here"] == found["there"]
    assert len(sending.sent) > 40
    assert max(sending.sent) < 500_000
    assert {Path(static_encoder), folder / "runs" / "retro"} <= {*sending.needed}
    assert any("segments" in path.parts for path in sending.needed)


def test_another_run_at_the_same_place_is_refused(trained: Workspace) -> None:
    opened = trained.run("retro")
    opening = RunModel.of(opened, LocalExecutor(1))
    assert opening().facts == opened.model.facts
    with pytest.raises(ArtifactError, match=r"retro is another run than abc.*expected the same"):
        RunModel(opening.path, "abc")()


def test_commands_take_workers_where_they_can(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["neighbours"],
        ["build"],
        ["evaluate"],
        ["db", "add"],
        ["db", "sync"],
        ["db", "compact"],
    ):
        assert main([*command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--executor {local,ray}" in shown
        assert "--workers" in shown
    assert main(["evaluate", "work", "--task", "lambada", "--workers", "2"]) == 1
    assert "--rows and --task are scored by one process" in capsys.readouterr().err
