"""`retro fit --check` as a user meets it."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForCausalLM

from retro.cli.main import main

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "llama")
    BertLMHeadModel(BertConfig(**SIZES)).save_pretrained(tmp_path / "bert")
    return tmp_path


def test_a_passport_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--check", str(folder / "llama")]) == 0
    told = capsys.readouterr().out
    assert "LlamaForCausalLM" in told
    for check in ("layers", "causality", "reading attention", "pointer", "cache", "left padding"):
        assert check in told
    assert "refused" not in told
    assert "It can be fitted with reading attention, cross-attention, none." in told


def test_what_cannot_be_fitted_ends_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", f"--check={folder / 'bert'}"]) == 1
    told = capsys.readouterr()
    assert "refused" in told.out
    line = next(line for line in told.err.splitlines() if line.startswith("retro fit:"))
    assert "cannot be fitted (causality: token 2 changes the logits at token 1" in line
    assert "fit another model" in line


def test_what_is_no_base_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--check", str(tmp_path / "nowhere")]) == 1
    assert "is no base" in capsys.readouterr().err
