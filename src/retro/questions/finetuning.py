"""Fine-tuning on questions, through the one training loop."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from retro.config import FineTuningConfig, TrainingConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.model.protocol import TrainableModel
from retro.model.weights import WEIGHTS
from retro.questions.batches import QuestionBatches
from retro.questions.examples import Question
from retro.questions.format import Format
from retro.run import Origin, load
from retro.stages.files import file_checksum, make_fingerprint
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Artifact
from retro.training.loop import train
from retro.workspace import Workspace


def finetune(
    work: Workspace,
    name: str,
    base: str,
    questions: Sequence[Question],
    config: TrainingConfig,
    tuning: FineTuningConfig | None = None,
    valid: Sequence[Question] = (),
    progress: Progress = no_progress,
    warn: Callable[[str], None] | None = None,
) -> tuple[TrainableModel, Artifact]:
    """Fine-tune a run of the workspace, or a model folder with its tokenizer, to the run `name`.

    A question shows its first `num_neighbours` passages. `seq_len` is the most tokens that a question and its answer may have.
    """
    tuning = tuning or FineTuningConfig()
    model, folder = work.base(base)
    k = config.num_neighbours if model.facts.retrieves and not tuning.closed_book else 0
    form = Format(Tokenizer.open(work.tokenizer_path), model.facts.chunk_len)
    batches = QuestionBatches(questions, form, config.batch_size, k, config.seed, config.seq_len)
    validation = QuestionBatches(valid, form, config.batch_size, k, 0, config.seq_len) if valid else None
    for note, count in (
        ("questions left out: longer than seq_len", batches.num_long),
        ("passages cut", form.num_cut(questions, k)),
    ):
        if warn and count:
            warn(f"{count:,} {note}")
    store = work.corpus().train
    inputs = {
        "tokens": store.fingerprint,
        "tokenizer": store.tokenizer_fingerprint,
        "baseline": file_checksum(folder / WEIGHTS),
        "questions": make_fingerprint(
            [dataclasses.asdict(question) for question in (*questions, *valid)], dataclasses.asdict(tuning)
        ),
    }
    model.set_dropout(tuning.dropout)
    if tuning.frozen:
        if not k:
            raise ConfigError(
                f"{base} has no cross-attention, and frozen would learn nothing; expected a RETRO; leave out --frozen"
            )
        model.freeze_all_but_retrieval()
    config = dataclasses.replace(config, seq_len=batches.seq_len)
    origin = Origin(tokenizer=work.tokenizer_path)
    artifact = train(model, batches, config, work.run_path(name), inputs, validation, progress, origin=origin)
    return load(artifact.path), artifact


def split(questions: Sequence[Question], fractions: Sequence[float], seed: int = 0) -> list[list[Question]]:
    """The questions in parts, the last of which takes the rest. Equal questions are in the same part, and stay there when others come."""
    bounds = np.cumsum(fractions)
    parts: list[list[Question]] = [[] for _ in range(len(bounds) + 1)]
    for question in questions:
        place = int(make_fingerprint(seed, " ".join(question.text.lower().split())), 16) / 16**16
        parts[int(np.searchsorted(bounds, place, side="right"))].append(question)
    return parts
