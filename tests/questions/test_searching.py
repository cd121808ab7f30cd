"""Passages for many questions: found once, kept, taken up again, and never from what is held out."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from retro.config import ShownConfig
from retro.jobs.training import train_run
from retro.questions import searching, synthetic
from retro.questions.examples import Question
from retro.questions.finetuning import finetune, with_searched
from retro.questions.searching import SEARCHES, documents_of, found_passages, search_passages
from retro.questions.shown import NO_ANSWER
from retro.retrieval.retriever import Passage
from retro.workspace import Workspace
from tests.questions.test_finetuning import TRAINING
from tests.workspaces import small_run, small_workspace

ROWS = [
    Question(f"may licence {n} be used?", ("share",), (Passage("You may share it.", "L"),)) for n in range(11)
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Workspace:
    run = small_run(static_encoder)
    folder = tmp_path_factory.mktemp("searching")
    work = small_workspace(folder, text_folder, static_encoder, ("train", "valid"))
    train_run(work, "small", run.model, run.training)
    return work


def held_out_added(work: Workspace) -> list[str]:
    """Add the held-out documents to the datastore, and give their ids."""
    stores = [store for split, store in work.corpus().stores().items() if split != "train"]
    datastore = work.datastore()
    for store in stores:
        datastore.add(list(synthetic.documents_of(store, work.tokenizer())))
    return sorted(row["id"] for store in stores for row in store.documents)


def test_what_is_held_out_is_never_found(work: Workspace) -> None:
    datastore = work.datastore()
    stores = [store for split, store in work.corpus().stores().items() if split != "train"]
    assert documents_of(stores, datastore) == []
    ids = held_out_added(work)
    assert sorted(documents_of(stores, datastore)) == ids
    # Questions that are pieces of what is held out find it, unless it is left out.
    titles = {row["title"] for store in stores for row in store.documents}
    texts = [found.text for found in datastore.search(["licence"], 10_000)[0] if found.document in ids]
    asked = [Question(text) for text in texts[:6]]
    assert asked
    for search, source in SEARCHES.items():
        with_them, without = (source(datastore, 3, names)(asked) for names in ([], ids))
        assert any(passage.title in titles for row in with_them for passage in row), search
        assert all(len(row) == 3 for row in without)
        assert not any(passage.title in titles for row in without for passage in row), search


def test_a_search_goes_on_where_it_was_and_is_opened_when_it_is_finished(
    work: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "BLOCK", 4)
    asked: list[int] = []
    real = SEARCHES["bm25"]

    def counting(*arguments: object) -> object:
        source = real(*arguments)

        def search(questions: Sequence[Question]) -> list[list[Passage]]:
            asked.append(len(questions))
            if len(asked) == 2:
                raise KeyboardInterrupt
            return source(questions)

        return search

    monkeypatch.setitem(SEARCHES, "bm25", counting)
    path = tmp_path / "bm25"
    with pytest.raises(KeyboardInterrupt):
        search_passages(ROWS, work.datastore, path, "bm25", 3, "x")
    made = search_passages(ROWS, work.datastore, path, "bm25", 3, "x")
    assert asked == [4, 4, 4, 3]
    assert found_passages(made, ROWS) == real(work.datastore(), 3, ())(ROWS)
    # Fewer are the first of those that are there; more are searched for, and so are other questions.
    assert search_passages(ROWS, work.datastore, path, "bm25", 2, "x") == made
    assert len(asked) == 4
    assert search_passages(ROWS, work.datastore, path, "bm25", 4, "x").config["k"] == 4
    search_passages(ROWS[:3], work.datastore, path, "bm25", 4, "x")
    assert asked[4:] == [4, 4, 3, 3]


def test_a_model_learns_to_say_nothing_where_no_passage_holds_the_answer(work: Workspace) -> None:
    told: list[str] = []
    shown = ShownConfig(search="hybrid", without_answer=0.5)
    rows = with_searched(work, "these", ROWS, shown, TRAINING, "x", warn=told.append)
    silent = [row for row in rows if row.answers == NO_ANSWER]
    assert 0 < len(silent) < len(rows)
    assert told == [
        f"{len(silent)} of 11 questions are shown no passage that holds the answer; to say nothing is learned"
    ]
    assert all(len(row.passages) == TRAINING.num_neighbours for row in rows)
    _, artifact = finetune(work, "silent", "small", rows, TRAINING)
    assert artifact.counts["trained"]
    # The search is kept, and says of which version it is.
    work.datastore().delete(ids=[work.datastore().search(["licence"], 1)[0][0].document])
    told.clear()
    assert with_searched(work, "these", ROWS, shown, TRAINING, "x", warn=told.append) == rows
    assert "version" in told[0]
    assert "remove that folder" in told[0]
