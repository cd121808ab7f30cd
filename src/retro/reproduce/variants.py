"""The rows of the paper's ablation table, each as a change of a run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from retro.config import RunConfig
from retro.errors import ConfigError
from retro.recipes import baseline_of


def _layers(*layers: int) -> Callable[[RunConfig], RunConfig]:
    return lambda run: _retrieval(run, cross_attention_layers=layers)


def _retrieval(run: RunConfig, **changes: Any) -> RunConfig:
    assert run.model.retrieval is not None
    return replace(run, model=replace(run.model, retrieval=replace(run.model.retrieval, **changes)))


def _encoder(run: RunConfig, **changes: Any) -> RunConfig:
    assert run.model.retrieval is not None
    return _retrieval(run, encoder=replace(run.model.retrieval.encoder, **changes))


def _with_shared_embeddings(run: RunConfig) -> RunConfig:
    return _retrieval(_encoder(run, d_model=run.model.d_model), share_embeddings=True)


def _neighbours(number: int) -> Callable[[RunConfig], RunConfig]:
    return lambda run: replace(run, training=replace(run.training, num_neighbours=number))


ABLATIONS: dict[str, Callable[[RunConfig], RunConfig]] = {
    "retro": lambda run: run,
    "no-query-conditioning": lambda run: _encoder(run, cross_attention_layers=()),
    "no-cross-attention-positions": lambda run: _retrieval(run, cross_attention_positions=False),
    "shared-embeddings": _with_shared_embeddings,
    "deep-encoder": lambda run: _encoder(run, num_layers=6),
    "neighbours-only": lambda run: _retrieval(run, retrieved="neighbour"),
    "continuations-only": lambda run: _retrieval(run, retrieved="continuation"),
    "no-retrieval": baseline_of,
    "one-neighbour": _neighbours(1),
    "four-neighbours": _neighbours(4),
    "first-layer": _layers(1),
    "middle-layer": lambda run: _layers(run.model.num_layers // 2)(run),
    "last-layer": lambda run: _layers(run.model.num_layers)(run),
    "all-layers": lambda run: _layers(*range(1, run.model.num_layers + 1))(run),
    "every-third-from-1": lambda run: _layers(*range(1, run.model.num_layers + 1, 3))(run),
}
"""Every row of the paper's ablation table as a change of a run."""
CLAIMED = (
    *("retro", "no-query-conditioning", "no-cross-attention-positions"),
    *("neighbours-only", "continuations-only"),
)
"""The rows that claims compare."""


def ablation(run: RunConfig, name: str) -> RunConfig:
    """A run with one thing changed."""
    try:
        return replace(ABLATIONS[name](run), name=f"{run.name}-{name}")
    except KeyError:
        raise ConfigError(f"there is no ablation {name!r}; expected one of {', '.join(ABLATIONS)}") from None
