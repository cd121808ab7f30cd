import dataclasses
import json
import random
import re
import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.corpus import readers
from retro.corpus.documents import Document
from retro.corpus.readers import FieldMap
from retro.errors import ArtifactError, DataError
from retro.jobs.retrieval import find_neighbours
from retro.jobs.scoring import evaluate_set, evaluate_split, evaluation_set, open_evaluation
from retro.jobs.training import train_run
from retro.scoring import sets
from retro.scoring.evaluate import evaluate
from retro.scoring.new_articles import LATER, NEW, TEMPLATED, by_kind, kinds_of
from retro.scoring.sets import documents_of, name_of, source_fingerprint
from retro.workspace import Workspace
from tests.scoring.runs import workspace_with_run
from tests.workspaces import small_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Path:
    return workspace_with_run(tmp_path_factory.mktemp("sets") / "work", text_folder, static_encoder).path


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Workspace:
    """A copy, since the tests change its datastore."""
    return Workspace(Path(shutil.copytree(made, tmp_path / "work")))


def training_texts(work: Workspace) -> list[str]:
    store, tokenizer = work.store("train"), work.datastore().tokenizer
    return [tokenizer.decode(store.document(number)) for number in range(len(store))]


def write_articles(file: Path, records: list[tuple[str, str]]) -> str:
    lines = [
        json.dumps({"id": f"a{number}", "title": title, "text": text})
        for number, (title, text) in enumerate(records)
    ]
    file.write_text("\n".join(lines))
    return str(file)


def new_text(seed: int) -> str:
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("bcdfghklmnprstvwz", k=4)) for _ in range(40)) + "."


def test_what_was_trained_on_is_counted_and_told_in_the_results(
    work: Workspace, tmp_path: Path, static_encoder: str
) -> None:
    longest = max(training_texts(work), key=len)
    source = write_articles(
        tmp_path / "articles.jsonl", [("copy", longest), ("near", longest + "Ende."), ("new", new_text(0))]
    )
    found = evaluation_set(work.run("retro"), source)
    assert (found.seen.documents, found.seen.exact, found.seen.near, found.seen.ids) == (
        3,
        1,
        1,
        ("a0", "a1"),
    )
    evaluation = evaluate_set(work.run("retro"), found, small_run(static_encoder).evaluation)
    assert evaluation.results["seen"] == {"documents": 3, "exact": 1, "near": 1, "ids": ["a0", "a1"]}
    assert evaluation.artifact.path == work.path / "evaluations" / "retro" / name_of(source)
    assert len(evaluation.document_bits("on-2")) == 3
    assert found.store.num_bytes.tolist() == [
        len(text.encode()) for text in (longest, longest + "Ende.", new_text(0))
    ]


def test_a_finished_set_is_kept_and_a_changed_datastore_is_noticed(work: Workspace, tmp_path: Path) -> None:
    text = new_text(1)
    source = write_articles(tmp_path / "articles.jsonl", [("one", text), ("two", new_text(2))])
    assert evaluation_set(work.run("retro"), source).seen.count == 0
    before = {file: file.stat().st_mtime_ns for file in (work.path / "sets").rglob("manifest.json")}
    evaluation_set(work.run("retro"), source)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    work.datastore().add([Document("leak", text, "elsewhere")])
    assert evaluation_set(work.run("retro"), source).seen.ids == ("a0",)
    write_articles(tmp_path / "articles.jsonl", [("other", new_text(3))])
    with pytest.raises(ArtifactError, match="made with other settings or inputs") as caught:
        evaluation_set(work.run("retro"), source)
    # Of this set, and not of the text that the workspace was made from.
    assert str(caught.value).endswith(f"run: retro evaluate {work.path} retro --on {source} --redo")


