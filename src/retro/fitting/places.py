"""Where a Hugging Face causal LM can be joined: its layers, and the place between attention and feed-forward.

Nothing here goes by a model's name. What is found is found by looking at the modules and by running them, and
what cannot be done right is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from retro.errors import ConfigError

PROBE_LEN = 12


@dataclass(frozen=True)
class Places:
    """The parts of a base that retrieval is joined to."""

    layers: tuple[nn.Module, ...]
    attentions: tuple[nn.Module, ...]
    """The self-attention of each layer."""
    writers: tuple[nn.Module, ...] | None
    """The module of each layer whose output is added to the residual stream between attention and
    feed-forward; None in parallel blocks, which have no such place."""


def tensor_of(output: Any) -> Tensor:
    """The hidden states among what a module returns: it, or the first of a tuple."""
    return output[0] if isinstance(output, tuple) else output


def replaced(output: Any, states: Tensor) -> Any:
    """The same output with other hidden states."""
    return (states, *output[1:]) if isinstance(output, tuple) else states


def find_places(model: nn.Module) -> Places:
    """Look for the layers of a causal LM, and for the places in them."""
    layers = _find_layers(model)
    attentions = tuple(_attention_of(layer) for layer in layers)
    return Places(layers, attentions, _find_writers(model, layers, attentions))


def _find_layers(model: nn.Module) -> tuple[nn.Module, ...]:
    """The list of `num_hidden_layers` modules that a forward pass goes through one after another."""
    config: Any = model.config
    depth = getattr(config.get_text_config(), "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return tuple(module)
    raise ConfigError(
        f"{type(model).__name__} has no list of {depth} layers; expected a decoder; fit another model"
    )


def _attention_of(layer: nn.Module) -> nn.Module:
    """The self-attention of a layer: its child of that name, or of a class of that name."""
    children = dict(layer.named_children())
    # A block may hold its attention one module deeper, as GPT-2's and Falcon's do not, but GPT-Neo's does.
    for name in ("self_attn", "attn", "attention", "self_attention"):
        if name in children:
            inner = dict(children[name].named_children())
            return inner.get("attention", children[name]) if "attention" in inner else children[name]
    for child in children.values():
        if "attention" in type(child).__name__.lower():
            return child
    raise ConfigError(
        f"{type(layer).__name__} has no self-attention that is found ({', '.join(children)}); "
        "expected a transformer's layer; fit another model"
    )


def _find_writers(
    model: nn.Module, layers: tuple[nn.Module, ...], attentions: tuple[nn.Module, ...]
) -> tuple[nn.Module, ...] | None:
    """The modules whose output goes into the residual stream before the feed-forward layer reads it.

    A candidate is right if, with a change δ of its output, the sum h + output moves by δ, and the layer's
    output by something else than δ: the feed-forward layer has then seen the change. In a parallel block the
    output moves by δ alone.
    """
    for candidate in _candidates(layers[0], attentions[0]):
        names = dict(layers[0].named_modules())
        name = next(key for key, module in names.items() if module is candidate)
        if _is_between(model, layers[0], candidate):
            return tuple(layer.get_submodule(name) for layer in layers)
    return None


def _candidates(layer: nn.Module, attention: nn.Module) -> Iterator[nn.Module]:
    """The attention, what wraps it, and the norms that some blocks put behind it."""
    yield attention
    for child in layer.children():
        if child is not attention and (
            attention in child.modules() or "norm" in type(child).__name__.lower()
        ):
            yield child


@torch.no_grad()
def _is_between(model: nn.Module, layer: nn.Module, candidate: nn.Module) -> bool:
    before, after = _probe(model, layer, candidate, 0.0), _probe(model, layer, candidate, 0.05)
    if before is None or after is None:
        return False
    (entered, written, left), (_, _, moved) = before, after
    if written.shape != entered.shape:
        return False
    generator = torch.Generator().manual_seed(1)
    change = 0.05 * torch.randn(written.shape, generator=generator).to(written)
    seen = (moved - left) - change
    # Parallel, or behind the feed-forward layer: the change comes out as it is.
    if seen.abs().max() < 1e-4 * change.abs().max():
        return False
    # With the feed-forward layer silent, the stream is the input, what was written, and the change.
    return _is_residual(model, layer, candidate, change)


def _probe(
    model: nn.Module, layer: nn.Module, candidate: nn.Module, scale: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """What enters the layer, what the candidate writes, and what leaves the layer; its output is changed."""
    seen: dict[str, Tensor] = {}

    def enter(module: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> None:
        seen["in"] = states_of(arguments, keywords)

    def write(module: nn.Module, arguments: tuple, output: Any) -> Any:
        states = tensor_of(output)
        seen["written"] = states
        generator = torch.Generator().manual_seed(1)
        change = scale * torch.randn(states.shape, generator=generator).to(states)
        return replaced(output, states + change)

    def leave(module: nn.Module, arguments: tuple, output: Any) -> None:
        seen["out"] = tensor_of(output)

    handles = [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        candidate.register_forward_hook(write),
        layer.register_forward_hook(leave),
    ]
    try:
        run_probe(model)
    finally:
        for handle in handles:
            handle.remove()
    if not {"in", "written", "out"} <= seen.keys():
        return None
    return seen["in"], seen["written"], seen["out"]


def _is_residual(model: nn.Module, layer: nn.Module, candidate: nn.Module, change: Tensor) -> bool:
    """Whether the stream that the feed-forward layer reads is the input and what the candidate wrote.

    The norms behind the candidate are watched: one of them must read exactly that sum.
    """
    entered: list[Tensor] = []
    written: list[Tensor] = []
    read: list[Tensor] = []
    norms = [
        module
        for name, module in layer.named_modules()
        if module is not candidate and "norm" in type(module).__name__.lower()
    ]
    handles = [
        layer.register_forward_pre_hook(
            lambda _, arguments, keywords: entered.append(states_of(arguments, keywords)), with_kwargs=True
        ),
        candidate.register_forward_hook(lambda _, __, output: written.append(tensor_of(output))),
        *(
            norm.register_forward_pre_hook(
                lambda _, arguments: read.append(arguments[0]) if written and arguments else None
            )
            for norm in norms
        ),
    ]
    try:
        run_probe(model)
    finally:
        for handle in handles:
            handle.remove()
    if not entered or not written:
        return False
    expected = entered[0] + written[0]
    size = expected.abs().max().clamp_min(1e-6)
    return any(
        found.shape == expected.shape and (found - expected).abs().max() < 1e-4 * size for found in read
    )


def states_of(arguments: tuple, keywords: dict[str, Any]) -> Tensor:
    """The hidden states that a layer is given, first or by name."""
    states = arguments[0] if arguments else keywords["hidden_states"]
    assert isinstance(states, Tensor)
    return states


@torch.no_grad()
def run_probe(model: nn.Module, length: int = PROBE_LEN) -> Tensor:
    """The logits of some made-up text."""
    config: Any = model.config
    size = config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(min(4, size - 1), size, (2, length), generator=generator)
    device = next(model.parameters()).device
    logits: Tensor = model(input_ids=tokens.to(device), use_cache=False).logits
    return logits


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, and as before afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
