"""GGUF, llama.cpp's form: metadata, a tokenizer, and weights in blocks of a few bits (extra `bases`).

Only what has been compared with other readers is read: a Llama with a byte-level BPE.
"""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retro.catalogue.bases.llama import LAYER, Llama, llama_config, to_halves
from retro.errors import DataError, MissingExtraError

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SPECIAL = 3
"""The type of a token that no text is cut into, such as the end of a turn."""
ADDED = 4
"""The type of a token that was added to the vocabulary by hand."""
SPLITS_DIGITS = {"gpt-2": False, "smollm": True}
"""How a text is parted before byte pairs are merged: as GPT-2 does, with each digit by itself or not."""


def gguf_library() -> Any:
    try:
        return importlib.import_module("gguf")
    except ImportError:
        raise MissingExtraError("gguf", "bases") from None


def read_gguf(file: Path) -> Llama:
    """The Llama of a GGUF file, its weights dequantised to float32."""
    reader = gguf_library().GGUFReader(file)
    facts = dict(reader.fields)

    def fact(key: str) -> Any:
        if key not in facts:
            raise DataError(f"{file} has no {key}; expected a Llama with its tokenizer; name another model")
        return facts[key].contents()

    for key, expected in (
        ("general.architecture", ["llama"]),
        ("tokenizer.ggml.model", ["gpt2"]),
        ("tokenizer.ggml.pre", list(SPLITS_DIGITS)),
    ):
        if fact(key) not in expected:
            raise DataError(
                f"{file} has {key} {fact(key)!r}; expected {' or '.join(expected)}; name another model"
            )
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    num_heads = fact("llama.attention.head_count")
    tokens: list[str] = fact("tokenizer.ggml.tokens")
    special = {name: fact(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding")}
    context = fact("llama.context_length")
    config = llama_config(
        vocab_size=len(tokens),
        hidden_size=fact("llama.embedding_length"),
        intermediate_size=fact("llama.feed_forward_length"),
        num_hidden_layers=fact("llama.block_count"),
        num_attention_heads=num_heads,
        num_key_value_heads=fact("llama.attention.head_count_kv"),
        head_dim=fact("llama.rope.dimension_count"),
        max_position_embeddings=context,
        rms_norm_eps=fact("llama.attention.layer_norm_rms_epsilon"),
        rope_theta=fact("llama.rope.freq_base"),
        tie_word_embeddings="output.weight" not in by_name,
        bos_token_id=special["bos"],
        eos_token_id=special["eos"],
        pad_token_id=special["padding"],
    )

    def weights() -> Iterator[tuple[str, np.ndarray]]:
        dequantize = gguf_library().dequantize
        for name, tensor in by_name.items():
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            if ".attn_q." in name:
                values = to_halves(values, num_heads)
            if ".attn_k." in name:
                values = to_halves(values, config["num_key_value_heads"])
            yield _hugging_face_name(name, file), values

    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[special["bos"]],
        "eos_token": tokens[special["eos"]],
        "pad_token": tokens[special["padding"]],
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    if "tokenizer.chat_template" in facts:
        tokenizer_config["chat_template"] = fact("tokenizer.chat_template")
    kinds = sorted({tensor.tensor_type.name for tensor in reader.tensors})
    return Llama(
        config=config,
        num_weights=len(by_name),
        weights=weights,
        tokenizer=_tokenizer(
            tokens,
            fact("tokenizer.ggml.token_type"),
            fact("tokenizer.ggml.merges"),
            SPLITS_DIGITS[fact("tokenizer.ggml.pre")],
        ),
        tokenizer_config=tokenizer_config,
        about=f"The weights were quantised ({', '.join(kinds)}) when they were published, and are float32 as "
        "dequantised: they are not those that were trained, and no other precision holds them exactly.",
    )


def _hugging_face_name(name: str, file: Path) -> str:
    if name in NAMES:
        return NAMES[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in LAYER_NAMES:
            return LAYER.format(layer) + LAYER_NAMES[part] + ".weight"
    raise DataError(f"{file} has a weight {name!r}; expected those of a Llama alone; name another model")


def _tokenizer(tokens: list[str], types: list[int], merges: list[str], splits_digits: bool) -> str:
    """The `tokenizer.json` of a byte-level BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if splits_digits else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind == SPECIAL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        if kind == ADDED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)
