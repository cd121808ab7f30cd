"""Write docs/reference/bases.md: the passport of a small random model of every kind that transformers knows.

A model's kind is what its config is called; nothing else here goes by it. A config is made small by the names
of its fields, and what cannot be made small that way is counted and named.
"""

import dataclasses
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from retro.fitting.passport import AFTER, ESSENTIAL, READINGS, Passport, inspect_base
from retro.fitting.places import run_probe

PAGE = Path(__file__).parent / "reference" / "bases.md"
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "attn_layer_indices": [1],
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Fields by their name, or by the one that `attribute_map` gives them. Weights are large enough to matter."""
ENDINGS: dict[str, int] = {
    "n_group": 1,
    "topk_group": 1,
    "experts_per_tok": 2,
    "experts_per_token": 2,
    "top_k_experts": 2,
    "top_k": 2,
    "topk": 2,
    "k": 2,
    "experts": 4,
    "rotary_dim": 8,
    "head_dim": 8,
    "heads": 4,
    "groups": 2,
    "layers": 2,
    "_rank": 8,
    "_dim": 32,
    "_size": 32,
    "vocab_size_per_layer_input": 96,
    "width": 32,
}
"""By the end of a field's name, for numbers that are larger than this; the first that fits counts."""
DEPTHS = (4, 6, 5, 2)
"""Layers to try: some kinds need one layer of each sort."""
SHAPES: tuple[dict[str, Any], ...] = ({}, {"num_key_value_heads": 4}, {"head_dim": 16}, {"head_dim": None})
"""Heads to try, as kinds derive one number from another in several ways."""
MOST_PARAMETERS = 2_000_000
DECODER = " as decoder"
"""Behind a kind whose config has to be told that it is one."""
HEADINGS = ("kind", "cross-attention", "attention", "pointer", "cache", "left padding", "why not")


class NotBuiltError(Exception):
    """A kind of which no small model can be made by the names of its config's fields."""


def kinds() -> Iterator[str]:
    """Every kind of causal LM; encoders that can be told to be decoders twice."""
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        yield kind
        fields = {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[kind])}
        # Decoders of an encoder and a decoder have the field as well, and need not be told.
        if fields.get("is_decoder") is False and not fields.get("is_encoder_decoder"):
            yield kind + DECODER


def small_config(cls: type, depth: int, shape: dict[str, Any]) -> Any:
    """A config with everything small that the names of its fields tell to be a size."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    names = getattr(cls, "attribute_map", {})
    given: dict[str, Any] = {}
    for name, field in fields.items():
        if isinstance(field.default, int) and not isinstance(field.default, bool):
            sizes = (size for end, size in ENDINGS.items() if name.endswith(end))
            given[name] = min(field.default, next(sizes, field.default))
    types = [[["global", "local"], depth // 2]]
    wanted = {**SIZES, "num_hidden_layers": depth, "attention_types": types, **shape}
    for name, value in wanted.items():
        if name in fields:
            given[name] = value
        elif names.get(name) in fields:
            given[names[name]] = value
    for name, sub in getattr(cls, "sub_configs", {}).items():
        if dataclasses.is_dataclass(sub) and sub is not cls:
            given[name] = small_config(sub, depth, {})
    return cls(**given)


def small_model(kind: str) -> nn.Module:
    """A small random causal LM of a kind."""
    decides = {"is_decoder": True} if kind.endswith(DECODER) else {}
    cls = CONFIG_MAPPING[kind.removesuffix(DECODER)]
    for depth in DEPTHS:
        for shape in SHAPES:
            try:
                return _build(small_config(cls, depth, shape | decides))
            except Exception:  # noqa: BLE001 — a kind may fail in any way; the next shape is tried
                continue
    raise NotBuiltError(kind)


def _build(config: Any) -> nn.Module:
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    cls = found[0] if isinstance(found, tuple) else found
    with torch.device("meta"):
        try:
            size = sum(parameter.numel() for parameter in cls(config).parameters())
        except AttributeError:  # a model of text alone, whose config also knows pictures
            config = config.get_text_config()
            size = sum(parameter.numel() for parameter in cls(config).parameters())
    if size > MOST_PARAMETERS:
        raise NotBuiltError(f"{size:,} parameters")
    torch.manual_seed(0)
    model: nn.Module = cls(config).eval()
    run_probe(model)
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers says about configs that nobody would train."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(level)


def passport_of(kind: str) -> Passport:
    with quiet():
        return inspect_base(small_model(kind))


def row(kind: str, passport: Passport) -> tuple[str, ...]:
    """The verdicts of one kind, and the reasons of those that refuse."""
    refused = [f"{check.name}: {check.reason}" for check in passport.checks if check.is_refused]
    # How far off something is depends on the machine.
    why = re.sub(r" by [\d.e+-]+ of their size", "", "; ".join(refused))
    if any(check.name in ESSENTIAL and check.is_refused for check in passport.checks):
        return (f"`{kind}`", *["refused"] * 3, "–", "–", why)
    cells = []
    for name in (READINGS["cross-attention"], READINGS["attention"], "pointer", "cache", "left padding"):
        verdict = passport[name].verdict if name in passport else "–"
        if name == READINGS["cross-attention"] and verdict != "refused":
            verdict = "after the layer" if verdict == AFTER else "between"
        cells.append(verdict)
    return (f"`{kind}`", *cells, why)


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page(rows: Sequence[tuple[str, ...]], not_built: Sequence[str]) -> str:
    """The whole page: counts, the table, and what could not be tried."""
    places = Counter(cells[1] for cells in rows)
    attention = sum(cells[2] == "works" for cells in rows)
    pointer = sum(cells[3] == "works" for cells in rows)
    cache = sum(cells[4] == "works" for cells in rows)
    padding = sum(cells[5] == "works" for cells in rows)
    nothing = sum(set(cells[1:4]) == {"refused"} for cells in rows)
    counts = [
        (str(len(rows)), "kinds were tried"),
        (str(places["between"]), "take the paper's cross-attention between attention and feed-forward"),
        (str(places["after the layer"]), "take it after the layer, or in some layers after"),
        (str(attention), "read neighbours by their own self-attention"),
        (str(pointer), "take the pointer"),
        (str(cache), "can be sampled from, token by token"),
        (str(padding), "also in batches of prompts of several lengths"),
        (str(nothing), "cannot be fitted at all"),
        (str(len(not_built)), "could not be built small, and were not tried"),
    ]
    return "\n".join(
        [
            "# Bases",
            "",
            f"Written by `docs/make_bases.py`, with transformers {transformers.__version__}. Do not edit.",
            "",
            "Every kind of causal LM that transformers knows, as a small model with random weights, and what",
            "`retro fit --check` finds out about it. Encoders are tried as they are, and as decoders. A",
            "model of yours may be configured otherwise: its own passport counts. The checks are explained",
            "in [the guide](../guides/bases.md#what-can-be-fitted).",
            "",
            "|  |  |",
            "|---:|---|",
            *(line(cells) for cells in counts),
            "",
            line(HEADINGS),
            "|" + "---|" * len(HEADINGS),
            *(line(cells) for cells in rows),
            "",
            f"Not built small: {', '.join(f'`{kind}`' for kind in not_built)}.",
            "",
        ]
    )


def written() -> str:
    """Try every kind, and write the page."""
    rows = []
    not_built = []
    for kind in kinds():
        try:
            rows.append(row(kind, passport_of(kind)))
        except NotBuiltError:
            not_built.append(kind)
    return page(rows, not_built)


if __name__ == "__main__":
    PAGE.write_text(written())
