"""Where a Hugging Face causal LM can be joined: its layers, and the place between attention and feed-forward.

Nothing here goes by a model's name, or by the names of its parts. What is found is found by running the model
and watching what its modules read and write, and what cannot be done right is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from retro.config.fit import FitConfig
from retro.errors import ConfigError
from retro.fitting.interface import Asked, watched_attention

PROBE_LEN = 12
CHANGE = 0.05
"""How much a module's output is changed, to see what becomes of it."""


class StreamError(ConfigError):
    """The layers are there, but what they pass on is no residual stream."""


@dataclass(frozen=True)
class Places:
    """The parts of a base that retrieval is joined to."""

    layers: tuple[nn.Module, ...]
    attentions: tuple[nn.Module | None, ...]
    """The module of each layer that asks transformers' attention interface; None where none does, or where
    several do."""
    num_asking: int
    """How many layers ask it at all."""
    num_heads: int
    """The most heads that such a module has; 0 if there is none."""
    writers: tuple[nn.Module | None, ...]
    """The module of each layer whose output is added to the residual stream between attention and
    feed-forward; None in parallel blocks, which have no such place."""
    width: int
    """The width of the residual stream."""

    @property
    def reading_layers(self) -> tuple[int, ...]:
        """The layers, counted from 1, whose attention can read neighbours."""
        return tuple(number for number, module in enumerate(self.attentions, 1) if module is not None)

    @property
    def num_between(self) -> int:
        """How many layers have a place between attention and feed-forward."""
        return sum(module is not None for module in self.writers)


def tensor_of(output: Any) -> Tensor:
    """The hidden states among what a module returns: it, or the first of a tuple or list."""
    return output[0] if isinstance(output, tuple | list) and output else output


def replaced(output: Any, states: Tensor) -> Any:
    """The same output with other hidden states."""
    if isinstance(output, list):
        return [states, *output[1:]]
    return (states, *output[1:]) if isinstance(output, tuple) else states


def find_places(model: nn.Module) -> Places:
    """Look for the layers of a causal LM, and for the places in them."""
    layers, width = _find_layers(model)
    calls = _find_attentions(model, layers)
    shared = _shared(layers)
    asked = {
        index: found[0]
        for index, found in calls.items()
        if len(found) == 1 and id(found[0].module) not in shared
    }
    attentions = tuple(asked[index].module if index in asked else None for index in range(len(layers)))
    num_heads = max((call.num_heads for call in asked.values()), default=0)
    return Places(layers, attentions, len(calls), num_heads, _find_writers(model, layers), width)


# The layers


@dataclass
class _Run:
    """What the members of one list of modules did in a forward pass."""

    members: nn.ModuleList
    order: list[int] = field(default_factory=list)
    entered: list[Tensor | None] = field(default_factory=list)
    left: list[Tensor | None] = field(default_factory=list)

    def order_fault(self) -> str | None:
        """Why they are no layers; None if they are."""
        if self.order == list(range(len(self.members))):
            return None
        return f"its {len(self.members)} layers are run in the order {_some(self.order)}, not one by one"

    def stream_fault(self, shape: tuple[int, ...]) -> str | None:
        """Why they do not pass on one residual stream; None if they do."""
        shapes = {tuple(states.shape) if states is not None else () for states in (*self.entered, *self.left)}
        found = shapes.pop()
        if shapes or len(found) != 3 or found[:2] != shape:
            return f"its layers pass on states of the shape {found} for {shape} tokens"
        for number in range(1, len(self.members)):
            given, taken = self.left[number - 1], self.entered[number]
            assert given is not None
            assert taken is not None
            if not torch.equal(given, taken):
                return f"its layer {number + 1} does not read what layer {number} gives"
        return None


def _some(order: list[int]) -> str:
    shown = ", ".join(str(index + 1) for index in order[:6])
    return f"({shown}{', …' if len(order) > 6 else ''})"


