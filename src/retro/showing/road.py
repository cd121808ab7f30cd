"""The way of a fitted model: scored beside its base on held-out documents, sampled with and without a source.

The demo takes it after fitting, a study of anybody's text with additions that come with the package.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from retro.comparators.bare import BareBase
from retro.comparators.rows import OFF, Rows, score_window, scorer_of
from retro.corpus.tokens import TokenStore
from retro.errors import DataError
from retro.generation.request import Prompt
from retro.retrieval.neighbours import Neighbours
from retro.scoring.leakage import NEW, chunk_overlaps, read_overlaps
from retro.scoring.windows import Window, beginnings
from retro.showing.forgetting import ThreeSamples, sample_three
from retro.stages.parts import JSON, Parts
from retro.stages.progress import Progress, at_step
from retro.stages.stage import Artifact, Stage, run_stage
from retro.study import Study
from retro.workspace import OpenRun

BASE = "base"
FEWEST = 4
"""Documents that are scored however long they take: an interval over fewer says nothing."""
SCORES = Path("scores") / "beginnings"
SAMPLES = Path("samples")


@dataclass(frozen=True)
class Extent:
    """How much is scored and sampled."""

    num_documents: int = 12
    """Held-out documents whose beginnings are scored."""
    sample_tokens: int = 128
    seconds: float = math.inf
    """When so many have passed, no further document is begun."""


@dataclass(frozen=True)
class DocumentGain:
    """What retrieval saved on the beginning of one held-out document, in bits per byte."""

    number: int
    """Its number among the test documents."""
    id: str
    title: str
    off: float
    on: float

    @property
    def name(self) -> str:
        return self.title or self.id

    @property
    def gain(self) -> float:
        return 1.0 - self.on / self.off if self.off else 0.0


@dataclass(frozen=True)
class FittedResult:
    """What the way leaves behind."""

    rows: Rows
    num_neighbours: int
    gains: Sequence[DocumentGain]
    """The largest first."""
    sampled: DocumentGain
    """The document whose first chunk is continued."""
    samples: ThreeSamples
    is_new: np.ndarray
    """Which chunks share at most an eighth with all that is read for them."""

    @property
    def on(self) -> str:
        return f"on-{self.num_neighbours}"

    @property
    def prompt(self) -> str:
        return f"prompt-{self.num_neighbours}"

    @cached_property
    def off_is_base(self) -> bool:
        """Whether, without neighbours, every token costs what it costs the bare base, to the bit."""
        return self.rows.same(BASE, OFF)


def take_fitted_road(study: Study, opened: OpenRun, extent: Extent, command: str) -> FittedResult:
    """Score, sample, take a source out and sample again, in a workspace whose neighbours are found.

    Finished parts are reused. `command` is what a user runs to have all of it.
    """
    neighbours = opened.neighbours("test")
    k = study.run.training.num_neighbours
    with study.clock.part("score", study.folder / SCORES):
        scored = _score(study, opened, neighbours, k, extent, command)
    rows = Rows.read(neighbours, opened.tokenizer.token_lengths, Parts(scored.path, JSON))
    gains = document_gains(rows, neighbours.store, f"on-{k}")
    sampled = middle_of_gains(gains)
    start = neighbours.store.document(sampled.number)[: neighbours.table.chunk_len].tolist()
    prompt = Prompt(start, opened.tokenizer.decode(start))
    folder = study.folder / SAMPLES
    with study.part("sample", folder, "Sampling") as progress:
        samples = sample_three(opened, prompt, k, extent.sample_tokens, folder, progress, command)
    is_new = read_overlaps(neighbours, chunk_overlaps(neighbours)) <= NEW
    return FittedResult(rows, k, gains, sampled, samples, is_new)


def _score(
    study: Study, opened: OpenRun, neighbours: Neighbours, k: int, extent: Extent, command: str
) -> Artifact:
    """Bits of every token of held-out beginnings: fitted, off, on and by the prompt, and the bare base."""
    length = study.run.evaluation.window
    windows = beginnings(neighbours.table, extent.num_documents, length)
    if not windows:
        raise DataError(
            f"no test document in {study.work.tokens_path} has two chunks of {neighbours.table.chunk_len} "
            "tokens, so that none of them reads neighbours; expected longer documents; add some"
        )
    names = (OFF, f"on-{k}", f"prompt-{k}")

    def work(stage: Stage) -> None:
        kept = Parts(stage.path, JSON)
        with study.narrator.progress("Scoring") as progress:
            scorers = {row: scorer_of(row, opened.model, neighbours) for row in names}
            done = _in_time(
                windows,
                lambda window: score_window(window, scorers, kept),
                extent.seconds,
                at_step(progress, "Scoring held-out documents"),
            )
            bare = BareBase(opened.run.base_id, opened.model.facts)
            alone = {BASE: scorer_of(OFF, bare, neighbours)}
            for number, window in enumerate(done, start=1):
                score_window(window, alone, kept)
                progress(number, len(done), "Scoring them with the bare base")
        stage.counts = {"documents": len(done)}

    config = {"rows": [*names, BASE], "documents": extent.num_documents, "window": length}
    inputs = {
        "model": opened.run.fingerprint,
        "tokens": neighbours.store.fingerprint,
        "neighbours": neighbours.fingerprint,
    }
    return run_stage(study.folder / SCORES, "scores", config, inputs, work, command, renew=True)


def _in_time(
    windows: Sequence[Window], score: Callable[[Window], None], seconds: float, progress: Progress
) -> list[Window]:
    """Score windows until the time is over, in an order of chance, so that those that are done are a draw."""
    started = time.perf_counter()
    done: list[Window] = []
    for number in np.random.default_rng(0).permutation(len(windows)).tolist():
        if len(done) >= FEWEST and time.perf_counter() - started > seconds:
            break
        progress(len(done), len(windows))
        score(windows[number])
        done.append(windows[number])
    progress(len(done), len(done))
    return done


def document_gains(rows: Rows, store: TokenStore, on: str) -> list[DocumentGain]:
    """What retrieval saved on each document, the largest gain first."""
    gains = []
    for number, (bits, other, num_bytes, *_) in rows.sums(on).items():
        row = store.documents[number]
        gains.append(DocumentGain(number, row["id"], row["title"], other / num_bytes, bits / num_bytes))
    return sorted(gains, key=lambda found: -found.gain)


def middle_of_gains(gains: Sequence[DocumentGain]) -> DocumentGain:
    """The document that is sampled, by a rule and not by taste: the median of those that gain.

    Where none gains, it is the one that loses least.
    """
    gaining = [found for found in gains if found.gain > 0]
    return gaining[len(gaining) // 2] if gaining else gains[0]
