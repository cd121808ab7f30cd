"""Bases by name, folder and id, and what tells one from another."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from retro import catalogue
from retro.catalogue import hub
from retro.errors import ArtifactError, DataError


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}, indent=1))


def test_a_folder_is_its_own_base(base: Path) -> None:
    assert catalogue.folder_of_base(str(base)) == base
    assert catalogue.embedding_size(base) == 20
    change(base / "config.json", text_config={"vocab_size": 30})
    assert catalogue.embedding_size(base) == 30


def test_every_model_of_the_catalogue_has_its_name_on_the_hub() -> None:
    models = [entry for entry in catalogue.ENTRIES.values() if entry.kind == "model"]
    assert models
    assert all("/" in entry.hub_id and hub.is_id(entry.hub_id) for entry in models)


def test_what_is_no_base_is_refused_in_one_line(base: Path, tmp_path: Path) -> None:
    for name, message in (
        ("licences", r"^'licences' is no model but a corpus; .*one of: smollm2, stories15m$"),
        ("minilm", r"^'minilm' is no model but an embedder; "),
        ("", r"^'' is no base; "),
        ("./gone/away", r"^'./gone/away' is no base; "),
        (str(tmp_path), r" has no config.json; expected a Hugging Face model; "),
        ("nobody/nothing", r"^no model could be fetched for 'nobody/nothing' \(the hub cannot be reached"),
    ):
        with pytest.raises(DataError, match=message):
            catalogue.folder_of_base(name)
    (base / "config.json").write_text("{}")
    with pytest.raises(DataError, match="gives no vocab_size"):
        catalogue.embedding_size(base)
    (base / "config.json").write_text("[")
    with pytest.raises(ArtifactError, match=r"config.json is damaged; .* save_pretrained$"):
        catalogue.base_checksum(base)


def test_the_checksum_follows_config_and_weights_alone(base: Path, tmp_path: Path) -> None:
    first = catalogue.base_checksum(base)
    moved = base.rename(tmp_path / "moved")
    (moved / "README.md").write_text("A card.")
    change(moved / "config.json", transformers_version="99", _name_or_path="elsewhere")
    assert catalogue.base_checksum(moved) == first
    change(moved / "config.json", layer_norm_epsilon=0.1)
    changed = catalogue.base_checksum(moved)
    assert changed != first
    weights = moved / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert catalogue.base_checksum(moved) not in (first, changed)
    weights.rename(moved / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"holds no \*.safetensors; .* save it with save_pretrained$"):
        catalogue.base_checksum(moved)
