"""The card of a run, for people and for the hub: what the run is, what it was trained on, how to use it."""

import json
import re
from pathlib import Path
from typing import Any

from retro import catalogue
from retro.catalogue import hub
from retro.errors import ArtifactError
from retro.model.weights import RECORD, read_record
from retro.stages.files import DAMAGED, atomic_write
from retro.stages.stage import CARD
from retro.wording import counted

TOKENIZER = "tokenizer"
"""The folder in a run that holds its tokenizer."""
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

A datastore fits if it was built with this run's tokenizer, HOW_IT_IS_CUT.

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


def base_id_of(record: dict[str, Any]) -> str:
    """The base that a fitted run stands on, by its id; empty for a model of our own."""
    base = record["model"].get("base")
    return str(base.get("id", "")) if isinstance(base, dict) else ""


def write_card(folder: Path, scores: dict[str, str] | None = None) -> None:
    """Write the card: what the run is, what it was trained on, how good it is, how to use it."""
    record = read_record(folder)
    try:
        # The card is written before the stage's folder gets its final name.
        card = _card(folder.name.removesuffix(".partial"), record, scores or {})
        base = base_id_of(record)
        # What comes with the package leaves the tokenizer to its base.
        own = not base or (folder / TOKENIZER).exists()
        where = "which is in `tokenizer/`" if own else f"its base's: `retro ingest SOURCE --base {base}`"
        card = card.replace("HOW_IT_IS_CUT", where)
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
