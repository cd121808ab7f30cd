"""llama2.c's form: seven sizes, then float32 weights, and a tokenizer with a score for every piece.

The package has both in one file, the model before the tokenizer.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from retro.catalogue.bases.llama import LAYER, Llama, llama_config, to_halves
from retro.errors import DataError

HEADER = struct.Struct("<7i")
PIECE = struct.Struct("<fi")
"""Before each piece: its score, and its length in bytes."""
UNKNOWN, BEGIN, END = range(3)
"""The first ids. Stories were trained one after the other with a begin before each and no end, so the begin
is what closes a story; llama2.c stops at it, too."""
FIRST_BYTE = 3
"""The id of byte 0; the other bytes follow."""
FIRST_PIECE = FIRST_BYTE + 256
SPACE = "▁"


@dataclass(frozen=True)
class Sizes:
    """The header, in its order."""

    width: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    context: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays behind the header, in their order; {} stands for the layer."""
        layers, width, hidden = self.layers, self.width, self.hidden
        head = width // self.heads
        keys = head * self.key_heads
        return {
            "model.embed_tokens": (self.vocabulary, width),
            LAYER + "input_layernorm": (layers, width),
            LAYER + "self_attn.q_proj": (layers, width, width),
            LAYER + "self_attn.k_proj": (layers, keys, width),
            LAYER + "self_attn.v_proj": (layers, keys, width),
            LAYER + "self_attn.o_proj": (layers, width, width),
            LAYER + "post_attention_layernorm": (layers, width),
            LAYER + "mlp.gate_proj": (layers, hidden, width),
            LAYER + "mlp.down_proj": (layers, width, hidden),
            LAYER + "mlp.up_proj": (layers, hidden, width),
            "model.norm": (width,),
            # Cosines and sines of the rotary positions, which are computed elsewhere.
            "": (2, self.context, head // 2),
        }


def read_llama2c(file: Path) -> Llama:
    content = file.read_bytes()
    sizes = _sizes(content, file)
    shapes = sizes.shapes()
    lengths = [int(np.prod(shape)) for shape in shapes.values()]
    ends = np.cumsum([0, *lengths]) * 4 + HEADER.size
    pieces, scores = _pieces(content[ends[-1] :], sizes.vocabulary, file)
    config = llama_config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.key_heads,
        head_dim=sizes.width // sizes.heads,
        max_position_embeddings=sizes.context,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        bos_token_id=BEGIN,
        eos_token_id=BEGIN,
        pad_token_id=END,
    )

    def weights() -> Iterator[tuple[str, np.ndarray]]:
        for (name, shape), (start, end) in zip(shapes.items(), pairwise(ends), strict=True):
            values = np.frombuffer(content[start:end], dtype="<f4").reshape(shape)
            if "{}" in name:
                for layer, part in enumerate(values):
                    yield name.format(layer) + ".weight", _turned(name, part, sizes)
            elif name:
                yield name + ".weight", values

    return Llama(
        config=config,
        # Nine weights in each layer, the embedding and the last norm.
        num_weights=9 * sizes.layers + 2,
        weights=weights,
        tokenizer=_tokenizer(pieces, scores),
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": pieces[BEGIN],
            "eos_token": pieces[BEGIN],
            "unk_token": pieces[UNKNOWN],
            "pad_token": pieces[END],
            "model_max_length": sizes.context,
            "clean_up_tokenization_spaces": False,
        },
        about="The weights are float32, as they were trained. A story is closed by <s>, as in training; "
        "</s>, which the model has never seen, is the padding.",
    )


def _turned(name: str, weights: np.ndarray, sizes: Sizes) -> np.ndarray:
    if "q_proj" in name:
        return to_halves(weights, sizes.heads)
    return to_halves(weights, sizes.key_heads) if "k_proj" in name else weights


def _sizes(content: bytes, file: Path) -> Sizes:
    if len(content) >= HEADER.size:
        sizes = Sizes(*HEADER.unpack_from(content))
        # A negative vocabulary stands for an output matrix of its own, which the models here do not have.
        if min(sizes.__dict__.values()) > 0:
            needed = HEADER.size + 4 * sum(int(np.prod(shape)) for shape in sizes.shapes().values())
            if len(content) > needed:
                return sizes
    raise DataError(
        f"{file} holds no model; expected llama2.c's first form with a tokenizer behind it; fetch it again"
    )


def _pieces(content: bytes, count: int, file: Path) -> tuple[list[str], list[float]]:
    """The vocabulary as SentencePiece spells it, and the scores."""
    place = 4  # behind the length of the longest piece
    pieces: list[str] = []
    scores: list[float] = []
    try:
        for number in range(count):
            score, length = PIECE.unpack_from(content, place)
            place += PIECE.size
            text = content[place : place + length].decode()
            place += length
            if number in (BEGIN, END):
                text = text.strip()  # they are kept as lines of their own
            elif FIRST_BYTE <= number < FIRST_PIECE:
                text = f"<0x{number - FIRST_BYTE:02X}>"
            pieces.append(text.replace(" ", SPACE))
            scores.append(score)
    except (struct.error, ValueError):
        place = -1
    if place != len(content) or len(set(pieces)) != count:
        raise DataError(f"{file} holds no whole tokenizer; expected {count:,} pieces; fetch it again")
    return pieces, scores


def _tokenizer(pieces: list[str], scores: list[float]) -> str:
    """The `tokenizer.json` of pieces with byte fallback: of two neighbours those merge whose whole scores
    best."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges: list[tuple[float, int, int, tuple[str, str]]] = []
    for number, piece in enumerate(pieces[FIRST_PIECE:], FIRST_PIECE):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                # Ways to the same piece are equally good; their order only has to be always the same.
                merges.append((-scores[number], vocabulary[left], vocabulary[right], (left, right)))
    merges.sort()
    model = models.BPE(
        vocabulary,
        [pair for *_, pair in merges],
        unk_token=pieces[UNKNOWN],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    # A text begins with a space, as in training.
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = [AddedToken(pieces[number], special=True, normalized=False) for number in (UNKNOWN, BEGIN, END)]
    tokenizer.add_special_tokens(special)
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    return json.dumps(document, ensure_ascii=False)
