"""How the modules of a base learn, during one forward pass, what there is to read.

The hooks of a fitted model are always there, and do nothing unless a *reading* is active in the thread that
runs the base: without neighbours the base computes exactly what it did before. The reading is a context
variable, so that two threads which generate from one model never meet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from retro.errors import ConfigError
from retro.fitting.interface import Asked
from retro.fitting.places import Places, replaced, states_of, tensor_of


class Reading:
    """What the hooks ask during a forward pass, layers counted from 0. By default it changes nothing."""

    def __init__(self, joints: "Joints") -> None:
        self.joints = joints
        self.states: dict[int, Tensor] = {}
        """What left the layers that are watched."""
        self.entered: dict[int, Tensor] = {}
        """What entered the layers with cross-attention, until their attention has written."""

    def leave(self, layer: int, states: Tensor) -> None:
        """Called with what leaves a layer that is watched."""
        self.states[layer] = states

    def attend(self, layer: int, asked: Asked) -> Tensor:
        """What self-attention gives, neighbours included, in the shape of `asked.own`."""
        return asked.own

    def cross(self, layer: int, x: Tensor) -> Tensor | None:
        """What cross-attention adds to the residual stream `x`; None if nothing."""
        return None


_ACTIVE: ContextVar[Reading | None] = ContextVar("reading", default=None)


@contextmanager
def active(reading: Reading | None) -> Iterator[None]:
    token = _ACTIVE.set(reading)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


class Joints:
    """The hooks of one fitted model in its base: put in, and taken out again."""

    def __init__(
        self, base: nn.Module, places: Places, watched: tuple[int, ...], crossed: tuple[int, ...]
    ) -> None:
        """`watched` layers leave their states with the reading; `crossed` ones have cross-attention."""
        self.base = base
        self.number = {
            id(module): index for index, module in enumerate(places.attentions) if module is not None
        }
        self._handles: list[Any] = []
        for layer in watched:
            self._handles.append(places.layers[layer].register_forward_hook(self._leave(layer)))
        for layer in crossed:
            writer = places.writers[layer]
            if writer is None:
                self._handles.append(places.layers[layer].register_forward_hook(self._after(layer)))
                continue
            before = self._before(layer)
            self._handles.append(places.layers[layer].register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(writer.register_forward_hook(self._between(layer)))

    def reading(self) -> Reading | None:
        """The active reading, if it is one of this model's."""
        found = _ACTIVE.get()
        return found if found is not None and found.joints is self else None

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _leave(self, layer: int) -> Any:
        def hook(module: nn.Module, arguments: tuple, output: Any) -> None:
            reading = self.reading()
            if reading is not None:
                reading.leave(layer, tensor_of(output))

        return hook

    def _before(self, layer: int) -> Any:
        def hook(module: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> None:
            reading = self.reading()
            if reading is not None:
                reading.entered[layer] = states_of(arguments, keywords)

        return hook

    def _between(self, layer: int) -> Any:
        def hook(module: nn.Module, arguments: tuple, output: Any) -> Any:
            reading = self.reading()
            if reading is None:
                return None
            written = tensor_of(output)
            # The block adds its input to what is written, so this is FFW(CCA(ATTN(h))) of the paper.
            added = reading.cross(layer, reading.entered.pop(layer) + written)
            return None if added is None else replaced(output, written + added)

        return hook

    def _after(self, layer: int) -> Any:
        def hook(module: nn.Module, arguments: tuple, output: Any) -> Any:
            reading = self.reading()
            if reading is None:
                return None
            states = tensor_of(output)
            added = reading.cross(layer, states)
            return None if added is None else replaced(output, states + added)

        return hook


def expect_hookable(model: nn.Module) -> None:
    """Refuse what hides a base's own interface, and what recomputes layers outside the forward pass, where no
    reading is active."""
    if type(model).__module__.partition(".")[0] == "peft":
        raise ConfigError(
            f"a {type(model).__name__} was given; expected the model inside it, whose layers hold the "
            "adapters; give model.get_base_model()"
        )
    if getattr(model, "is_gradient_checkpointing", False):
        raise ConfigError(
            "the base recomputes its layers (gradient checkpointing); expected a base that keeps them; "
            "call base.gradient_checkpointing_disable(), and set activation_checkpointing for what is fitted"
        )
