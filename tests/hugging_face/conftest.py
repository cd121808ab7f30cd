"""A base with its own tokenizer, a datastore that was cut by it, and runs that were fitted to it."""

from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from retro.config import CorpusConfig, DatastoreConfig, EncoderConfig, FitConfig
from retro.corpus.ingest import ingest
from retro.fitting.fitted import FittedModel
from retro.jobs.retrieval import build
from retro.retrieval.retriever import Retriever
from retro.workspace import Workspace
from tests.hugging_face.parts import M


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """A Llama with random weights and a byte-level tokenizer, saved as any Hugging Face model is."""
    folder = tmp_path_factory.mktemp("hub") / "base"
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", padding_side="left")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def base_work(
    tmp_path_factory: pytest.TempPathFactory, base_folder: Path, text_folder: Path, static_encoder: str
) -> Workspace:
    work = Workspace(tmp_path_factory.mktemp("hub") / "work")
    ingest(work, [str(text_folder)], CorpusConfig(tokenizer=str(base_folder), valid_fraction=0.15))
    build(work, DatastoreConfig(embedder=static_encoder, chunk_len=M, num_neighbours=4))
    return work


@pytest.fixture(scope="session")
def retriever(base_work: Workspace) -> Retriever:
    return Retriever(base_work.datastore(), 2)


def fitted_folder(base_folder: Path, folder: Path, reading: str) -> Path:
    """A run with random additions, as if trained."""
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    encoder = EncoderConfig(d_model=16, num_layers=2, num_heads=2, head_dim=8, ffw_dim=32)
    config = FitConfig(chunk_len=M, reading=reading, encoder=encoder)
    model = FittedModel(base, config, base_id=str(base_folder))
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save(folder)
    return folder


@pytest.fixture(scope="session", params=["attention", "none", "cross-attention"])
def fitted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, base_folder: Path
) -> Path:
    return fitted_folder(base_folder, tmp_path_factory.mktemp("fitted") / "mine", request.param)
