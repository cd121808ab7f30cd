from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retro.errors import ConfigError
from retro.model.retro import Retro
from retro.retrieval import thinning
from retro.retrieval.chunks import content_hashes
from retro.retrieval.finding import find_neighbours
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.thinning import thin, thinned_neighbours, uniform
from retro.scoring.bits_per_byte import score
from retro.workspace import Workspace
from tests.retrieval.datastores import build, corpus_of, make_documents
from tests.workspaces import small_run


def kept_documents(workspace: Workspace, fraction: float, seed: int = 0) -> set[int]:
    snapshot = thin(workspace.datastore().snapshot(), fraction, seed)
    return {
        int(n)
        for s, live in zip(snapshot.segments, snapshot.live, strict=True)
        for n in s.documents["number"][live]
    }


def test_smaller_parts_lie_within_larger_ones(workspace: Workspace) -> None:
    parts = [kept_documents(workspace, fraction) for fraction in (0.2, 0.5, 0.8, 1.0)]
    assert parts[0] < parts[1] < parts[2] < parts[3]
    assert len(parts[3]) == workspace.datastore().snapshot().num_documents
    assert kept_documents(workspace, 0.5, seed=1) != parts[1]


def test_hashes_are_uniform() -> None:
    hashes = np.arange(100_000, dtype=np.uint64)
    for seed in (0, 1):
        counts = np.histogram(uniform(hashes, seed), bins=10, range=(0, 1))[0]
        assert (np.abs(counts - 10_000) < 400).all()
    assert abs(np.corrcoef(uniform(hashes, 0), uniform(hashes, 1))[0, 1]) < 0.02


def test_the_whole_is_the_exact_neighbours(workspace: Workspace, tmp_path: Path) -> None:
    for split in ("test", "train"):
        whole = thinned_neighbours(workspace.store(split), workspace.datastore(), tmp_path / split, [1.0])[
            1.0
        ]
        saved = workspace.neighbours(split)
        np.testing.assert_array_equal(whole.chunks, saved.chunks)
        for name in ("distances.npy", "documents.npy"):
            np.testing.assert_array_equal(
                np.load(whole.artifact.file(name)), np.load(saved.artifact.file(name))
            )


def test_a_part_is_searched_as_if_it_were_all(workspace: Workspace, tmp_path: Path) -> None:
    """Against plain numpy: more neighbours than are saved, none of the same document, a mask for the rest."""
    store, datastore = workspace.store("train"), workspace.datastore()
    found = thinned_neighbours(store, datastore, tmp_path, [0.3], 100)[0.3]
    assert found.max_neighbours == 100
    (segment,) = datastore.snapshot().segments
    kept = np.isin(segment.documents["number"], list(kept_documents(workspace, 0.3)))[segment.places]
    own = content_hashes(store)[found.table.documents]
    keys, distances = segment.keys.astype(np.float32), np.load(found.artifact.file("distances.npy"))
    row_of = {
        int(chunk): row for row, chunk in enumerate(segment.chunks)
    }  # the training chunks are the datastore's
    for chunk in range(0, len(found.table), 17):
        if chunk in row_of:
            allowed = kept & (segment.documents["content_hash"][segment.places] != own[chunk])
            expected = np.sort(((keys[allowed] - keys[row_of[chunk]]) ** 2).sum(axis=1))[:100]
            np.testing.assert_allclose(distances[chunk, : len(expected)], expected, rtol=1e-3, atol=1e-4)
            assert np.isinf(distances[chunk, len(expected) :]).all()
            assert not (found.documents(np.array([chunk]), 100) == own[chunk]).any()
    counts = found.artifact.counts
    assert counts["keys"] == kept.sum() < len(datastore)


def test_a_model_reads_them(workspace: Workspace, bert: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, store = Retro(small_run(bert).model).eval(), workspace.store("test")
    parts = thinned_neighbours(store, workspace.datastore(), tmp_path, [0.1, 1.0], 6)
    bits = {
        fraction: score(model, store, small_run(bert).evaluation, found, 6).bits
        for fraction, found in parts.items()
    }
    saved = score(model, store, small_run(bert).evaluation, workspace.neighbours("test"), 4).bits
    assert not np.array_equal(bits[0.1], bits[1.0])
    np.testing.assert_array_equal(score(model, store, small_run(bert).evaluation, parts[1.0], 4).bits, saved)
    assert len({found.fingerprint for found in parts.values()}) == 2
    reopened = Neighbours.open(parts[0.1].artifact.path, store, workspace.datastore())
    np.testing.assert_array_equal(reopened.chunks, parts[0.1].chunks)


def test_what_was_deleted_stays_so(tmp_path: Path, text_folder: Path, static_encoder: str) -> None:
    work = corpus_of(tmp_path / "work", text_folder)
    datastore = build(work, tmp_path / "datastore", static_encoder)
    datastore.add(
        make_documents(["The licence permits anyone to copy and share this software.\n" * 3] * 1, "more")
    )
    datastore.delete(ids=[work.store("train").documents[3]["id"]])
    store = work.store("train")
    whole = thinned_neighbours(store, datastore, tmp_path / "thinned", [1.0])[1.0]
    exact = find_neighbours(store, datastore, tmp_path / "neighbours")
    np.testing.assert_array_equal(whole.chunks, exact.chunks)
    gone = content_hashes(store)[3]
    assert not (whole.documents(np.arange(len(whole.table)), 4) == gone).any()


def test_what_was_interrupted_goes_on_behind_the_last_block(
    tmp_path: Path, text_folder: Path, static_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = corpus_of(tmp_path / "work", text_folder)
    datastore, store = build(work, tmp_path / "datastore", static_encoder), work.store("train")
    monkeypatch.setattr(thinning, "QUERIES", 50)
    whole = thinned_neighbours(store, datastore, tmp_path / "whole", [1.0])[1.0]
    num_blocks = -(-len(whole.table) // 50)
    searched: list[int] = []
    search = thinning.search_other_documents

    def failing(*arguments: Any) -> Any:
        searched.append(1)
        if len(searched) == 3:
            raise KeyboardInterrupt
        return search(*arguments)

    monkeypatch.setattr(thinning, "search_other_documents", failing)
    with pytest.raises(KeyboardInterrupt):
        thinned_neighbours(store, datastore, tmp_path / "broken", [1.0])
    resumed = thinned_neighbours(store, datastore, tmp_path / "broken", [1.0])[1.0]
    assert len(searched) == num_blocks + 1  # only the one that was interrupted is searched again
    np.testing.assert_array_equal(resumed.chunks, whole.chunks)
    np.testing.assert_array_equal(resumed.distances, whole.distances)


def test_bad_fractions_and_other_indexes_are_refused(
    workspace: Workspace, tmp_path: Path, text_folder: Path, static_encoder: str
) -> None:
    for fraction in (0.0, 1.5):
        with pytest.raises(ConfigError, match="0 < fraction"):
            thin(workspace.datastore().snapshot(), fraction)
    words = build(
        corpus_of(tmp_path / "work", text_folder), tmp_path / "datastore", static_encoder, index="bm25"
    )
    with pytest.raises(ConfigError, match="is searched by bm25"):
        thin(words.snapshot(), 0.5)
