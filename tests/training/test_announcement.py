"""The line before a training: once, with the epochs of the steps and the time they take."""

import time

from retro.config import TrainingConfig
from retro.corpus.tokens import TokenStore
from retro.stages.progress import no_progress
from retro.training.announcement import announced, describe_steps, epoch_tokens
from retro.workspace import Workspace

CONFIG = TrainingConfig(num_steps=100, batch_size=2, seq_len=50, warmup_steps=0)


def test_the_line_is_said_once_after_a_few_steps() -> None:
    lines: list[str] = []
    report = announced(no_progress, lines.append, CONFIG, lambda: 4_000)
    for done in range(1, 101):
        if done < 5:
            time.sleep(0.05)
        report(done, 100)
    (line,) = lines
    assert line.startswith("100 steps of 2 × 50 tokens are 2.5 epochs of 4,000 tokens; about ")
    # Three steps of a twentieth of a second each were timed, and 96 are to come.
    assert 4 <= int(line.split("about ")[1].split()[0]) <= 12


def test_a_resumed_training_counts_what_is_left() -> None:
    lines: list[str] = []
    report = announced(no_progress, lines.append, CONFIG, lambda: 4_000)
    for done in (98, 99, 100):
        report(done, 100)
    assert lines == []


def test_with_a_mixture_there_is_no_epoch() -> None:
    config = TrainingConfig(num_steps=100, batch_size=2, seq_len=50, warmup_steps=0, mixture={"a": 1.0})
    assert describe_steps(config, 4_000) == "100 steps of 2 × 50 tokens"


def test_an_epoch_is_what_batches_hold(workspace: Workspace) -> None:
    from retro.training.batches import PackedBatches

    store: TokenStore = workspace.corpus().train
    batches = PackedBatches(store, 8, 32, 2, seed=0)
    tokens = epoch_tokens(store, 8)
    # The last sequence of an epoch may have empty places.
    assert 0 <= batches.sequences_per_epoch * 32 - tokens < 32
