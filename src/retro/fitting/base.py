"""A pretrained causal LM: opening it, and what is found out about it before it is fitted."""

import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from retro import catalogue
from retro.errors import ArtifactError, ConfigError, DataError
from retro.fitting.places import Places, find_places, probe_tokens, run_probe, tensor_of

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
        with _without_bars():
            model: nn.Module = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, trust_remote_code=False, use_safetensors=True
            )
    except (ValueError, OSError, KeyError) as error:
        raise DataError(
            f"{name} is no causal LM that can be opened ({_first_line(error)}); "
            "expected one, with safetensors; fit another model"
        ) from None
    return model, folder


@contextmanager
def _without_bars() -> Iterator[None]:
    """Without transformers' own progress, which would stand between ours and what is said."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True)
class Known:
    """What is found out about a base before it is fitted, by running it."""

    places: Places
    decoder: nn.Module
    """The part that gives the last states."""
    head: Head
    last_width: int
    """The width of the last states, which is not always that of the residual stream."""
    takes_positions: bool
    relative: bool
    """Whether text may stand at any position."""


def look_at(model: nn.Module, places: Places | None = None) -> Known:
    """Find out what fitting needs to know, or refuse a model that cannot be fitted in any way."""
    places = places or find_places(model)
    decoder = decoder_of(model, places)
    head, last_width = find_head(model, decoder)
    return Known(
        places, decoder, head, last_width, positions_count_from_zero(model), positions_are_relative(model)
    )


def decoder_of(model: nn.Module, places: Places) -> nn.Module:
    """The part of a causal LM that gives its last states: the outermost one that holds the layers and is run.

    Some models call a part of a part, and what lies between is never run.
    """
    held = {id(layer) for layer in places.layers}
    holders = [
        module
        for module in model.modules()
        if module is not model and held <= {id(part) for part in module.modules()}
    ]
    run: list[nn.Module] = []
    handles = [holder.register_forward_hook(lambda module, _, __: run.append(module)) for holder in holders]
    try:
        run_probe(model)
    finally:
        for handle in handles:
            handle.remove()
    if not run:
        raise ConfigError(f"{type(model).__name__} has no decoder; expected a causal LM; fit another model")
    return run[-1]  # the outermost ends last


def find_head(model: nn.Module, decoder: nn.Module) -> tuple[Head, int]:
    """How logits follow from the last states, and how wide these are.

    It is what the model does behind its decoder: an output matrix, perhaps with modules before it, perhaps
    scaled or capped by a number of the config. Found by trying, so that a model which does something else is
    refused rather than read wrongly.
    """
    loose: Any = model
    seen: list[Any] = []
    behind: list[nn.Module] = []
    handles = [
        decoder.register_forward_hook(lambda _, __, output: seen.append(_last(output))),
        *(
            child.register_forward_hook(lambda module, _, __: behind.append(module) if seen else None)
            for child in model.children()
            if child is not decoder
        ),
    ]
    try:
        expected = run_probe(model)
    finally:
        for handle in handles:
            handle.remove()
    if len(seen) == 1 and isinstance(seen[0], Tensor) and seen[0].shape[:2] == expected.shape[:2] and behind:
        numbers = _numbers(loose.config.get_text_config())
        with torch.no_grad():
            head, off = _nearest(partial(_one_by_one, tuple(behind)), numbers, seen[0], expected)
        if off < 10 * torch.finfo(expected.dtype).eps * float(expected.abs().max()):
            return head, seen[0].shape[-1]
    raise ConfigError(
        f"{type(model).__name__} does something unknown between its last states and its logits; "
        "expected an output matrix, perhaps scaled or capped; fit another model"
    )


def _one_by_one(modules: tuple[nn.Module, ...], states: Tensor) -> Tensor:
    # In a tuple, and never the module itself: it would become a part of the model that holds it.
    for module in modules:
        states = module(states)
    return states


def _numbers(config: Any) -> list[float]:
    """The numbers of a config that logits might be scaled or capped by."""
    values = [value for value in vars(config).values() if type(value) in (int, float)]
    width = getattr(config, "hidden_size", None)
    # Some divide by the width in units of another one.
    ratios = [width / value for value in values if width and value and type(value) is int]
    return [number for number in dict.fromkeys([*map(float, values), *ratios]) if number > 0 and number != 1]


def _nearest(matrix: Head, numbers: list[float], states: Tensor, expected: Tensor) -> tuple[Head, float]:
    """The head that gives these logits, to the bit if there is one, and how far off it is.

    Small logits are hardly changed by a cap, so near enough is not good enough while there is a nearer one.
    """
    best: tuple[Head, float] = (matrix, float("inf"))
    if matrix(states).shape != expected.shape:
        return best
    for head in _heads(matrix, numbers):
        off = float((head(states) - expected).abs().max())
        if off < best[1]:
            best = (head, off)
        if off == 0:
            break
    return best


def _heads(matrix: Head, numbers: list[float]) -> Iterator[Head]:
    yield matrix
    for number in numbers:
        yield partial(_times, matrix, number)
        yield partial(_over, matrix, number)
        yield partial(_capped, matrix, number)
        yield partial(_of_smaller, matrix, number)


def _times(matrix: Head, factor: float, states: Tensor) -> Tensor:
    return matrix(states) * factor


def _over(matrix: Head, divisor: float, states: Tensor) -> Tensor:
    return matrix(states) / divisor


def _of_smaller(matrix: Head, divisor: float, states: Tensor) -> Tensor:
    return matrix(states / divisor)


def _capped(matrix: Head, cap: float, states: Tensor) -> Tensor:
    return torch.tanh(matrix(states) / cap) * cap


def _last(output: Any) -> Tensor:
    states = getattr(output, "last_hidden_state", None)
    return tensor_of(output) if states is None else states


@torch.no_grad()
def positions_count_from_zero(model: nn.Module) -> bool:
    """Whether positions can be given, and mean what the model itself would count: 0 for the first token."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    loose: Any = model
    tokens = probe_tokens(model, 1, 8)
    places = torch.arange(8, device=tokens.device)[None]
    given, counted = (
        loose(input_ids=tokens, use_cache=False, **more).logits for more in ({"position_ids": places}, {})
    )
    return bool(torch.allclose(given, counted, rtol=1e-4, atol=1e-4 * float(counted.abs().max())))


@torch.no_grad()
def positions_are_relative(model: nn.Module) -> bool:
    """Whether text may stand anywhere, even before position 0: only distances matter, as with rotations."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    loose: Any = model
    tokens = probe_tokens(model, 1, 8)
    positions = torch.arange(8, device=tokens.device)[None]
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
