"""A run: the self-contained folder of a model.

It holds `run.json` (what the model is and what it was trained on), the weights, the
tokenizer, and a card for people. It can be moved, shared, and sampled or scored with any
datastore of the same tokenizer.
"""

import json
import re
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
from retro.catalogue import hub
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
from retro.stages.files import DAMAGED, atomic_write, file_checksum, read_object
from retro.stages.hints import quoted
from retro.stages.stage import CARD, MANIFEST
from retro.wording import counted

TOKENIZER = "tokenizer"
DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
SPDX = re.compile(r"[A-Za-z0-9.+-]+")
"""A licence by its short name alone, as the hub knows it."""
USE_RETRO = """\
## Use

```bash
retro sample NAME "The first words" --datastore DATASTORE
retro evaluate NAME --datastore DATASTORE --on my-texts/
```

```python
import retro

model = retro.load("NAME")
retriever = retro.Retriever(retro.Datastore.open("DATASTORE"))
print(retro.Sampler(model, retriever).generate("The first words").text)
```

A datastore fits if it was built with this run's tokenizer, which is in `tokenizer/`.

With transformers:

```python
import retro
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("NAME")
model.retriever = retro.Retriever(retro.Datastore.open("DATASTORE"))  # then model.generate(…), pipeline(…)
```
"""
USE_BASELINE = """\
## Use

```bash
retro sample NAME "The first words"
```

```python
import retro

run = retro.Run("NAME")
print(retro.Sampler(run.load(), tokenizer=run.tokenizer).generate("The first words").text)
```
"""


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
        base = self.record["model"].get("base")
        return str(base.get("id", "")) if isinstance(base, dict) else ""

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
    model: TrainableModel, folder: Path, tensors: dict[str, Tensor], counts: dict[str, Any], origin: Origin
) -> None:
    """Write a run into a folder: tokenizer, weights and record, card."""
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
    write_model(model, folder, tensors, **facts)
    write_card(folder)


def write_card(folder: Path, scores: dict[str, str] | None = None) -> None:
    """Write the card: what the run is, what it was trained on, how good it is, how to use it."""
    record = read_record(folder)
    try:
        # The card is written before the stage's folder gets its final name.
        card = _card(folder.name.removesuffix(".partial"), record, scores or {})
    except DAMAGED as error:
        raise ArtifactError(
            f"{folder / RECORD} is damaged ({error}); expected what the run was trained on; restore it"
        ) from None
    with atomic_write(folder / CARD) as file:
        file.write(card.encode(errors="replace"))


def _card(name: str, record: dict[str, Any], scores: dict[str, str]) -> str:
    # From the record alone, so that a card is written without loading the model.
    # A fitted base retrieves always, and a model of our own if it has a config for it.
    retrieves = "base" in record["model"] or bool(record["model"].get("retrieval"))
    parts = [_front_matter(record, retrieves), f"# {name}\n", _what_it_is(record, retrieves)]
    if record.get("data"):
        rows = [
            f"| {source} | {size['documents']:,} | {size['tokens']:,} | {size['bytes']:,} |"
            for source, size in record["data"].items()
        ]
        head = "## Data\n\n| source | documents | tokens | bytes |\n|---|---|---|---|\n"
        parts.append(head + "\n".join(rows) + "\n")
    if scores:
        rows = [f"| {what} | {value} |" for what, value in scores.items()]
        parts.append("## Scores\n\n| | bits per byte |\n|---|---|\n" + "\n".join(rows) + "\n")
    parts.append(USE_RETRO.replace("NAME", name) if retrieves else USE_BASELINE.replace("NAME", name))
    return "\n".join(parts)


