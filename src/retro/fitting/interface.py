"""Transformers' attention interface: the table of functions that the modules of a base ask to attend.

Under another name in that table, a function of ours is asked instead. It calls the one that stood there, so
the base computes what it did before.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from retro.errors import ConfigError

KNOWN = ("eager", "sdpa")
"""Attentions whose softmax can be computed again beside them."""
WATCHED = "retro_watched_"
"""Before the name of a base's own attention while somebody looks at who asks."""


@dataclass(frozen=True)
class Asked:
    """One call of a base's attention by one of its modules, and what its own function answers if asked."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    prefix: str
    """Of ours, before the name of the base's own attention."""

    @cached_property
    def answer(self) -> tuple[Tensor, Any]:
        """What the base's own function gives, and its weights if it tells them; computed once."""
        function = own_attention(self.module, self.prefix)
        return function(self.module, self.query, self.key, self.value, self.mask, **self.options)

    @property
    def own(self) -> Tensor:
        """As the base has it, (batch, seq, heads, head_dim)."""
        return self.answer[0]

    @property
    def weights(self) -> Any:
        """Those of the base's own function, if it was asked."""
        return self.answer[1] if "answer" in vars(self) else None

    @property
    def num_heads(self) -> int:
        return self.query.shape[1]

    @property
    def scaling(self) -> float:
        found: float | None = self.options.get("scaling")
        return self.query.shape[-1] ** -0.5 if found is None else found

    @property
    def softcap(self) -> float | None:
        """Beyond which no logit goes."""
        return self.options.get("softcap")

    @property
    def sinks(self) -> Tensor | None:
        """A logit of each head that takes part in the softmax and stands for no token."""
        return self.options.get("s_aux")

    @property
    def position_bias(self) -> Tensor | None:
        """What is added to the logits by the distance of tokens."""
        return self.options.get("position_bias")


def own_attention(module: nn.Module, prefix: str) -> Callable[..., tuple[Tensor, Any]]:
    """The function that a module asks when it is not asked for ours."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config: Any = module.config
    # Every file of transformers has a plain one of its own, which is not in the table.
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    name = config._attn_implementation.removeprefix(prefix)
    return ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)


def put_in(model: nn.Module, prefix: str, function: Callable[..., tuple[Tensor, Any]]) -> None:
    """Let the modules of a base ask a function of ours."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    names = names_of(model)
    wrong = next((name for _, name in names if name not in KNOWN), None)
    if wrong is not None and wrong.startswith("retro_"):
        raise ConfigError("the base is fitted already; expected one that is not; call detach() first")
    if wrong is not None:
        raise ConfigError(
            f"the base's attention is {wrong!r}; expected sdpa or eager; "
            'open it with attn_implementation="sdpa"'
        )
    # The names were read before: to set that of a config sets those of the configs inside it as well.
    for config, name in names:
        ALL_ATTENTION_FUNCTIONS.register(prefix + name, function)
        ALL_MASK_ATTENTION_FUNCTIONS.register(prefix + name, ALL_MASK_ATTENTION_FUNCTIONS[name])
        config._attn_implementation = prefix + name


def take_out(model: nn.Module, prefix: str) -> None:
    """Give a base its own attention back."""
    for config, name in names_of(model):
        config._attn_implementation = name.removeprefix(prefix)


def names_of(model: nn.Module) -> list[tuple[Any, str]]:
    """The configs that a base's modules ask, each once, and the attention that each one names."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(getattr(config, "_attn_implementation", None), str):
            found[id(config)] = config
    return [(config, config._attn_implementation) for config in found.values()]


_WATCHING: ContextVar[list[Asked] | None] = ContextVar("watching", default=None)


@contextmanager
def watched_attention(model: nn.Module) -> Iterator[list[Asked]]:
    """Every call of a base's attention through the interface; none if it has one that we do not know."""
    asked: list[Asked] = []
    if any(name not in KNOWN for _, name in names_of(model)):
        yield asked
        return
    token = _WATCHING.set(asked)
    put_in(model, WATCHED, _attend_watched)
    try:
        yield asked
    finally:
        take_out(model, WATCHED)
        _WATCHING.reset(token)


def _attend_watched(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Any]:
    call = Asked(module, query, key, value, attention_mask, options, WATCHED)
    asked = _WATCHING.get()
    if asked is not None:
        asked.append(call)
    return call.answer
