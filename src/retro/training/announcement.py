"""One line before a training: how many epochs its steps are, and how long it will take."""

import time
from collections.abc import Callable

from retro.config import TrainingConfig
from retro.corpus.tokens import TokenStore
from retro.retrieval.chunks import ChunkTable
from retro.stages.progress import Progress
from retro.wording import counted

TIMED_STEPS = 3
"""Steps that are timed before the line is said, after the first, which takes longer than others."""


def epoch_tokens(store: TokenStore, chunk_len: int) -> int:
    """Tokens of an epoch as batches hold them: every document's last chunk is padded."""
    return len(ChunkTable(store, chunk_len)) * chunk_len


def describe_steps(config: TrainingConfig, num_tokens: int) -> str:
    """A schedule in words, for a text whose epoch has so many tokens."""
    epochs = config.num_steps * config.batch_size * config.seq_len / num_tokens
    number = f"{epochs:.2g}" if epochs < 10 else f"{epochs:,.0f}"
    text = f"{counted(config.num_steps, 'step')} of {config.batch_size} × {config.seq_len} tokens"
    # With a mixture, every source has epochs of its own.
    return text if config.mixture else f"{text} are {number} epochs of {num_tokens:,} tokens"


def announced(
    progress: Progress,
    say: Callable[[str], None],
    config: TrainingConfig,
    num_tokens: Callable[[], int],
) -> Progress:
    """The same progress, which says the line once the first steps were timed.

    Only then are the tokens of an epoch counted: what training needs, it should ask for first.
    """
    started = 0.0
    first = 0

    def report(done: int, total: int, step: str = "", note: str = "") -> None:
        nonlocal started, first
        progress(done, total, step, note)
        if not started:
            started = time.perf_counter()
            first = done
        # A training that is nearly done needs no line.
        elif done == first + TIMED_STEPS < total:
            seconds = (time.perf_counter() - started) / TIMED_STEPS * (total - done)
            say(f"{describe_steps(config, num_tokens())}; {duration(seconds)} to go")

    return report


def duration(seconds: float) -> str:
    """A time as people say it."""
    return f"about {seconds:.0f} seconds" if seconds < 90 else f"about {seconds / 60:.1f} minutes"
