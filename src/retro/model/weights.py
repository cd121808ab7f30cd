"""A model on disk: `run.json` says what it is, and safetensors hold its weights. No pickle."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from retro.errors import ArtifactError
from retro.model.protocol import TrainableModel
from retro.model.safetensors_file import write_safetensors
from retro.stages.files import write_json
from retro.stages.hints import with_paths

RECORD = "run.json"
WEIGHTS = "model.safetensors"
HUB_CONFIG = "config.json"
"""By which transformers knows what a folder holds. Before there was a record, a model's config was in it;
such folders can still be read."""
FORMAT = 1


def write_model(
    model: TrainableModel, folder: Path, whole: Callable[[Tensor], Tensor] = Tensor.detach, **facts: Any
) -> None:
    """Write weights and record; each file is either whole or absent.

    `whole` gathers a tensor of which this process has only a shard, when its turn comes to be written.
    `facts` go into the record unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(model.state_dict(), folder / WEIGHTS, whole)
    write_json(folder / HUB_CONFIG, hub_config(model))
    # The record comes last: a folder that has one has its weights.
    write_json(folder / RECORD, {"format": FORMAT, "kind": model.kind, "model": model.settings(), **facts})


def hub_config(model: TrainableModel) -> dict[str, Any]:
    """What transformers asks of a model before it opens it: its kind, its ids and its context."""
    facts, kind = model.facts, model.kind
    is_own = kind == "retro"
    # transformers pads what has ended; without an id of the vocabulary for that, with the end itself.
    pad_id = facts.pad_id if facts.pad_id < facts.vocab_size else facts.end_id
    return {
        "model_type": kind if is_own else f"retro-{kind}",
        "architectures": ["RetroForCausalLM" if is_own else f"Retro{kind.capitalize()}ForCausalLM"],
        "vocab_size": facts.vocab_size,
        "chunk_len": facts.chunk_len,
        "pad_token_id": pad_id,
        "eos_token_id": facts.end_id,
        "max_position_embeddings": facts.max_context,
    }


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a model's folder."""
    # A folder older than records holds only the config, and is always a RETRO or its baseline.
    if not (folder / RECORD).exists() and (folder / HUB_CONFIG).exists():
        config = _read_json(folder / HUB_CONFIG)
        if "model_type" not in config:
            return {"format": FORMAT, "kind": "retro", "model": config}
    if not (folder / RECORD).exists():
        raise ArtifactError(
            f"{folder} holds no {RECORD}; expected the folder of a run; "
            f"run: {with_paths('retro train WORK', folder)}"
        )
    record = _read_json(folder / RECORD)
    if record.get("format") != FORMAT:
        raise ArtifactError(
            f"{folder / RECORD} has format {record.get('format')}; expected {FORMAT}; "
            "open it with the version of retro that wrote it"
        )
    if not isinstance(record.get("model"), dict):
        raise ArtifactError(
            f"{folder / RECORD} describes no model; expected its config; train again, or restore the file"
        )
    return record


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ArtifactError(
            f"{path} is not readable JSON; expected a model's config; train again, or restore the file"
        )
    return record


def restore(model: torch.nn.Module, folder: Path) -> None:
    """Read weights into a model of the same shape.

    One without memory, as processes of a training build theirs, stays so: process 0 reads for all.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    tensors = load_tensors(folder / WEIGHTS)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    # Compared here rather than by torch, to say in one line what does not fit.
    if expected != found:
        names = expected.keys() | found.keys()
        wrong = sorted(name for name in names if expected.get(name) != found.get(name))
        raise ArtifactError(
            f"{folder / WEIGHTS} is of another architecture: {wrong[0]} is {found.get(wrong[0], 'missing')}, "
            f"expected {expected.get(wrong[0], 'nothing of that name')} ({len(wrong)} tensors differ); "
            "use the config it was trained with"
        )
    model.load_state_dict(tensors)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors, atomically."""
    write_safetensors(tensors, path)


def count_tensors(folder: Path) -> int:
    """How many tensors a model's weights are, by the head of their file."""
    with _reading(folder / WEIGHTS), safe_open(folder / WEIGHTS, framework="pt") as file:
        return len(file.keys())


def load_tensors(path: Path) -> dict[str, Tensor]:
    with _reading(path):
        return load_file(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what is said of a broken file into one line."""
    try:
        yield
    except FileNotFoundError:
        raise ArtifactError(
            f"{path} does not exist; expected the tensors of a checkpoint; "
            f"run: {with_paths('retro train WORK', path)}"
        ) from None
    except SafetensorError as error:
        raise ArtifactError(
            f"{path} is not a whole safetensors file ({error}); restore it or train again"
        ) from None
