import numpy as np
import pytest
import torch

from retro.corpus.tokenizers.sentencepiece import END_ID, PAD_ID
from retro.errors import ConfigError
from retro.training.batches import PackedBatches
from retro.workspace import Workspace
from tests.scoring.stores import alternate_sources


@pytest.fixture
def batches(workspace: Workspace) -> PackedBatches:
    return PackedBatches(
        workspace.store("train"), 8, 32, 2, seed=3, neighbours=workspace.neighbours("train"), k=2
    )


def epoch(batches: PackedBatches) -> list[np.ndarray]:
    return [batches._sequence(index) for index in range(batches.sequences_per_epoch)]


def test_an_epoch_holds_every_chunk_once(batches: PackedBatches) -> None:
    chunks = np.concatenate(epoch(batches))
    assert sorted(chunks[chunks >= 0]) == list(range(len(batches.table)))
    assert (chunks < 0).sum() < batches.chunks_per_sequence


def test_a_batch_is_a_function_of_its_number(batches: PackedBatches, workspace: Workspace) -> None:
    last = batches.sequences_per_epoch // 2 + 3  # into the second epoch
    wanted = batches[last]
    fresh = PackedBatches(
        workspace.store("train"), 8, 32, 2, seed=3, neighbours=workspace.neighbours("train"), k=2
    )
    for number in (0, last):
        again = fresh[number]
    assert torch.equal(wanted.tokens, again.tokens)
    assert torch.equal(wanted.neighbours, again.neighbours)  # type: ignore[arg-type]
    other = PackedBatches(workspace.store("train"), 8, 32, 2, seed=4)
    assert not torch.equal(other[0].tokens, fresh[0].tokens)


def test_targets_are_the_next_tokens_of_the_same_document(
    batches: PackedBatches, workspace: Workspace
) -> None:
    store, table = workspace.store("train"), batches.table
    for number in range(3):
        batch = batches[number]
        chunks = np.stack([batches._sequence(number * 2 + row) for row in range(2)])
        for row in range(2):
            for place, chunk in enumerate(chunks[row]):
                if chunk < 0:
                    continue
                start, end = table.starts[chunk], store.ends[table.documents[chunk]]
                expected = store.tokens[start + 1 : min(start + 9, end)].tolist()
                found = batch.targets[row, place * 8 : place * 8 + 8].tolist()
                assert found == expected + [PAD_ID] * (8 - len(expected))
    assert any(END_ID in batches[number].targets for number in range(batches.sequences_per_epoch // 2))


def test_only_chunks_that_go_on_have_neighbours_and_none_from_the_sequence(batches: PackedBatches) -> None:
    masked_for_presence = 0
    for number in range(batches.sequences_per_epoch // 2):
        batch = batches[number]
        assert batch.neighbour_mask is not None
        chunks = np.stack([batches._sequence(number * 2 + row) for row in range(2)])
        for row in range(2):
            present = {batches.hashes[batches.table.documents[chunk]] for chunk in chunks[row] if chunk >= 0}
            for place, chunk in enumerate(chunks[row]):
                real = batch.neighbour_mask[row, place].tolist()
                last = chunk < 0 or chunk + 1 == batches.table.first[batches.table.documents[chunk] + 1]
                if last:
                    assert not any(real)
                    continue
                found = batches.neighbours.documents(np.array([chunk]), 2)[0]  # type: ignore[union-attr]
                assert real == [document not in present for document in found]
                masked_for_presence += sum(document in present for document in found)
    assert masked_for_presence > 0  # the case does occur


def test_the_baseline_sees_the_same_tokens(batches: PackedBatches, workspace: Workspace) -> None:
    plain = PackedBatches(workspace.store("train"), 8, 32, 2, seed=3)
    for number in range(5):
        assert torch.equal(plain[number].tokens, batches[number].tokens)
    assert plain[0].neighbours is None


def test_a_mixture_gives_each_source_its_share_and_keeps_sequences_pure(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = workspace.store("train")
    alternate_sources(store)
    weights = {"even": 3.0, "odd": 1.0}
    batches = PackedBatches(store, 8, 32, 2, seed=3, mixture=weights)
    sources = np.array([row["source"] for row in store.documents])
    seen = []
    for number in range(1000):
        chunks = batches._sequence(number)
        found = set(sources[batches.table.documents[chunks[chunks >= 0]]].tolist())
        assert len(found) == 1
        seen.append(found.pop())
    assert seen.count("even") == 750
    again = PackedBatches(store, 8, 32, 2, seed=3, mixture=weights)
    assert torch.equal(again[321].tokens, batches[321].tokens)
    with pytest.raises(
        ConfigError, match=r"mixture names \['sea'\]; expected sources of the corpus: \['even', 'odd'\]"
    ):
        PackedBatches(store, 8, 32, 2, seed=3, mixture={"sea": 1.0})


def test_what_does_not_fit_is_refused(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="multiple of chunk_len"):
        PackedBatches(workspace.store("train"), 8, 30, 2, seed=0)
    with pytest.raises(ConfigError, match="num_neighbours is 9; expected at most the 4"):
        PackedBatches(
            workspace.store("train"), 8, 32, 2, seed=0, neighbours=workspace.neighbours("train"), k=9
        )
