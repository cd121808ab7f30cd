"""Fine-tuning goes through the one training loop: what it changes and leaves, and the whole experiment."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from retro.comparators.passages import Frame, Prepended
from retro.config import FineTuningConfig, TrainingConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ArtifactError, ConfigError
from retro.jobs.training import train_run
from retro.model.retro import Retro
from retro.questions.answering import Answerer, own_passages
from retro.questions.batches import QuestionBatches
from retro.questions.examples import Question
from retro.questions.finetuning import finetune, in_view, run_experiment, settled
from retro.questions.format import Format
from retro.questions.scoring import CLOSED, CLOSED_BASELINE, OPEN, SHUFFLED
from retro.recipes import baseline_of
from retro.retrieval.retriever import Passage
from retro.run import make_model
from retro.training.loop import train
from retro.training.metrics import METRICS, read_metrics
from retro.workspace import Workspace
from tests.model.models import small_config
from tests.training.runs import several_processes
from tests.training.test_resumption import assert_close
from tests.workspaces import small_run, small_workspace

ROWS = [
    Question(
        f"what does licence {n} permit?", (f"use {n % 3}",), (Passage(f"It permits use {n % 3}.", f"L{n}"),)
    )
    for n in range(30)
]
TRAINING = TrainingConfig(
    seq_len=64,
    batch_size=4,
    num_steps=4,
    num_neighbours=2,
    warmup_steps=1,
    learning_rate=1e-2,
    min_learning_rate=1e-3,
    log_every=1,
    validate_every=2,
    validate_batches=1,
    checkpoint_every=2,
    precision="float32",
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, bert: str) -> Workspace:
    run, work = (
        small_run(bert),
        small_workspace(tmp_path_factory.mktemp("questions"), text_folder, bert, ("train", "valid")),
    )
    for config in (run, baseline_of(run)):
        train_run(work, config.name, config.model, dataclasses.replace(run.training, num_steps=2))
    return work


def changed(before: Retro, after: Retro) -> set[str]:
    states = before.state_dict(), after.state_dict()
    return {name for name in states[0] if not torch.equal(states[0][name], states[1][name])}


def test_all_weights_are_tuned_or_those_of_retrieval_alone(work: Workspace) -> None:
    base = work.run("small").model
    tuned, artifact = finetune(work, "all", "small", ROWS[:20], TRAINING, valid=ROWS[20:])
    assert changed(base, tuned) == set(base.state_dict())
    assert work.run("all").run.fingerprint == artifact.fingerprint
    assert artifact.counts["trained"] == sum(parameter.numel() for parameter in tuned.parameters())
    rows = [row for row in read_metrics(artifact.path / METRICS) if "valid_on" in row]
    assert all(row["valid_on"] != row["valid_off"] for row in rows)

    frozen, _ = finetune(work, "frozen", "small", ROWS, TRAINING, FineTuningConfig(frozen=True))
    moved = changed(base, frozen)
    assert moved
    assert all(name.startswith("encoder") or ".cross_attention." in name for name in moved)


def test_dropout_is_the_decoder_s_only(bert: str) -> None:
    model = Retro(dataclasses.replace(small_run(bert).model, dropout=0.5))
    model.set_dropout(0.25)
    fresh = Retro(dataclasses.replace(small_run(bert).model, dropout=0.25))
    found, expected = (
        {name: module.p for name, module in each.named_modules() if isinstance(module, nn.Dropout)}
        for each in (model, fresh)
    )
    assert found == expected
    assert set(found.values()) == {0.0, 0.25}
    assert all((p == 0) == name.startswith("encoder.") for name, p in found.items())
    assert model.config.dropout == 0.25


def test_other_questions_or_settings_are_another_run(work: Workspace) -> None:
    from retro.errors import ArtifactError

    finetune(work, "same", "small", ROWS, TRAINING)
    finetune(work, "same", "small", ROWS, TRAINING)  # finished: opened
    for questions, tuning in ((ROWS[1:], None), (ROWS, FineTuningConfig(frozen=True))):
        with pytest.raises(ArtifactError, match="questions"):
            finetune(work, "same", "small", questions, TRAINING, tuning)


def test_closed_book_and_what_cannot_be(work: Workspace) -> None:
    warnings: list[str] = []
    rows = [*ROWS, Question("long " * 99, ("x",)), Question("?", ("x",), (Passage("word " * 99),))]
    finetune(work, "warned", "small", rows, TRAINING, warn=warnings.append)
    assert warnings == ["1 question left out: longer than seq_len", f"{len(ROWS) + 1} passages cut"]
    tuned, _ = finetune(work, "closed", "small-baseline", ROWS, TRAINING, FineTuningConfig(closed_book=True))
    assert not tuned.config.uses_retrieval
    with pytest.raises(ConfigError, match="no cross-attention"):
        finetune(work, "x", "small-baseline", ROWS, TRAINING, FineTuningConfig(frozen=True))
    with pytest.raises(ConfigError, match="leave nothing to train"):
        FineTuningConfig(frozen=True, closed_book=True)
    with pytest.raises(ConfigError, match="neither frozen nor closed book"):
        FineTuningConfig(frozen=True, prepended=True)


def test_what_is_left_open_fits_the_run(work: Workspace) -> None:
    assert settled(work, "small").dropout == 0.1
    asked = FineTuningConfig(dropout=0.3, frozen=True)
    assert settled(work, "small", asked) == asked
    # Named or left open, it is the same training.
    finetune(work, "open", "small", ROWS, TRAINING)
    assert finetune(work, "open", "small", ROWS, TRAINING, FineTuningConfig(dropout=0.1))[1].path.exists()
    with pytest.raises(ConfigError, match="expected 0 ≤ dropout < 1"):
        FineTuningConfig(dropout=1.0)


def test_a_baseline_learns_to_read_its_prompt(work: Workspace) -> None:
    """Tuned on one question, it gives its answer to the prompt that it was shown."""
    training = dataclasses.replace(TRAINING, num_steps=30, seq_len=128, learning_rate=3e-2)
    tuning = FineTuningConfig(prepended=True, dropout=0.0)
    tuned, _ = finetune(work, "prompted", "small-baseline", ROWS[:1], training, tuning)
    assert not tuned.facts.retrieves
    tokenizer = Tokenizer.open(work.tokenizer_path)
    frame = Frame(ending=tuple(tokenizer.encode("\n")))
    answerer = Answerer(Prepended(tuned, frame=frame), tokenizer, own_passages(2))
    assert [answer.text for answer in answerer.answer(ROWS[:1])] == ["use 0"]
    with pytest.raises(ArtifactError, match="questions"):
        finetune(work, "prompted", "small-baseline", ROWS[:1], training, FineTuningConfig(dropout=0.0))


def test_the_experiment_compares_all_ways(work: Workspace) -> None:
    found = run_experiment(
        work, "small", ROWS, TRAINING, name="experiment", baseline="small-baseline", fractions=(0.3, 0.2)
    )
    assert found.num_train + found.num_valid + found.num_test == 30
    assert list(found.comparison.scores) == [CLOSED, OPEN, SHUFFLED, CLOSED_BASELINE]
    assert found.comparison.scores[OPEN].recall.estimate == 1.0  # the gold passage is among those read
    assert found.comparison.scores[CLOSED].recall.estimate == 0.0
    assert [len(row) for row in found.comparison.rows()] == [5] * 4
    assert (
        json.loads((work.path / "evaluations" / "experiment.json").read_text())["num_test"] == found.num_test
    )


class WordTokenizer(Tokenizer):
    """One token a letter, so that a process of its own needs no corpus."""

    def __init__(self) -> None:
        super().__init__([b"", b"", *(bytes([code]) for code in range(128))], 0, 1, "letters")

    def encode(self, text: str) -> list[int]:
        return [byte + 2 for byte in text.encode("ascii")]


def train_on_questions(path: Path, **_changes: object) -> None:
    """Four questions a batch, of which one alone has passages: half of the processes see none."""
    tokenizer = WordTokenizer()
    rows = [Question(f"{n}?", ("one",), (Passage("it is one"),) if n == 0 else ()) for n in range(4)]
    config = dataclasses.replace(TRAINING, num_steps=3, batch_size=4, checkpoint_every=3, validate_every=3)
    batches = QuestionBatches(rows, Format(tokenizer, 8), 4, 2, seed=0)
    torch.manual_seed(0)
    model = make_model(small_config(vocab_size=130, chunk_len=8))
    train(model, batches, dataclasses.replace(config, seq_len=batches.seq_len), path, {})


@pytest.mark.slow
def test_two_processes_of_which_one_has_no_passages_do_not_wait_for_each_other(tmp_path: Path) -> None:
    train_on_questions(tmp_path / "one")
    several_processes(tmp_path / "two", train_on_questions)
    assert_close(tmp_path / "two", tmp_path / "one")


def test_what_is_cut_is_cut_around_the_answer(workspace: Workspace) -> None:
    form = Format(workspace.datastore().tokenizer, 16)
    long = "the licence permits anyone to share this software " * 6
    rows = [
        Question(
            "who?", ("nobody else",), (Passage(f"{long} but nobody else {long}", "T"), Passage("short"))
        ),
        Question("why?", ("for merit", "absent"), (Passage(f"{long} for merit", "T"),), target="absent"),
    ]
    first, second = in_view(rows, form)
    assert "nobody else" in first.passages[0].text
    assert first.passages[1] == rows[0].passages[1]
    assert not form.num_cut([first, second], 2)
    # The answer to learn is in no piece: the first is as good as any.
    assert second.passages[0] == form.pieces(rows[1].passages[0])[0]
