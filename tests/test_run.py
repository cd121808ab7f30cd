"""A run's folder: whole by itself, wherever it is."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

import retro
from retro.card import write_card
from retro.config import ModelConfig
from retro.config.as_json import to_dict
from retro.corpus.tokenizers.sentencepiece import train_tokenizer
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ArtifactError, ConfigError
from retro.model.protocol import KeyedModel, LanguageModel
from retro.model.retro import Retro
from retro.model.weights import save_tensors
from retro.run import Origin, Run, load, write_run
from tests.model.models import random_inputs, small_config, small_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "tokenizer"
    train_tokenizer(texts, folder, 320, "bpe", {})
    return folder


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Path) -> Path:
    model = small_model(dtype=torch.float32)
    origin = Origin(
        tokenizer=tokenizer,
        trained_on={"tokens": "abc"},
        training={"batch_size": 2, "seq_len": 32, "num_neighbours": 2},
        data={"letters": {"documents": 3, "tokens": 1000, "bytes": 4000}},
    )
    counts = {"steps": 7, "parameters": 10, "trained": 10, "validation": {"valid_on": 3.25}}
    write_run(model, tmp_path / "mine", counts, origin)
    return tmp_path / "mine"


def test_a_moved_run_is_the_same_model(folder: Path, tmp_path: Path, tokenizer: Path) -> None:
    expected = small_model(dtype=torch.float32)
    fingerprint = Run(folder).fingerprint
    moved = tmp_path / "elsewhere" / "yours"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    run = Run(moved)
    tokens, neighbours, mask = random_inputs(small_config(), 2, 11, 2)
    assert torch.equal(run.load()(tokens, neighbours, mask), expected(tokens, neighbours, mask))
    assert torch.equal(retro.load(moved)(tokens), expected(tokens))
    assert (run.name, run.fingerprint, run.trained_on) == ("yours", fingerprint, {"tokens": "abc"})
    assert run.tokenizer.fingerprint == Tokenizer.open(tokenizer).fingerprint
    assert not run.load().training


def test_another_tokenizer_is_refused_by_name(folder: Path) -> None:
    run = Run(folder)
    run.expect_same_tokenizer(run.tokenizer.fingerprint, "the datastore")
    with pytest.raises(
        ArtifactError, match=r"my-store was made with tokenizer 0123, and .*mine was trained with"
    ):
        run.expect_same_tokenizer("0123", "my-store")


def test_the_card_tells_a_person_what_it_is(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    for expected in (
        "# mine",
        "A RETRO",
        "7 of 2 × 32 tokens",
        "| letters | 3 | 1,000 | 4,000 |",
        "valid_on 3.2500",
    ):
        assert expected in card
    assert 'retro sample mine "The first words" --datastore DATASTORE' in card
    assert "## Scores" not in card
    write_card(folder, {"test, retrieval off": "1.677 (1.574 – 1.786)"})
    assert "| test, retrieval off | 1.677 (1.574 – 1.786) |" in (folder / "README.md").read_text()


def test_the_hub_can_read_the_card(folder: Path) -> None:
    read = ModelCard((folder / "README.md").read_text()).data
    assert (read.library_name, read.pipeline_tag, read.base_model) == ("retro", "text-generation", None)
    assert read.tags == ["retro", "retrieval"]
    assert read.to_dict()["sources"] == ["letters"]
    record = json.loads((folder / "run.json").read_text())
    fitted = {
        "fit": {"reading": "attention", "layers": [1], "pointer": False, "pointer_layer": 1, "chunk_len": 8},
        "base": {"id": "smollm2"},
    }
    data = {name: {"documents": 1, "tokens": 1, "bytes": 1} for name in ('my: "own"', "wikimedia/wikipedia")}
    (folder / "run.json").write_text(json.dumps({**record, "model": fitted, "data": data}))
    write_card(folder)
    read = ModelCard((folder / "README.md").read_text()).data
    # The hub knows the base by its id there, while we open it by the catalogue's name.
    assert read.base_model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (read.base_model_relation, read.license) == ("adapter", "apache-2.0")
    assert json.loads((folder / "run.json").read_text())["model"]["base"]["id"] == "smollm2"
    assert (read.datasets, read.to_dict()["sources"]) == (["wikimedia/wikipedia"], ['my: "own"'])
    assert read.tags == ["retro", "retrieval", "retrofit"]
    fitted["base"]["id"] = "somebody/else"
    (folder / "run.json").write_text(json.dumps({**record, "model": fitted, "data": data}))
    write_card(folder)
    assert ModelCard((folder / "README.md").read_text()).data.base_model == "somebody/else"
    # Where a folder lies is nobody's business.
    fitted["base"]["id"] = "/home/me/base"
    (folder / "run.json").write_text(json.dumps({**record, "model": fitted, "data": data}))
    write_card(folder)
    read = ModelCard((folder / "README.md").read_text()).data
    assert (read.base_model, read.license) == (None, None)


def test_a_folder_from_before_there_was_a_record_is_read(tmp_path: Path) -> None:
    model = small_model(dtype=torch.float32)
    save_tensors(model.state_dict(), tmp_path / "model.safetensors")
    new = to_dict(model.config)
    old = {key: value for key, value in new.items() if key not in ("retrieval", "end_id")} | new["retrieval"]
    (tmp_path / "config.json").write_text(json.dumps(old))
    tokens, neighbours, mask = random_inputs(model.config, 2, 11, 2)
    assert torch.equal(load(tmp_path)(tokens, neighbours, mask), model(tokens, neighbours, mask))
    with pytest.raises(ArtifactError, match="carries no tokenizer"):
        Run(tmp_path).tokenizer  # noqa: B018


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", r"run.json is not readable JSON"),
        ("[]", r"run.json is not readable JSON"),
        ('{"format": 9}', r"has format 9; expected 1; open it with the version of retro that wrote it"),
        ('{"format": 1, "kind": "diffusion", "model": {}}', r"of the kind 'diffusion'; expected retro"),
        ('{"format": 1, "kind": "retro", "model": {"hedas": 1}}', r"unknown keys \['hedas'\]"),
    ],
)
def test_a_broken_record_is_one_line(folder: Path, record: str, message: str) -> None:
    (folder / "run.json").write_text(record)
    with pytest.raises((ArtifactError, ConfigError), match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_our_models_are_language_models() -> None:
    for model in (
        small_model(),
        Retro(ModelConfig(d_model=8, num_layers=1, num_heads=1, head_dim=4, ffw_dim=8)),
    ):
        assert isinstance(model, LanguageModel)
        assert isinstance(model, KeyedModel)
