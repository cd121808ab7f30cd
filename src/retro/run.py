"""A run: the self-contained folder of a model.

It holds `run.json` (what the model is and what it was trained on), the weights, the
tokenizer, and a card for people. It can be moved, shared, and sampled or scored with any
datastore of the same tokenizer.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import retro
from retro import catalogue, shipped
from retro.card import TOKENIZER, base_id_of, write_card
from retro.catalogue.models import TOKENIZER_FILES
from retro.config import ModelConfig
from retro.config.as_json import from_dict
from retro.config.fit import FitConfig
from retro.corpus.tokenizers.huggingface import MODEL_FILE, HuggingFaceTokenizer
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ArtifactError
from retro.fitting.base import expect_base, open_base
from retro.fitting.fitted import FittedModel
from retro.model.protocol import TrainableModel
from retro.model.retro import Retro
from retro.model.weights import RECORD, WEIGHTS, count_tensors, read_record, restore, write_model
from retro.stages.files import DAMAGED, file_checksum, read_object
from retro.stages.hints import quoted
from retro.stages.stage import MANIFEST
from retro.wording import counted

DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a run comes from, for its record and its card."""

    tokenizer: Path | None = None
    """The folder of the tokenizer that goes with the weights."""
    trained_on: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the data."""
    training: dict[str, Any] = field(default_factory=dict)
    """The resolved training config."""
    data: dict[str, Any] = field(default_factory=dict)
    """What text it was: documents, tokens and bytes of each source."""
    datastore_version: int = 0
    """The version of the datastore that its neighbours are of; 0 without retrieval."""


def make_model(config: ModelConfig) -> TrainableModel:
    """A model with fresh weights."""
    return Retro(config)


def _load_retro(folder: Path, record: dict[str, Any]) -> TrainableModel:
    config = from_dict(ModelConfig, record["model"], str(folder / RECORD))
    # A damaged record may ask for any number of layers, which would take as long as there are.
    depths = [config.num_layers, config.retrieval.encoder.num_layers if config.retrieval else 0]
    if max(depths) > count_tensors(folder):
        raise ArtifactError(
            f"{folder / RECORD} describes {counted(max(depths), 'layer')}; "
            "expected fewer than there are tensors; restore it, or train again"
        )
    try:
        model = Retro(config)
    except (RuntimeError, TypeError, OverflowError) as error:
        reason = (str(error).splitlines() or ["too large"])[0]
        raise ArtifactError(
            f"{folder / RECORD} describes a model that cannot be made ({reason}); "
            "expected the one that the weights are of; restore it, or train again"
        ) from None
    restore(model, folder)
    return model


def _load_fitted(folder: Path, record: dict[str, Any]) -> TrainableModel:
    settings = record["model"]
    try:
        base_id = str(settings["base"]["id"])
        # Records older than this field are of models whose heads do not weigh likeness.
        config = from_dict(FitConfig, {"weigh_likeness": False, **settings["fit"]}, str(folder / RECORD))
        pad_id, end_id = settings["pad_id"], settings["end_id"]
        # Records older than this field are of bases in float32.
        dtype = DTYPES[settings["base"].get("dtype", "float32")]
    except DAMAGED as error:
        raise ArtifactError(
            f"{folder / RECORD} is damaged ({error}); expected a base and what was fitted; "
            "restore it, or fit again"
        ) from None
    base, _ = open_base(base_id, dtype)
    expect_base(base, settings["base"], str(folder))
    model = FittedModel(base, config, pad_id, end_id, base_id)
    restore(model, folder)
    return model


KINDS: dict[str, Callable[[Path, dict[str, Any]], TrainableModel]] = {
    Retro.kind: _load_retro,
    FittedModel.kind: _load_fitted,
}
"""How to open each kind of model."""


class Run:
    """A run's folder, opened."""

    def __init__(self, path: str | Path, tokenizer: Path | None = None) -> None:
        """`path` may be the name of a model that comes with the package; `tokenizer` is for older runs, which
        do not carry their own."""
        self.path = shipped.find(path) or Path(path)
        if not self.path.exists():
            raise ArtifactError(
                f"{self.path} does not exist; expected the folder of a run{shipped.or_named()}; "
                "run: retro train WORK"
            )
        self.record = read_record(self.path)
        self._tokenizer_path = self.path / TOKENIZER if self.has_own_tokenizer else tokenizer

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the run: the training stage's fingerprint, or else a checksum
        of the weights."""
        # A folder saved with `model.save` has no stage, and no manifest.
        if (self.path / MANIFEST).exists():
            return str(self._manifest.get("fingerprint"))
        return file_checksum(self.path / WEIGHTS)[:16]

    @property
    def base_id(self) -> str:
        """The base that a fitted run stands on, by its id; empty for a model of our own."""
        return base_id_of(self.record)

    @property
    def retrieves(self) -> bool:
        """Whether its model reads neighbours, as the record says; nothing is loaded for it."""
        if self.record.get("kind") != Retro.kind:
            return True  # what is fitted to a base reads neighbours, or lets them vote
        return from_dict(ModelConfig, self.record["model"], str(self.path / RECORD)).uses_retrieval

    @property
    def has_own_tokenizer(self) -> bool:
        """Whether there is one in the folder. What comes with the package leaves it to the base."""
        return (self.path / TOKENIZER).exists()

    @cached_property
    def _tokenizer_of_base(self) -> Path | None:
        if self.has_own_tokenizer or not self.base_id:
            return None
        folder = catalogue.folder_of_base(self.base_id, files=TOKENIZER_FILES)
        return folder if (folder / MODEL_FILE).exists() else None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer_of_base is not None:
            return HuggingFaceTokenizer(self._tokenizer_of_base)
        if self._tokenizer_path is None:
            raise ArtifactError(
                f"{self.path} carries no tokenizer; expected one in {self.path / TOKENIZER}; "
                "open it in the workspace that it was trained in, or train it again"
            )
        return Tokenizer.open(self._tokenizer_path)

    @property
    def carries_tokenizer(self) -> bool:
        return self._tokenizer_path is not None or self._tokenizer_of_base is not None

    @property
    def trained_on(self) -> dict[str, str]:
        """Fingerprints of the data, if they were recorded."""
        # Older records lack it, but the stage's manifest has it.
        if "trained_on" not in self.record and (self.path / MANIFEST).exists():
            found = self._manifest.get("inputs")
        else:
            # Bare models have neither.
            found = self.record.get("trained_on")
        return found if isinstance(found, dict) else {}

    @property
    def _manifest(self) -> dict[str, Any]:
        return read_object(self.path / MANIFEST, "restore it, or train the run again")

    def load(self) -> TrainableModel:
        """The model, ready to use."""
        kind = self.record.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            raise ArtifactError(
                f"{self.path / RECORD} is of the kind {kind!r}; expected {' or '.join(KINDS)}; "
                "open it with the version of retro that wrote it"
            )
        # Without dropout; training switches it on again.
        return KINDS[kind](self.path, self.record).eval()

    def expect_same_tokenizer(self, fingerprint: str, what: str) -> None:
        """Refuse what another tokenizer has tokenised: the ids would stand for other text."""
        if self.tokenizer.fingerprint != fingerprint:
            of_base = self._tokenizer_of_base is not None
            option = f"--base {quoted(self.base_id)}" if of_base else f"--tokenizer {self.path / TOKENIZER}"
            raise ArtifactError(
                f"{what} was made with tokenizer {fingerprint}, and {self.path} was trained with "
                f"{self.tokenizer.fingerprint}; expected the same; "
                f"build one with the run's own: retro ingest SOURCE {option}"
            )


def load(path: str | Path) -> TrainableModel:
    """The model of a run's folder, or of one that comes with the package, by its name."""
    return Run(path).load()


def write_run(
    model: TrainableModel,
    folder: Path,
    counts: dict[str, Any],
    origin: Origin,
    whole: Callable[[Tensor], Tensor] = Tensor.detach,
) -> None:
    """Write a run into a folder: tokenizer, weights and record, card.

    `whole` gathers a tensor of which this process has only a shard.
    """
    facts: dict[str, Any] = {
        "retro": retro.__version__,
        "trained_on": origin.trained_on,
        "training": origin.training,
        "data": origin.data,
        "counts": counts,
    }
    if origin.datastore_version:
        facts["datastore_version"] = origin.datastore_version
    if origin.tokenizer is not None:
        # A resumed stage may hold the copy already.
        shutil.copytree(origin.tokenizer, folder / TOKENIZER, dirs_exist_ok=True)
    write_model(model, folder, whole, **facts)
    write_card(folder)
