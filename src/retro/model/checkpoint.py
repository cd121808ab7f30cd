"""A model on disk: a folder with `config.json` and `model.safetensors`. Never pickle."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from retro.config import ModelConfig
from retro.config_json import from_dict, to_dict
from retro.errors import ArtifactError
from retro.model.retro import Retro
from retro.stages.files import atomic_path, write_json

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save(model: Retro, path: Path, tensors: dict[str, torch.Tensor] | None = None) -> None:
    """Write weights and config; a file is either whole or not there. `tensors` are the weights where the model holds only shards."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = model.state_dict() if tensors is None else tensors
    save_tensors({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path / WEIGHTS)
    write_json(path / CONFIG, to_dict(model.config))


def save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write tensors as safetensors, atomically."""
    with atomic_path(path) as temporary:
        save_file(tensors, temporary)


def load(path: str | Path) -> Retro:
    """Read a model that `save` wrote."""
    path = Path(path)
    config = load_config(path)
    model = Retro(config)
    restore(model, path)
    return model.eval()


def load_config(path: Path) -> ModelConfig:
    try:
        return from_dict(ModelConfig, json.loads((path / CONFIG).read_text()), str(path / CONFIG))
    except FileNotFoundError:
        raise ArtifactError(f"{path} holds no {CONFIG}; expected a model folder; run: retro train") from None
    except json.JSONDecodeError:
        raise ArtifactError(
            f"{path / CONFIG} is not readable JSON; expected a model's config; train again, or restore the file"
        ) from None


def restore(model: Retro, path: Path) -> None:
    """Read weights into a model of the same shape."""
    tensors = load_tensors(path / WEIGHTS)
    expected, found = (
        {name: tuple(tensor.shape) for name, tensor in state.items()}
        for state in (model.state_dict(), tensors)
    )
    if expected != found:
        wrong = sorted(
            name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
        )
        raise ArtifactError(
            f"{path / WEIGHTS} is of another architecture: {wrong[0]} is {found.get(wrong[0], 'missing')}, "
            f"expected {expected.get(wrong[0], 'nothing of that name')} ({len(wrong)} tensors differ); use the config it was trained with"
        )
    model.load_state_dict(tensors)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ArtifactError(
            f"{path} does not exist; expected the tensors of a checkpoint; run: retro train"
        ) from None
    except SafetensorError as error:
        raise ArtifactError(
            f"{path} is not a whole safetensors file ({error}); restore it or train again"
        ) from None
