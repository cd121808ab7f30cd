"""A pretrained causal LM: opening it, and what is found out about it before it is fitted."""

import hashlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from retro import catalogue
from retro.errors import ArtifactError, ConfigError, DataError
from retro.fitting.places import Places, run_probe, tensor_of

Head = Callable[[Tensor], Tensor]
"""From the last states to logits."""


def open_base(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Path]:
    """A causal LM by its name in the catalogue, its folder, or its id on the hub, and where its files are.

    Code that a repository brings along is never run.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = catalogue.folder_of_base(name)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError, KeyError) as error:
        raise DataError(
            f"{name} cannot be opened ({_first_line(error)}); expected a causal LM that transformers knows "
            "without code of its own; fit another model"
        ) from None
    if config.model_type == "retro" or config.model_type.startswith("retro-"):
        raise DataError(
            f"{name} is a model of retro, which has retrieval or can be given it by retro fit --baseline; "
            "expected a pretrained base; name the one that it was fitted to"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise DataError(
            f"{name} is an encoder and a decoder ({config.model_type}); expected a causal LM; "
            "fit another model"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise DataError(
            f"{name} is quantised; expected weights that can be read; fit the model it was made of"
        )
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, trust_remote_code=False, use_safetensors=True
        )
    except (ValueError, OSError, KeyError) as error:
        raise DataError(
            f"{name} is no causal LM that can be opened ({_first_line(error)}); "
            "expected one, with safetensors; fit another model"
        ) from None
    return model, folder


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def find_head(model: nn.Module) -> Head:
    """How logits follow from the last states: the output matrix, and what some models do with it.

    Found by trying, so that a model which does something else is refused rather than read wrongly.
    """
    loose: Any = model
    text = loose.config.get_text_config()
    matrix = loose.get_output_embeddings()
    decoder = loose.get_decoder()
    if matrix is None or decoder is None:
        raise ConfigError(
            f"{type(model).__name__} has no decoder with an output matrix; expected a causal LM; "
            "fit another model"
        )
    cap = getattr(text, "final_logit_softcapping", None)
    factors = [
        getattr(text, "logit_scale", None),
        *(1 / value for value in [getattr(text, "logits_scaling", None)] if value),
    ]
    # Never the module itself: it would become a part of the model that holds it.
    heads: list[Head] = [lambda states: matrix(states)]
    if cap:
        heads.append(lambda states: torch.tanh(matrix(states) / cap) * cap)
    heads += [partial(_scaled, matrix, factor) for factor in factors if factor is not None]
    seen: list[Tensor] = []
    handle = decoder.register_forward_hook(lambda _, __, output: seen.append(_last(output)))
    try:
        expected = run_probe(model)
    finally:
        handle.remove()
    with torch.no_grad():
        for head in heads:
            if torch.allclose(head(seen[0]), expected, rtol=1e-5, atol=1e-5):
                return head
    raise ConfigError(
        f"{type(model).__name__} does something unknown between its last states and its logits; "
        "expected an output matrix, perhaps scaled or capped; fit another model"
    )


def _scaled(matrix: Any, factor: float, states: Tensor) -> Tensor:
    scaled: Tensor = matrix(states) * factor
    return scaled


def _last(output: Any) -> Tensor:
    states = getattr(output, "last_hidden_state", None)
    return tensor_of(output) if states is None else states


def width_of(model: nn.Module, places: Places) -> int:
    """The width of the residual stream, which must be (batch, time, width) in every layer."""
    shapes: list[tuple[int, ...]] = []
    handles = [
        layer.register_forward_hook(lambda _, __, output: shapes.append(tuple(tensor_of(output).shape)))
        for layer in places.layers
    ]
    try:
        logits = run_probe(model)
    finally:
        for handle in handles:
            handle.remove()
    found = set(shapes)
    if len(found) != 1 or len(shapes) != len(places.layers) or len(shapes[0]) != 3:
        raise ConfigError(
            f"the layers of {type(model).__name__} give states of the shapes {sorted(found)} in "
            f"{len(shapes)} calls; expected (batch, time, width) once a layer; fit another model"
        )
    if shapes[0][:2] != tuple(logits.shape[:2]):
        raise ConfigError(
            f"the layers of {type(model).__name__} give {shapes[0]} for logits of {tuple(logits.shape)}; "
            "expected one state for each token; fit another model"
        )
    return shapes[0][2]


@torch.no_grad()
def positions_are_relative(model: nn.Module) -> bool:
    """Whether text may stand anywhere, even before position 0: only distances matter, as with rotations."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    generator = torch.Generator().manual_seed(0)
    loose: Any = model
    size = loose.config.get_text_config().vocab_size
    device = next(model.parameters()).device
    tokens = torch.randint(0, size, (1, 8), generator=generator).to(device)
    positions = torch.arange(8, device=device)[None]
    try:
        plain, moved = (
            loose(input_ids=tokens, position_ids=places, use_cache=False).logits
            for places in (positions, positions - 5)
        )
    except (IndexError, RuntimeError):  # a table of positions has none below 0
        return False
    # Half precision rounds more than any position would explain away in float32.
    tolerance = max(1e-3, 8 * torch.finfo(plain.dtype).eps)
    return bool(torch.allclose(plain, moved, rtol=tolerance, atol=tolerance * float(plain.abs().max())))


def describe_base(model: nn.Module, base_id: str) -> dict[str, Any]:
    """Which model it is, for the record of a run."""
    loose: Any = model
    if any(type(module).__module__.partition(".")[0] == "peft" for module in model.modules()):
        raise ConfigError(
            "the base has adapters (PEFT), which its folder does not hold; expected a base that can be "
            "opened again; call merge_and_unload() and save it before it is fitted"
        )
    text = loose.config.get_text_config()
    return {
        "id": base_id,
        "checksum": weights_checksum(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "type": loose.config.model_type,
        "num_layers": text.num_hidden_layers,
        "d_model": getattr(text, "hidden_size", None),
        "vocab_size": text.vocab_size,
    }


def weights_checksum(model: nn.Module) -> str:
    """A checksum of all weights, whatever files they came from."""
    known: str | None = getattr(model, "_retro_checksum", None)
    if known is not None:
        return known
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def expect_base(model: nn.Module, record: dict[str, Any], where: str) -> None:
    """Refuse another base than the one that was fitted."""
    found = weights_checksum(model)
    if found != record.get("checksum"):
        raise ArtifactError(
            f"{where} was fitted to the base {record.get('id')} with checksum {record.get('checksum')}, "
            f"and the one that is there has {found}; expected the same weights; restore it, or fit again"
        )
