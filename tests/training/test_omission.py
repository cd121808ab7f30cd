from difflib import SequenceMatcher

import numpy as np
import pytest
import torch

from retro.config import TrainingConfig
from retro.corpus.tokenizers.sentencepiece import PAD_ID
from retro.errors import ConfigError
from retro.training.batches import PackedBatches
from retro.training.loop import training_settings
from retro.training.omission import Omission
from retro.workspace import Workspace


def batches(workspace: Workspace, omission: Omission | None = None) -> PackedBatches:
    neighbours = workspace.neighbours("train")
    return PackedBatches(
        workspace.store("train"), 8, 32, 2, seed=3, neighbours=neighbours, k=2, omission=omission
    )


def masks(made: PackedBatches) -> torch.Tensor:
    found = [made[number].neighbour_mask for number in range(made.sequences_per_epoch // 2)]
    return torch.cat([mask for mask in found if mask is not None])


def test_a_config_that_leaves_nothing_out_has_no_omission_and_its_old_settings() -> None:
    assert Omission.of(TrainingConfig()) is None
    assert not {"leave_out", "vary_neighbours", "longest_run"} & training_settings(TrainingConfig()).keys()
    assert training_settings(TrainingConfig(leave_out=0.1))["leave_out"] == 0.1


def test_chunks_are_left_out_at_the_rate_that_is_asked_for() -> None:
    omission = Omission(seed=1, leave_out=0.25)
    drawn = np.stack([omission.drawn(number, 8, 3) for number in range(1000)])
    assert (drawn.all(-1) == drawn.any(-1)).all()  # all neighbours of a chunk, or none
    assert drawn.any(-1).mean() == pytest.approx(0.75, abs=0.02)


def test_the_number_of_neighbours_varies_and_the_nearest_stay() -> None:
    drawn = np.stack([Omission(seed=1, vary=True).drawn(number, 8, 4) for number in range(500)])
    assert (np.diff(drawn.astype(int), axis=-1) <= 0).all()
    counts = np.bincount(drawn.sum(-1).ravel(), minlength=5) / drawn[..., 0].size
    assert counts == pytest.approx([0, 0.25, 0.25, 0.25, 0.25], abs=0.03)


def test_what_is_left_out_depends_on_the_sequence_alone(workspace: Workspace) -> None:
    omission = Omission(seed=3, leave_out=0.5, vary=True)
    made, plain = batches(workspace, omission), batches(workspace)
    whole, second = made[4].neighbour_mask, made.rows(4, 1, 2).neighbour_mask
    assert whole is not None
    assert second is not None
    assert torch.equal(whole[1:], second)  # as another process would make it
    assert torch.equal(made[4].tokens, plain[4].tokens)
    kept, all_of_them = masks(made), masks(plain)
    assert not (kept & ~all_of_them).any()
    assert 0 < kept.sum() < all_of_them.sum()


def test_neighbours_that_share_a_long_run_with_the_next_chunk_are_left_out(workspace: Workspace) -> None:
    made, plain = batches(workspace, Omission(seed=3, longest_run=2)), batches(workspace)
    gone = stayed = 0
    for number in range(plain.sequences_per_epoch // 2):
        batch = plain[number]
        kept = made[number].neighbour_mask
        assert batch.neighbour_mask is not None
        assert batch.neighbours is not None
        assert kept is not None
        # The last place of a sequence has no next chunk in the batch to look at.
        for row, place, rank in batch.neighbour_mask[:, :-1].nonzero().tolist():
            # What is predicted from a chunk's last token on is the next chunk.
            predicted = batch.targets[row, place * 8 + 7 : place * 8 + 15].tolist()
            text = [token for token in predicted if token != PAD_ID]
            other = batch.neighbours[row, place, rank].tolist()
            match = SequenceMatcher(None, text, other, autojunk=False)
            run = match.find_longest_match().size
            assert bool(kept[row, place, rank]) == (run <= 2)
            gone += run > 2
            stayed += run <= 2
    assert gone
    assert stayed


@pytest.mark.parametrize("settings", [{"leave_out": 1.0}, {"leave_out": -0.1}, {"longest_run": -1}])
def test_settings_that_mean_nothing_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        TrainingConfig(**settings)  # type: ignore[arg-type]
