"""A Llama as it is read from any form: its config, its weights by their Hugging Face names, its tokenizer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

LAYER = "model.layers.{}."


@dataclass(frozen=True)
class Llama:
    """What a folder is made of. The weights are made one at a time, when they are asked for."""

    config: dict[str, Any]
    num_weights: int
    weights: Callable[[], Iterator[tuple[str, np.ndarray]]]
    tokenizer: str
    """`tokenizer.json`."""
    tokenizer_config: dict[str, Any]
    about: str
    """What a reader of the notice should know about the weights, in a sentence."""


def to_halves(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a query or key projection from pairs to halves.

    Rotary positions turn two rows of a head together. Meta's layout, which llama.cpp and llama2.c keep, has
    the two side by side (0, 1), (2, 3) …; Hugging Face has one in each half of the head: row i with row
    i + head_dim / 2.
    """
    rows, width = weights.shape
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, width))


def llama_config(**sizes: Any) -> dict[str, Any]:
    """A `config.json` with what all the Llamas here have in common."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "dtype": "float32",
        **sizes,
    }
