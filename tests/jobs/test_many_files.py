"""A store and neighbours in many files are, for every stage, what they are in one."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from retro.cli.main import main
from retro.comparators.token_states import predicted
from retro.config import FILE_BYTES
from retro.corpus.ingest import check, ingest
from retro.corpus.tokens import TokenStore
from retro.jobs.retrieval import build, find_neighbours
from retro.jobs.scoring import evaluate_split
from retro.jobs.training import train_run
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.pinned import pin
from retro.stages.shards import ShardedArray
from retro.training.batches import PackedBatches
from retro.training.metrics import METRICS, read_metrics
from retro.workspace import Workspace
from tests.workspaces import small_run

SMALL = 700


def go(folder: Path, source: Path, encoder: str, file_bytes: int) -> Workspace:
    """All stages up to neighbours."""
    run, work = small_run(encoder), Workspace(folder)
    ingest(work, [str(source)], run.corpus, file_bytes=file_bytes)
    build(work, run.datastore)
    for split in ("train", "valid", "test"):
        find_neighbours(work, split, file_bytes=file_bytes)
    return work


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str
) -> tuple[Workspace, Workspace]:
    folder = tmp_path_factory.mktemp("files")
    one = go(folder / "one", text_folder, static_encoder, FILE_BYTES)
    return one, go(folder / "many", text_folder, static_encoder, SMALL)


def test_files_are_bounded_and_whole(both: tuple[Workspace, Workspace]) -> None:
    _, many = both
    for folder, name in (("tokens", "tokens"), ("neighbours", "neighbours"), ("neighbours", "distances")):
        files = sorted((many.path / folder / "train").glob(f"{name}-*.npy"))
        assert len(files) > 3
        assert not (many.path / folder / "train" / f"{name}.npy").exists()
        assert max(np.load(file).nbytes for file in files) <= SMALL
    check(many)


def test_the_store_is_the_same_and_is_called_the_same(both: tuple[Workspace, Workspace]) -> None:
    one, many = (work.store("train") for work in both)
    assert isinstance(many.tokens, ShardedArray)
    assert many.fingerprint == one.fingerprint
    assert many.artifact.fingerprint == one.artifact.fingerprint
    for number in range(-1, len(one)):
        np.testing.assert_array_equal(many.document(number), one.document(number))
    chosen = [store.select([3, 0, 5]) for store in (one, many)]
    np.testing.assert_array_equal(chosen[0].tokens, chosen[1].tokens)
    assert list(chosen[0].documents) == list(chosen[1].documents)
    assert chosen[0].fingerprint == chosen[1].fingerprint
    np.testing.assert_array_equal(predicted(many), predicted(one))


def test_chunks_are_the_same(both: tuple[Workspace, Workspace]) -> None:
    one, many = (ChunkTable(work.store("train"), 8) for work in both)
    everything = np.arange(len(one))
    np.testing.assert_array_equal(many.gather(everything, 16), one.gather(everything, 16))
    for chunk in range(0, len(one), 3):
        np.testing.assert_array_equal(many.tokens(chunk), one.tokens(chunk))


def test_datastore_and_neighbours_are_the_same(both: tuple[Workspace, Workspace]) -> None:
    segments = []
    for work in both:
        (segment,) = work.datastore().snapshot().segments
        segments.append([np.asarray(part) for part in (segment.tokens, segment.documents, segment.keys)])
    for mine, theirs in zip(*segments, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    one, many = (work.neighbours("train") for work in both)
    np.testing.assert_array_equal(np.asarray(many.chunks), one.chunks)
    np.testing.assert_array_equal(np.asarray(many.distances), one.distances)
    some = np.arange(0, len(one.table), 5)
    texts = [
        [[neighbour.text for neighbour in row] for row in neighbours.describe(some, 2)]
        for neighbours in (one, many)
    ]
    assert texts[0] == texts[1]
    np.testing.assert_array_equal(many.select([4, 1]).chunks, one.select([4, 1]).chunks)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_batches_are_the_same(both: tuple[Workspace, Workspace], is_mixed: bool) -> None:
    made = []
    for work in both:
        store, neighbours = work.store("train"), work.neighbours("train")
        mixture = {store.documents[0]["source"]: 1.0} if is_mixed else None
        made.append(PackedBatches(store, 8, 32, 2, 3, neighbours, 2, mixture))
    one, many = made
    for number in range(2 * one.sequences_per_epoch // 2):
        assert many.documents(number) == one.documents(number)
        for mine, theirs in zip(vars(many[number]).values(), vars(one[number]).values(), strict=True):
            assert torch.equal(mine, theirs)


def test_pinned_neighbours_are_links_to_all_files(both: tuple[Workspace, Workspace], tmp_path: Path) -> None:
    _, many = both
    neighbours = many.neighbours("train")
    pinned = pin(neighbours, tmp_path / "pinned")
    np.testing.assert_array_equal(np.asarray(pinned.chunks), np.asarray(neighbours.chunks))
    assert pinned.num_deleted(2) == 0


def test_neighbours_in_many_files_are_brought_up_to_date_in_one(
    both: tuple[Workspace, Workspace], tmp_path: Path
) -> None:
    found = []
    for number, work in enumerate(both):
        again = Workspace(Path(shutil.copytree(work.path, tmp_path / str(number))))
        again.datastore().delete(ids=["04.txt"])
        found.append(find_neighbours(again, "train", file_bytes=(SMALL, FILE_BYTES)[number]))
        again.datastore().close()
        assert 0 < found[-1].artifact.counts["searched"] < len(found[-1].table)
    np.testing.assert_array_equal(np.asarray(found[0].chunks), np.asarray(found[1].chunks))
    assert isinstance(found[0].chunks, ShardedArray)
    assert not isinstance(found[1].chunks, ShardedArray)


def test_a_damaged_file_of_many_is_named_and_made_again(
    both: tuple[Workspace, Workspace], text_folder: Path, tmp_path: Path, static_encoder: str
) -> None:
    _, many = both
    work = Workspace(Path(shutil.copytree(many.path, tmp_path / "work")))
    file = work.tokens_path / "train" / "tokens-00002.npy"
    file.write_bytes(file.read_bytes()[:-2] + b"xx")
    assert main(["doctor", "--work", str(work.path), "--mend"]) == 0
    assert not file.exists()
    ingest(work, [str(text_folder)], small_run(static_encoder).corpus)  # as one file, this time
    check(work)
    store = TokenStore.open(work.tokens_path / "train")
    assert not isinstance(store.tokens, ShardedArray)
    assert store.fingerprint == many.store("train").fingerprint
    np.testing.assert_array_equal(store.tokens, np.asarray(many.store("train").tokens))
    assert work.neighbours("train")


@pytest.mark.slow
def test_losses_and_scores_are_the_same_and_stay_valid(
    both: tuple[Workspace, Workspace], static_encoder: str
) -> None:
    run = small_run(static_encoder)
    losses = []
    for work in both:
        train_run(work, "retro", run.model, run.training)
        evaluate_split(work.run("retro"), "test", run.evaluation)
        rows = read_metrics(work.run_path("retro") / METRICS)
        losses.append([(row["step"], row.get("loss"), row.get("valid_on")) for row in rows])
    assert losses[0] == losses[1]
    one, many = both
    results = one.evaluation_path("retro", "test") / "results.json"
    for name in ("results.json", "scores.npz"):
        files = (work.evaluation_path("retro", "test") / name for work in both)
        mine, theirs = (file.read_bytes() for file in files)
        assert mine == theirs
    # With the tokens in many files, what was made with those in one is still this store's.
    before = results.stat().st_mtime_ns
    shutil.rmtree(one.tokens_path)
    shutil.copytree(many.tokens_path, one.tokens_path)
    work = Workspace(one.path)
    assert isinstance(work.store("test").tokens, ShardedArray)
    assert work.neighbours("test")
    evaluate_split(work.run("retro"), "test", run.evaluation)
    assert results.stat().st_mtime_ns == before