def _front_matter(record: dict[str, Any], retrieves: bool) -> str:
    """What the hub reads of a card: what the model is based on, under which licence, made of which data."""
    facts: dict[str, Any] = {"library_name": "retro", "pipeline_tag": "text-generation"}
    base = str(record["model"]["base"].get("id")) if "base" in record["model"] else ""
    entry = catalogue.ENTRIES.get(base)
    if entry is not None and SPDX.fullmatch(entry.licence):
        facts["license"] = entry.licence.lower()
    # A folder on somebody's disk means nothing to others, and a name of our catalogue nothing to the hub.
    on_hub = entry.hub_id if entry is not None else base
    if hub.is_id(on_hub):
        facts["base_model"] = on_hub
        facts["base_model_relation"] = "adapter"
    sources = [str(source) for source in record.get("data") or {}]
    facts["tags"] = ["retro", *(["retrieval"] if retrieves else []), *(["retrofit"] if base else [])]
    # Only what has an owner is a dataset of the hub.
    facts["datasets"] = [source for source in sources if "/" in source and hub.is_id(source)]
    facts["sources"] = [source for source in sources if source not in facts["datasets"]]
    # JSON is YAML, and quotes whatever a name holds.
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in facts.items() if value]
    return "\n".join(["---", *lines, "---", ""])


def _what_it_is(record: dict[str, Any], retrieves: bool) -> str:
    model, training, counts = record["model"], record.get("training", {}), record.get("counts", {})
    if "base" in model:
        return _what_was_fitted(model, training, counts, record)
    layers = ", ".join(map(str, model["retrieval"]["cross_attention_layers"])) if retrieves else "none"
    matched = model["retrieval"].get("pointer_layer") if retrieves else 0
    parameters, trained = counts.get("parameters", 0), counts.get("trained", 0)
    batch = f"{training.get('batch_size')} × {training.get('seq_len')}"
    losses = [f"{name} {value:.4f}" for name, value in counts.get("validation", {}).items()]
    rows = {
        "decoder": f"{counted(model.get('num_layers', 0), 'layer')} of width {model.get('d_model')}",
        "cross-attention in layers": layers,
        "pointer": f"states of layer {matched}" if matched else "",
        "parameters": f"{parameters:,} without embeddings, {trained:,} trained",
        "vocabulary": f"{model.get('vocab_size', 0):,} tokens; chunks of {model.get('chunk_len')}",
        "steps": f"{counts.get('steps', 0):,} of {batch} tokens",
        "neighbours in training": str(training.get("num_neighbours")) if retrieves else "none",
        "validation loss": ", ".join(losses),
        "trained on": _trained_on(record),
        "written by": f"retro {record.get('retro', '')}",
    }
    what = "A RETRO: a language model that reads neighbours from a datastore."
    if not retrieves:
        what = "A baseline: a language model without retrieval."
    # A card shows no empty rows.
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items() if value)
    return f"{what}\n\n| | |\n|---|---|\n{table}\n"


def _what_was_fitted(
    model: dict[str, Any], training: dict[str, Any], counts: dict[str, Any], record: dict[str, Any]
) -> str:
    base, fit = model["base"], model["fit"]
    losses = [f"{name} {value:.4f}" for name, value in counts.get("validation", {}).items()]
    batch = f"{training.get('batch_size')} × {training.get('seq_len')}"
    rows = {
        "base": f"{base.get('id')} ({base.get('type')}, {counted(base.get('num_layers', 0), 'layer')} "
        f"of width {base.get('d_model')}), checksum {base.get('checksum')}; not part of this folder",
        "neighbours are read by": f"{fit['reading']} in {counted(len(fit['layers']), 'layer')}",
        "pointer": f"states of layer {fit['pointer_layer']}" if fit["pointer"] else "none",
        "trained weights": f"{counts.get('trained', 0):,}",
        "vocabulary": f"{base.get('vocab_size', 0):,} tokens; chunks of {fit['chunk_len']}",
        "steps": f"{counts.get('steps', 0):,} of {batch} tokens",
        "neighbours in training": str(training.get("num_neighbours", "")),
        "validation loss": ", ".join(losses),
        "trained on": _trained_on(record),
        "written by": f"retro {record.get('retro', '')}",
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items() if value)
    what = "A pretrained language model, RETROfitted: frozen, it reads neighbours from a datastore."
    return f"{what}\n\n| | |\n|---|---|\n{table}\n"


def _trained_on(record: dict[str, Any]) -> str:
    """The tokens and the version of the datastore, by which a later state of either is told from it."""
    tokens = record.get("trained_on", {}).get("tokens")
    version = record.get("datastore_version")
    parts = [f"tokens {tokens}" if tokens else "", f"version {version} of the datastore" if version else ""]
    return ", ".join(filter(None, parts))
