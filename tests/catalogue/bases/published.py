"""Small models with random weights, in the forms in which real ones are published."""

import struct
import tarfile
import zipfile
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from retro import catalogue
from retro.stages.files import file_checksum

WIDTH, HIDDEN, LAYERS, HEADS, KEY_HEADS, CONTEXT = 64, 96, 2, 4, 2, 32
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e", "Ġ the", "Ġ Ġ"]
PIECES = ["▁", "t", "h", "e", "o", "n", "c", "on", "ce", "once", "th", "the", "▁the", "▁t", "he", "▁▁", "é"]


def write_gguf(file: Path, seed: int = 0) -> Path:
    """A quantised Llama with a byte-level BPE, written by the library of the form itself."""
    random = np.random.default_rng(seed)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    keys = WIDTH // HEADS * KEY_HEADS
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        parts = {"attn_q": (WIDTH, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH)}
        parts |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH)}
        parts |= {"ffn_down": (WIDTH, HIDDEN), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
        shapes |= {f"blk.{layer}.{part}": shape for part, shape in parts.items()}
    for name, shape in shapes.items():
        values = random.normal(0, 0.3, shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q4_1 if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def llama2c_weights(vocabulary: int, seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays of llama2.c by its own names and in its own order."""
    random = np.random.default_rng(seed)
    head = WIDTH // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (vocabulary, WIDTH),
        "rms_att": (LAYERS, WIDTH),
        "wq": (LAYERS, WIDTH, WIDTH),
        "wk": (LAYERS, head * KEY_HEADS, WIDTH),
        "wv": (LAYERS, head * KEY_HEADS, WIDTH),
        "wo": (LAYERS, WIDTH, WIDTH),
        "rms_ffn": (LAYERS, WIDTH),
        "w1": (LAYERS, HIDDEN, WIDTH),
        "w2": (LAYERS, WIDTH, HIDDEN),
        "w3": (LAYERS, HIDDEN, WIDTH),
        "rms_final": (WIDTH,),
        "cosines": (CONTEXT, head // 2),
        "sines": (CONTEXT, head // 2),
    }
    return {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def vocabulary() -> list[bytes]:
    """The pieces as llama2.c writes them: bytes as characters, spaces as spaces."""
    head = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(chr(byte).encode() for byte in range(256))]
    return head + [piece.replace("▁", " ").encode() for piece in PIECES]


def write_llama2c(file: Path) -> Path:
    """A model with its tokenizer behind it, as the package keeps them."""
    pieces = vocabulary()
    content = struct.pack("<7i", WIDTH, HIDDEN, LAYERS, HEADS, KEY_HEADS, len(pieces), CONTEXT)
    for values in llama2c_weights(len(pieces)).values():
        content += values.tobytes()
    content += struct.pack("<i", max(map(len, pieces)))
    for number, piece in enumerate(pieces):
        content += struct.pack("<fi", score(number), len(piece)) + piece
    file.write_bytes(content)
    return file


def score(number: int) -> float:
    """As in SentencePiece's BPE: earlier pieces merge first."""
    return -float(number)


def wheel_entry(shelf: Path) -> catalogue.Entry:
    """A package of pip with a GGUF, on a shelf that pip may be pointed to."""
    wheel = shelf / "little_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(write_gguf(shelf / "m.gguf"), "little_model/m.gguf")
        archive.writestr("little_model-1.0.dist-info/LICENSE", "Do as you like.")
        about = "Metadata-Version: 2.1\nName: little-model\nVersion: 1.0\n"
        archive.writestr("little_model-1.0.dist-info/METADATA", about)
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr("little_model-1.0.dist-info/WHEEL", tag)
        archive.writestr("little_model-1.0.dist-info/RECORD", "")
    return catalogue.Entry(
        name="little-gguf",
        kind="model",
        description="a little model",
        licence="CC0-1.0",
        package="little-model",
        version="1.0",
        filename=wheel.name,
        size=wheel.stat().st_size,
        sha256=file_checksum(wheel),
        members=("little_model/*.gguf", "little_model-1.0.dist-info/LICENSE"),
        strip="little_model/",
        form="gguf",
    )


def npm_entry(shelf: Path) -> catalogue.Entry:
    """A package of npm with a llama2.c model, on a shelf."""
    packed = shelf / "little.c-1.0.0.tgz"
    write_llama2c(shelf / "little.data")
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(shelf / "little.data", "package/src/little.data")
    return catalogue.Entry(
        name="little-c",
        kind="model",
        description="a little model",
        licence="CC0-1.0",
        package="little.c",
        version="1.0.0",
        filename=packed.name,
        size=packed.stat().st_size,
        sha256=file_checksum(packed),
        members=("package/src/*.data",),
        strip="package/src/",
        registry="npm",
        form="llama2.c",
    )