def _find_layers(model: nn.Module) -> tuple[tuple[nn.Module, ...], int]:
    """The modules of a list that a forward pass goes through one after another, and the stream's width."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    runs = [_Run(members) for members in lists]
    handles = [
        handle
        for run in runs
        for index, module in enumerate(run.members)
        for handle in _watch(run, index, module)
    ]
    try:
        shape = tuple(run_probe(model).shape[:2])
    finally:
        for handle in handles:
            handle.remove()
    config: Any = model.config
    depth = getattr(config.get_text_config(), "num_hidden_layers", None)
    # The right number first, then the longest: lists of experts and of heads lie inside a layer.
    runs.sort(key=lambda run: (len(run.members) != depth, -len(run.members)))
    ordered = [run for run in runs if run.order_fault() is None]
    for run in ordered:
        if run.stream_fault(shape) is None:
            assert run.left[0] is not None
            return tuple(run.members), run.left[0].shape[-1]
    expected = "expected a stack with one residual stream (batch, time, width); fit another model"
    name = type(model).__name__
    if ordered:
        raise StreamError(f"{name} has no one residual stream: {ordered[0].stream_fault(shape)}; {expected}")
    reason = runs[0].order_fault() if runs else "it has no list of modules"
    raise ConfigError(f"{name} has no layers that can be joined: {reason}; {expected}")


def _watch(run: _Run, index: int, module: nn.Module) -> list[Any]:
    def enter(_: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> None:
        run.order.append(index)
        run.entered.append(_kept(_states_of(arguments, keywords)))

    def leave(_: nn.Module, __: tuple, output: Any) -> None:
        run.left.append(_kept(tensor_of(output)))

    return [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave),
    ]


def _kept(states: Any) -> Tensor | None:
    # A copy, as what follows may change it in place.
    return states.detach().clone() if isinstance(states, Tensor) else None


# Who asks the attention interface


def _find_attentions(model: nn.Module, layers: tuple[nn.Module, ...]) -> dict[int, list[Asked]]:
    """By layer, from 0, the calls of its modules through the attention interface."""
    inside = {id(module): index for index, layer in enumerate(layers) for module in layer.modules()}
    with watched_attention(model) as asked:
        run_probe(model)
    found: dict[int, list[Asked]] = {}
    for call in asked:
        index = inside.get(id(call.module))
        if index is not None:
            found.setdefault(index, []).append(call)
    return found


def _shared(layers: tuple[nn.Module, ...]) -> set[int]:
    """Modules that stand in more than one layer, where nobody could tell which one is asking."""
    seen: set[int] = set()
    twice: set[int] = set()
    for layer in layers:
        own = {id(module) for module in layer.modules()}
        twice |= own & seen
        seen |= own
    return twice


# The place between attention and feed-forward


def _find_writers(model: nn.Module, layers: tuple[nn.Module, ...]) -> tuple[nn.Module | None, ...]:
    """The module of each layer whose output goes into the stream before the feed-forward layer reads it.

    Layers that are built alike have it in the same place, so one of each kind is looked at.
    """
    names: dict[tuple, str | None] = {}
    writers: list[nn.Module | None] = []
    for layer in layers:
        built = tuple((name, type(module)) for name, module in layer.named_modules())
        if built not in names:
            names[built] = _writer_of(model, layer)
        name = names[built]
        writers.append(None if name is None else layer.get_submodule(name))
    return tuple(writers)


def _writer_of(model: nn.Module, layer: nn.Module) -> str | None:
    """The first module, from the outside, after which another reads the layer's input plus its output.

    And that other must matter: if the output is changed by δ, what leaves the layer must move by something
    else than δ. In a parallel block, and behind the feed-forward layer, it moves by δ alone.
    """
    seen = _look(model, layer)
    if seen is None:
        return None
    for name in seen.writers():
        change = CHANGE * _noise(seen.left)
        moved = _look(model, layer, name, change)
        if moved is not None and (moved.left - seen.left - change).abs().max() > 1e-4 * change.abs().max():
            return name
    return None


@dataclass
class _Seen:
    """What the modules of one layer read and wrote, in the order of time."""

    entered: Tensor
    left: Tensor
    read: list[tuple[int, str, Tensor]]
    written: list[tuple[int, str, Tensor]]

    def writers(self) -> list[str]:
        found = []
        times = [name for _, name, _ in self.written]
        for when, name, output in self.written:
            if output.shape != self.entered.shape or times.count(name) != 1:
                continue
            stream = self.entered + output
            # Near enough to tell the sum from the input alone, whatever is written.
            near = 1e-3 * output.abs().max() + 2 * torch.finfo(stream.dtype).eps * stream.abs().max()
            # Some layers fold batch and time into one dimension for the feed-forward layer.
            if any(
                later > when
                and states.numel() == stream.numel()
                and (states.reshape(stream.shape) - stream).abs().max() < near
                for later, _, states in self.read
            ):
                found.append(name)
        return sorted(found, key=lambda name: name.count("."))


def _look(
    model: nn.Module, layer: nn.Module, changed: str | None = None, change: Tensor | None = None
) -> _Seen | None:
    """Run the model and watch one layer, with the output of one of its modules changed."""
    clock = iter(range(1 << 30))
    ends: dict[str, Tensor] = {}
    read: list[tuple[int, str, Tensor]] = []
    written: list[tuple[int, str, Tensor]] = []

    def reads(name: str) -> Any:
        def hook(_: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> None:
            states = _kept(_states_of(arguments, keywords))
            if states is not None:
                read.append((next(clock), name, states))

        return hook

    def writes(name: str) -> Any:
        def hook(_: nn.Module, __: tuple, output: Any) -> Any:
            states = tensor_of(output)
            if name == changed and change is not None and isinstance(states, Tensor):
                return replaced(output, states + change)
            if isinstance(states, Tensor) and changed is None:
                written.append((next(clock), name, states.clone()))
            return None

        return hook

    def enter(_: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> None:
        ends["entered"] = states_of(arguments, keywords).clone()

    def leave(_: nn.Module, __: tuple, output: Any) -> None:
        ends["left"] = tensor_of(output).clone()

    handles = [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        layer.register_forward_hook(leave),
    ]
    for name, module in layer.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(reads(name), with_kwargs=True))
            handles.append(module.register_forward_hook(writes(name)))
    try:
        run_probe(model)
    finally:
        for handle in handles:
            handle.remove()
    if not {"entered", "left"} <= ends.keys():
        return None
    return _Seen(ends["entered"], ends["left"], read, written)


def _noise(like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(1)).to(like)


# Running a model


def _states_of(arguments: tuple, keywords: dict[str, Any]) -> Any:
    return arguments[0] if arguments else keywords.get("hidden_states")


def states_of(arguments: tuple, keywords: dict[str, Any]) -> Tensor:
    """The hidden states that a layer is given, first or by name."""
    states = _states_of(arguments, keywords)
    assert isinstance(states, Tensor)
    return states


def probe_tokens(model: nn.Module, batch: int, length: int) -> Tensor:
    """Some made-up text, without the first ids, which often mean something."""
    config: Any = model.config
    size = config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(min(4, size - 1), size, (batch, length), generator=generator)
    return tokens.to(next(model.parameters()).device)


@torch.no_grad()
def run_probe(model: nn.Module, length: int = PROBE_LEN) -> Tensor:
    """The logits of some made-up text."""
    logits: Tensor = model(input_ids=probe_tokens(model, 2, length), use_cache=False).logits
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


def settled(config: FitConfig, places: Places) -> FitConfig:
    """The config with its layers chosen among those of a base that can do what is asked of them."""
    if config.reading != "attention":
        return config.settled(len(places.layers))
    able = places.reading_layers
    if not able:
        raise ConfigError(
            "no layer of the base attends through transformers' attention interface; "
            "expected one that does, for reading attention; set reading to cross-attention or none"
        )
    config = replace(config, layers=config.layers or able).settled(len(places.layers))
    unable = [layer for layer in config.layers if layer not in able]
    if unable:
        raise ConfigError(
            f"layers has {unable[0]}, which has no self-attention that can read neighbours; "
            f"expected some of {', '.join(map(str, able))}"
        )
    return config
