"""Real parts in small: a real tokenizer, a real BERT of two layers, a real FAISS index, a real workspace."""

import os
import random
from pathlib import Path

import pytest
import torch

from retro.planning import choices

os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)  # the tensors are tiny: threads would only wait for each other


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT with random weights, saved as any Hugging Face model is."""
    import transformers

    folder = tmp_path_factory.mktemp("bert")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(code) for code in range(33, 127))]
    pieces += [f"##{chr(code)}" for code in range(33, 127)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
    )
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def static_encoder(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> str:
    """A table with a random vector for every word of the texts, which loads in no time."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("static")
    words = sorted({word for text in texts for word in text.replace(".", " . ").split()})
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(
        {"table": torch.randn(len(words) + 1, 32, generator=torch.Generator().manual_seed(0))},
        folder / "model.safetensors",
    )
    return str(folder)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Forty short documents; each repeats some sentences of a common stock, so that neighbours exist."""
    import random

    rng = random.Random(0)
    words = [
        "the",
        "licence",
        "permits",
        "anyone",
        "to",
        "use",
        "copy",
        "modify",
        "and",
        "share",
        "this",
        "software",
        "without",
        "any",
        "warranty",
        "of",
        "fitness",
        "or",
        "merit",
    ]
    stock = [" ".join(rng.choices(words, k=12)).capitalize() + ".\n" for _ in range(30)]
    return [
        f"Document {number}\n\n" + "".join(rng.choices(stock, k=rng.randint(3, 12))) for number in range(40)
    ]


@pytest.fixture(scope="session")
def text_folder(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(texts):
        (folder / f"{number:02d}.txt").write_text(text)
    return folder


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, bert: str):
    """A finished workspace up to its neighbours. Tests that change it make their own."""
    from tests.workspaces import small_workspace

    return small_workspace(tmp_path_factory.mktemp("work"), text_folder, bert)


@pytest.fixture(scope="session")
def own_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty texts of made-up words that share sentences, about 60 kB."""
    rng = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(1500)]
    sentences = [" ".join(rng.choices(words, k=12)) + ".\n" for _ in range(60)]
    folder = tmp_path_factory.mktemp("own")
    for number in range(40):
        new = " ".join(rng.choices(words, k=40))
        (folder / f"{number:02d}.txt").write_text(new + ".\n" + "".join(rng.choices(sentences, k=16)))
    return folder


@pytest.fixture
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and schedules of seconds; the choice between them stays as it is."""
    monkeypatch.setattr(choices, "SIZES", ((32, 1), (32, 2)))
    monkeypatch.setattr(choices, "MAX_EPOCHS", 1)


@pytest.fixture(scope="session")
def fitted_work(
    tmp_path_factory: pytest.TempPathFactory, text_folder: Path, texts: list[str], static_encoder: str
):
    """A workspace with a base that was fitted for two steps. Tests that change it make their own."""
    from tests.bases import save_small_base
    from tests.workspaces import fitted_workspace

    base = save_small_base(tmp_path_factory.mktemp("small-base"), texts)
    return fitted_workspace(tmp_path_factory.mktemp("fitted-work"), text_folder, base, static_encoder)
