from pathlib import Path

import numpy as np
import pytest

from retro.corpus.sentencepiece import PAD_ID
from retro.errors import ArtifactError
from retro.retrieval.neighbours import Neighbours, search_other_documents
from retro.workspace import Workspace


def brute_force(work: Workspace, split: str, chunk: int, k: int) -> np.ndarray:
    """Distances of the k nearest chunks of other documents, with plain numpy."""
    datastore, neighbours = work.datastore(), work.neighbours(split)
    text = datastore.tokenizer.decode(neighbours.table.tokens(chunk))
    query = datastore.embedder.embed([text])[0]
    own = neighbours.store.documents[int(neighbours.table.documents[chunk])]["content_hash"]
    other = datastore.content_hashes[datastore.table.documents[datastore.rows]] != own
    distances = ((datastore.keys().astype(np.float32) - query) ** 2).sum(-1)
    return np.sort(distances[other])[:k]


@pytest.mark.parametrize("split", ["train", "test"])
def test_neighbours_are_the_nearest_chunks_of_other_documents(workspace: Workspace, split: str) -> None:
    neighbours = workspace.neighbours(split)
    saved = np.load(neighbours.artifact.file("distances.npy"))
    for chunk in range(0, len(neighbours.table), 5):
        if neighbours.counts[chunk]:
            np.testing.assert_allclose(saved[chunk], brute_force(workspace, split, chunk, 4), atol=2e-2)


def test_no_neighbour_is_of_the_same_document(workspace: Workspace) -> None:
    neighbours = workspace.neighbours("train")
    chunks = np.arange(len(neighbours.table))
    found = neighbours.documents(chunks, 4)
    own = neighbours.datastore.content_hashes[neighbours.table.documents]
    real = np.arange(4) < neighbours.counts[:, None]
    assert real.any()
    assert not ((found == own[:, None]) & real).any()


def test_a_missing_neighbour_is_a_mask_and_never_a_text(workspace: Workspace) -> None:
    """When everything else is of the same document, nothing is found, and nothing is shown in its place."""
    datastore = workspace.datastore()
    keys = datastore.keys()[:3]
    everyone = datastore.content_hashes
    datastore.content_hashes = np.array(["same"] * len(everyone))
    try:
        _, distances, counts = search_other_documents(datastore, keys, np.array(["same"] * 3), 4)
    finally:
        datastore.content_hashes = everyone
    assert counts.tolist() == [0, 0, 0]
    assert np.isinf(distances).all()
    neighbours = workspace.neighbours("train")
    neighbours.counts = np.zeros_like(neighbours.counts)
    values, mask = neighbours.values(np.arange(5), 2)
    assert not mask.any()
    assert (values == PAD_ID).all()


def test_neighbours_of_other_data_are_refused(workspace: Workspace) -> None:
    path = workspace.neighbours_path("train")
    with pytest.raises(ArtifactError, match="other tokens"):
        Neighbours.open(path, workspace.store("test"), workspace.datastore())


def test_missing_neighbours_say_what_to_run(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="run: retro ingest"):
        Workspace(tmp_path / "nothing").neighbours("train").values(np.arange(1), 1)
