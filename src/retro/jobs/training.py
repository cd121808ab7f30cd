"""Training a run of a workspace: RETRO or baseline from scratch, or RETROfit of a baseline or a base.

This module decides what is trained, on which batches, with which neighbours and under which
checks; `training.loop` does the steps. Fine-tuning on questions is in `questions.finetuning`,
which starts from the same `base_of`.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from retro import shipped
from retro.config import ModelConfig, RetrievalConfig, TrainingConfig
from retro.config.as_json import from_dict
from retro.config.fit import FitConfig
from retro.corpus.tokenizers.huggingface import HuggingFaceTokenizer
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError, ConfigError
from retro.fitting.base import open_base, weights_checksum
from retro.fitting.baseline import retrofit
from retro.fitting.fitted import FittedModel
from retro.fitting.passport import expect_fitting
from retro.generation.sampler import Sampler
from retro.model.protocol import LanguageModel, TrainableModel
from retro.model.weights import WEIGHTS
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.pinned import PinnedNeighbours, open_pinned, pin
from retro.retrieval.retriever import Retriever
from retro.run import Origin, Run, make_model
from retro.stages.files import file_checksum
from retro.stages.hints import quoted
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import (
    SCRATCH,
    Artifact,
    Stage,
    open_artifact,
    partial_of,
    recorded_inputs,
)
from retro.training.batches import PackedBatches
from retro.training.checkpoints import read_checkpoint
from retro.training.distributed import built_apart
from retro.training.loop import Sampling, train
from retro.training.omission import Omission
from retro.workspace import Workspace, open_run

SEQ_LEN = ("seq_len is", "shorten it: --seq-len")
CALIBRATED_ON = 8
"""Sequences that tell what the states of a base are usually like."""


def train_run(
    work: Workspace,
    name: str,
    model_config: ModelConfig,
    config: TrainingConfig,
    progress: Progress = no_progress,
) -> Artifact:
    """Train a model as the run `name`, with the vocabulary of the corpus.

    The initial weights depend on the seed alone.
    """
    path = work.run_path(name)
    store = work.corpus().train
    model_config = dataclasses.replace(
        model_config,
        vocab_size=store.artifact.counts["vocab_size"],
        pad_id=store.pad_id,
        end_id=store.end_id,
    )
    # The weights are drawn below, and must not depend on what ran before in this process.
    torch.manual_seed(config.seed)
    with built_apart():
        model = make_model(model_config)
    return _train(work, path, model, config, {}, progress)


def extend_run(work: Workspace, name: str, num_steps: int, progress: Progress = no_progress) -> Artifact:
    """Go on with a finished run of `train_run` for so many steps more, with its own settings.

    Weights, moments, the place in the data and the learning rate go on as if the run had not ended: the
    schedule is the one it has, and where it has ended the rate stays at its minimum. The run stays as it is
    until the longer one is finished, and then becomes that one.
    """
    longer = extended(work, name, num_steps)
    with built_apart():
        model = work.run(name).run.load()
    return _train(work, work.run_path(name), model, longer, {}, progress, extend=True)


def extended(work: Workspace, name: str, num_steps: int) -> TrainingConfig:
    """The settings of a finished run with so many steps more; a run that cannot be extended is refused."""
    if num_steps < 1:
        raise ConfigError(f"extend is {num_steps}; expected at least 1 step more")
    path = work.run_path(name)
    work.run(name)
    finished = open_artifact(path, "run", f"retro train {work.path} --name {name}")
    if not set(finished.inputs) <= {"tokens", "tokenizer", "neighbours"}:
        start = f" --from {name}" if "base" in finished.inputs else ""
        raise ConfigError(
            f"{path} was made from another run; expected one that was trained from the beginning; "
            f"fit for longer under another name; "
            f"run: retro fit {quoted(work.path)}{start} --name {name}-longer"
        )
    checkpoint = read_checkpoint(path)  # refused before anything is loaded
    config = from_dict(TrainingConfig, finished.config["training"], str(path))
    if checkpoint.step != config.num_steps:
        raise ArtifactError(
            f"{checkpoint.path} is of step {checkpoint.step:,}; expected the last of {path}, "
            f"{config.num_steps:,}; train a longer run under another name"
        )
    return dataclasses.replace(
        config,
        num_steps=config.num_steps + num_steps,
        schedule_steps=config.schedule_steps or config.num_steps,
    )


def fit_run(
    work: Workspace,
    name: str,
    baseline: str,
    retrieval: RetrievalConfig,
    config: TrainingConfig,
    progress: Progress = no_progress,
) -> Artifact:
    """RETROfit a baseline: a run of this workspace, or a run's folder. Its
    weights do not change."""
    path = work.run_path(name)
    with built_apart():
        model, run = base_of(work, baseline)
    if model.facts.retrieves:
        raise ConfigError(
            f"{run.path} has cross-attention already; expected a baseline; "
            f"run: retro train {quoted(work.path)} --baseline"
        )
    torch.manual_seed(config.seed)  # for the new weights alone
    with built_apart():
        fitted = retrofit(model, retrieval)
    return _train(work, path, fitted, config, {"baseline": file_checksum(run.path / WEIGHTS)}, progress)


def fit_base(
    work: Workspace,
    name: str,
    base: str,
    fit: FitConfig,
    config: TrainingConfig,
    progress: Progress = no_progress,
) -> Artifact:
    """RETROfit a pretrained causal LM: one of the catalogue, a folder, or an id of the hub.

    The corpus must be cut by the base's own tokenizer.
    """
    path = work.run_path(name)
    store = work.corpus().train
    model, folder = open_base(base)
    own = HuggingFaceTokenizer(folder)
    if own.fingerprint != store.tokenizer_fingerprint:
        raise ArtifactError(
            f"{work.tokenizer_path} is another tokenizer than that of {base}; expected the base's own; "
            f"cut the text anew: retro ingest SOURCE --base {quoted(base)} --out WORK"
        )
    fit = dataclasses.replace(fit, chunk_len=work.datastore().chunk_len)
    expect_fitting(model, fit)
    torch.manual_seed(config.seed)  # for the new weights alone
    fitted = FittedModel(model, fit, store.pad_id, store.end_id, base)
    fitted.facts.expect_context(config.seq_len, *SEQ_LEN)
    if not any(parameter.requires_grad for parameter in fitted.parameters()):
        raise ConfigError(
            "fit.pointer and fit.tune_heads are off, so there is nothing to train; expected one of them; "
            "reading attention itself needs no training, and retro.fit(model) in Python gives it at once"
        )
    text = PackedBatches(store, fit.chunk_len, config.seq_len, CALIBRATED_ON, config.seed)
    fitted.calibrate(text[0].tokens)
    return _train(work, path, fitted, config, {"base": weights_checksum(model)}, progress)


def fit_further(
    work: Workspace, name: str, start: str, config: TrainingConfig, progress: Progress = no_progress
) -> Artifact:
    """Go on from a fitted model as a run of its own: from a run of this workspace, a run's folder, or the
    name of one that comes with the package. That one stays as it is."""
    path = work.run_path(name)
    model, run = base_of(work, start)
    if not isinstance(model, FittedModel):
        raise ConfigError(
            f"{run.path} is no fitted base; expected one to go on from{shipped.or_named()}; "
            f"begin with a base instead; run: retro fit {quoted(work.path)} --base smollm2"
        )
    model.facts.expect_context(config.seq_len, *SEQ_LEN)
    inputs = {"base": weights_checksum(model.base), "start": file_checksum(run.path / WEIGHTS)}
    return _train(work, path, model, config, inputs, progress)


def run_to_start_from(work: Workspace, name: str) -> Run:
    """A run of this workspace, or the run of a folder; its model is not loaded."""
    opened = open_run(work.path, name)
    # If there is no such run, `Run` raises an error that says what the named folder lacks.
    return opened.run if opened.path.exists() or not Path(name).exists() else Run(name)


def base_of(work: Workspace, name: str) -> tuple[TrainableModel, Run]:
    """A model to start from: a run of this workspace, or a run's folder with the
    same tokenizer."""
    run = run_to_start_from(work, name)
    model = run.load()
    store = work.corpus().train
    vocab_size = store.artifact.counts["vocab_size"]
    # A bare model, saved without a tokenizer, can only be checked by its vocabulary's size.
    known = run.trained_on.get("tokenizer", store.tokenizer_fingerprint)
    if run.base_id:
        run.expect_same_tokenizer(store.tokenizer_fingerprint, str(work.tokens_path))
    if not model.facts.fits(vocab_size) or known != store.tokenizer_fingerprint:
        raise ArtifactError(
            f"{run.path} was trained with another tokenizer ({model.facts.vocab_size} tokens) than "
            f"{work.tokenizer_path} ({vocab_size} tokens); expected the same; ingest this corpus with that "
            f"tokenizer, or train a baseline here; run: retro train {quoted(work.path)} --baseline"
        )
    return model, run


def _train(
    work: Workspace,
    path: Path,
    model: TrainableModel,
    config: TrainingConfig,
    more_inputs: dict[str, str],
    progress: Progress,
    extend: bool = False,
) -> Artifact:
    """Give a model its batches, and train it into the run at `path`."""
    corpus = work.corpus()
    num_neighbours = config.num_neighbours if model.facts.retrieves else 0
    neighbours = _neighbours(work, path, model) if num_neighbours else {}

    def batches_of(
        store: TokenStore,
        split: str,
        seed: int,
        mixture: dict[str, float],
        omission: Omission | None = None,
    ) -> PackedBatches:
        return PackedBatches(
            store,
            model.facts.chunk_len,
            config.seq_len,
            config.batch_size,
            seed,
            neighbours.get(split),
            num_neighbours,
            mixture,
            omission,
        )

    # What the run is made of. If any of these differ, an unfinished training is
    # refused, not continued.
    inputs = {
        "tokens": corpus.train.fingerprint,
        "tokenizer": corpus.train.tokenizer_fingerprint,
        **more_inputs,
    }
    if num_neighbours:
        # A finished run belongs to the neighbours it was trained with, whatever was added since.
        known = recorded_inputs(path).get("neighbours") if path.exists() and not extend else None
        inputs["neighbours"] = known or neighbours["train"].fingerprint

    def keep_neighbours(stage: Stage) -> None:
        for split, found in neighbours.items():
            # Pinned ones come from this very stage, so there is nothing to copy.
            if not isinstance(found, PinnedNeighbours):
                pin(found, _pinned_folder(stage.path, split))

    validation = None
    if corpus.valid is not None:
        validation = batches_of(corpus.valid, "valid", 0, {})  # the same for every seed
    return train(
        model,
        batches_of(corpus.train, "train", config.seed, config.mixture, Omission.of(config)),
        config,
        path,
        inputs,
        validation,
        progress,
        _sampling(work, config, num_neighbours),
        Origin(
            tokenizer=work.tokenizer_path,
            data=sizes_by_source(corpus.train),
            datastore_version=neighbours["train"].version if num_neighbours else 0,
        ),
        keep_neighbours,
        extend,
    )


def _neighbours(work: Workspace, path: Path, model: TrainableModel) -> dict[str, Neighbours]:
    """The neighbours of the splits that training reads.

    A run goes on with the neighbours it began with.
    """
    found, expected = work.datastore().chunk_len, model.facts.chunk_len
    if found != expected:
        raise ConfigError(
            f"{work.datastore_path} has chunks of {found} tokens; expected the model's {expected}"
        )
    # Training never looks at the test split, so its neighbours may still be missing.
    splits = [split for split in work.corpus().stores() if split != "test"]
    begun = partial_of(path)
    neighbours: dict[str, Neighbours] = {}
    for split in splits:
        pinned = open_pinned(_pinned_folder(begun, split), work.store(split), work.datastore())
        neighbours[split] = pinned or work.neighbours(split)
    return neighbours


def _pinned_folder(run: Path, split: str) -> Path:
    """Where an unfinished run keeps the neighbours of a split."""
    return run / SCRATCH / "neighbours" / split


def _sampling(work: Workspace, config: TrainingConfig, num_neighbours: int) -> Sampling | None:
    """The function that continues the config's prompt during training, if it asks for that.

    A baseline samples without a datastore.
    """
    if not config.sample_every:
        return None
    tokenizer = Tokenizer.open(work.tokenizer_path)
    retriever = Retriever(work.datastore(), num_neighbours) if num_neighbours else None

    def sample(model: LanguageModel) -> str:
        sampler = Sampler(model, retriever, tokenizer)
        return tokenizer.decode(
            sampler.generate(config.sample_prompt, max_tokens=config.sample_tokens).tokens
        )

    return sample


def sizes_by_source(store: TokenStore) -> dict[str, Any]:
    """Documents, tokens and bytes of each source, for a run's card."""
    return dict(sorted(store.by_source().items()))
