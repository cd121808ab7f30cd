"""Parts that libraries read for us, with a file changed: indexes, tokenizers, weights, checkpoints."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from retro.card import write_card
from retro.corpus.tokenizers import Tokenizer, copy_tokenizer
from retro.model.weights import load_tensors, save_tensors
from retro.retrieval.index import Entries, make_index, open_index
from retro.run import Run
from retro.stages.stage import MANIFEST
from retro.training.checkpoints import Checkpoints
from retro.training.distributed import World
from tests.fuzz.spoiling import fuzz_files


@pytest.mark.parametrize("kind", ["exact", "HNSW8", "IVF4,Flat", "bm25", "hybrid"])
def test_indexes(kind: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    keys = generator.standard_normal((200, 8)).astype(np.float16)
    tokens = [generator.integers(0, 50, 6) for _ in range(200)]
    index = make_index(kind, 8, len(keys))
    index.add(Entries(keys, tokens))
    index.save(tmp_path)

    def use() -> None:
        _, rows = open_index(tmp_path, keys).search(Entries(keys[:3], tokens[:3]), 5)
        assert rows.shape == (3, 5)

    fuzz_files(f"index {kind}", 0.02, tmp_path, use)


def test_tokenizers_of_the_hub(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, special_tokens=["<end>"], initial_alphabet=alphabet)
    library.train_from_iterator(["a text"], trainer)
    (tmp_path / "hub").mkdir()
    library.save(str(tmp_path / "hub" / "tokenizer.json"))
    (tmp_path / "hub" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))

    def use() -> None:
        for folder in ("copy", "copy.partial"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
        copy_tokenizer(str(tmp_path / "hub"), tmp_path / "copy")
        Tokenizer.open(tmp_path / "copy").encode("a text é")

    fuzz_files("tokenizer of the hub", 0.02, tmp_path / "hub", use)


def test_a_run_that_was_given_away(finished: Path, tmp_path: Path) -> None:
    """Without its manifest, only run.json and the weights tell what it is."""
    folder = Path(shutil.copytree(finished / "runs" / "retro", tmp_path / "given"))
    (folder / MANIFEST).unlink()

    def use() -> None:
        run = Run(folder)
        run.load()
        assert run.tokenizer.fingerprint
        assert isinstance(run.trained_on, dict)
        write_card(folder)

    record, weights = folder / "run.json", folder / "model.safetensors"
    fuzz_files("run given away", 0.04, folder, use, [record, record, weights])


def test_checkpoints(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = Checkpoints(tmp_path, 2, World(0, 1, torch.device("cpu")))
    checkpoints.save(3, model, optimizer, 1.5)

    def use() -> None:
        checkpoints.best()
        for entry in checkpoints.kept():
            checkpoints.load(entry, model, optimizer)

    fuzz_files("checkpoint", 0.03, tmp_path, use)


def test_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_tensors({"a": torch.zeros(2, 3), "b": torch.ones(4)}, path)
    fuzz_files("safetensors", 0.03, tmp_path, lambda: load_tensors(path))