def test_scores_keep_what_was_seen_when_they_were_made(
    work: Workspace, tmp_path: Path, static_encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes into the datastore later had no part in them, even if another k is added then."""
    config = dataclasses.replace(small_run(static_encoder).evaluation, num_neighbours=(1,))
    text = new_text(7)
    source = write_articles(tmp_path / "articles.jsonl", [("Iron Man", text), ("", new_text(8))])
    first = evaluate_set(work.run("retro"), evaluation_set(work.run("retro"), source), config)
    work.datastore().add([Document("leak", text, "elsewhere", title="Iron Man")])
    work = Workspace(work.path)
    found = evaluation_set(work.run("retro"), source)
    assert found.seen.ids == ("a0",)
    more = evaluate_set(work.run("retro"), found, dataclasses.replace(config, num_neighbours=(1, 2)))
    assert more.modes == ["off", "on-1", "on-2"]
    assert more.results["seen"] == first.results["seen"] == {"documents": 2, "exact": 0, "near": 0, "ids": []}
    assert [(group.name, group.documents) for group in by_kind(found, more)] == [(NEW, 2)]
    shape = ["--window", "32", "--stride", "16", "--num-neighbours", "1", "--leakage-neighbours", "3"]
    assert main(["evaluate", str(work.path), "retro", "--on", source, *shape]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "0 of 2 documents are in the training text or the datastore" in told
    assert "was made with version 1 of the datastore, which is at version 2 now" in told


def test_titles_and_overlaps_tell_new_documents_from_others(
    work: Workspace, tmp_path: Path, static_encoder: str
) -> None:
    texts = training_texts(work)
    work.datastore().add([Document("x", "Something about iron men.", "elsewhere", title="Iron_Man")])
    records = [
        ("Iron Man", new_text(4)),
        ("", new_text(5)),
        ("Another", texts[0] + texts[1]),
        ("Third", new_text(6)),
    ]
    found = evaluation_set(work.run("retro"), write_articles(tmp_path / "articles.jsonl", records))
    evaluation = evaluate_set(work.run("retro"), found, small_run(static_encoder).evaluation)
    assert kinds_of(found, evaluation.arrays["overlaps"]).tolist() == [LATER, NEW, TEMPLATED, NEW]
    groups = by_kind(found, evaluation)
    assert [(group.name, group.documents) for group in groups] == [(NEW, 2), (LATER, 1), (TEMPLATED, 1)]
    bits, num_bytes = evaluation.document_bits("on-1"), found.store.num_bytes
    assert groups[0].bits_per_byte["on-1"].estimate == pytest.approx(
        (bits[1] + bits[3]) / (num_bytes[1] + num_bytes[3])
    )
    work.datastore().delete(ids=["x"])
    assert kinds_of(found, evaluation.arrays["overlaps"]).tolist() == [NEW, NEW, TEMPLATED, NEW]


def test_a_split_of_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    split = [Document("1", "one", "little", split="train"), Document("2", "two", "little", split="test")]
    monkeypatch.setitem(readers.READERS, "little", lambda: iter(split))
    assert [document.id for document in documents_of("little")] == ["1", "2"]
    assert [document.id for document in documents_of("little@test")] == ["2"]
    with pytest.raises(DataError, match="no document of a split 'valid'"):
        list(documents_of("little@valid"))
    assert name_of("little@test") == "little@test"


def test_folders_are_called_as_their_sources() -> None:
    sources = ("some/articles.jsonl.gz", "a/my texts/", "hf:owner/name@test")
    assert [name_of(source).rpartition("-")[0] for source in sources] == ["articles", "my-texts", "name@test"]
    assert all(re.fullmatch(r".*-[0-9a-f]{8}", name_of(source)) for source in sources)
    assert sets.source_fingerprint("stdlib") != sets.source_fingerprint("stdlib@test")


def test_files_of_one_name_are_two_sets(work: Workspace, tmp_path: Path, static_encoder: str) -> None:
    sources = []
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        sources.append(write_articles(tmp_path / folder / "data.jsonl", [("one", new_text(number))]))
    one, other = (evaluation_set(work.run("retro"), source) for source in sources)
    assert one.name != other.name
    assert one.store.fingerprint != other.store.fingerprint
    config = small_run(static_encoder).evaluation
    paths = {evaluate_set(work.run("retro"), found, config).artifact.path for found in (one, other)}
    assert len(paths) == 2
    assert all(name.startswith("data-") for name in (one.name, other.name))


def test_one_file_is_one_set_however_its_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.jsonl").write_text("{}")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    assert name_of("data.jsonl") == name_of(str(tmp_path / "sub" / ".." / "data.jsonl"))


def test_a_set_of_the_former_name_is_found(work: Workspace, tmp_path: Path, static_encoder: str) -> None:
    source = write_articles(tmp_path / "articles.jsonl", [("one", new_text(1))])
    found = evaluation_set(work.run("retro"), source)
    (work.path / "sets" / found.name).rename(work.path / "sets" / "articles")
    assert evaluation_set(work.run("retro"), source).name == "articles"
    (tmp_path / "b").mkdir()
    other = write_articles(tmp_path / "b" / "articles.jsonl", [("other", new_text(2))])
    assert evaluation_set(work.run("retro"), other).name == name_of(other)


def test_no_run_takes_the_folder_of_another(work: Workspace, static_encoder: str) -> None:
    """Run `retro-x` on `test`, and run `retro` on a set `x-test`."""
    run = small_run(static_encoder)
    find_neighbours(work, "test")
    train_run(work, "retro-x", run.model, dataclasses.replace(run.training, seed=1))
    one = evaluate_split(work.run("retro-x"), "test", run.evaluation)
    model, artifact = work.run("retro").model, work.run("retro").run
    path = work.evaluation_path("retro", "x-test")
    assert path != one.artifact.path
    other = evaluate(model, artifact.fingerprint, work.neighbours("test"), path, run.evaluation)
    assert one.artifact.path == work.path / "evaluations" / "retro-x" / "test"
    assert other.artifact.path == work.path / "evaluations" / "retro" / "x-test"
    # Folders from before stood in one row; each is found by the run that its manifest names.
    former = work.path / "evaluations" / "retro-x-test"
    one.artifact.path.rename(former)
    assert open_evaluation(work.run("retro-x"), "test").evaluation.artifact.path == former
    assert work.evaluation_path("retro", "x-test") == path


def test_a_set_may_have_fields_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "letters.csv"
    file.write_text("text,body\nnot this,words\n")
    source = f"{file}::text=body"
    assert [document.text for document in documents_of(source)] == ["words"]
    assert name_of(source) == name_of(str(file))
    assert source_fingerprint(source) == source_fingerprint(str(file), FieldMap(text="body"))
    assert source_fingerprint(source) != source_fingerprint(str(file))
