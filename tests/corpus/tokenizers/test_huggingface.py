"""Hugging Face tokenizers: real ones, trained here, behind the protocol of our own."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from retro.cli.main import main
from retro.config import CorpusConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.corpus.tokenizers.huggingface import HuggingFaceTokenizer, copy_tokenizer, expect_embedded
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import DataError
from tests.corpus.tokenizers.test_tokenizer import ANY_TEXT, TEXTS


def save(tokenizer: tokenizers.Tokenizer, folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def byte_level(folder: Path, **config: object) -> Path:
    """As GPT-2's, with what others add: normalisation, and a space before the text."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<pad>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.add_tokens(["\t\t\t"])
    return save(tokenizer, folder, **(config or {"eos_token": "<|endoftext|>"}))


def byte_fallback(folder: Path) -> Path:
    """As Llama's: pieces with a mark for spaces, and a token for every byte."""
    pieces = [
        "<unk>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "t",
        "h",
        "e",
        "th",
        "the",
        "▁the",
    ]
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    model = models.BPE(
        {piece: number for number, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    return save(tokenizer, folder, eos_token={"content": "</s>"}, pad_token="</s>")


@pytest.fixture(scope="module", params=[byte_level, byte_fallback])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return HuggingFaceTokenizer(request.param(tmp_path_factory.mktemp("hf") / "tokenizer"))


@given(ANY_TEXT)
@settings(max_examples=200, deadline=None)
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.num_bytes(tokens) == len(text.encode())
    assert not {tokenizer.pad_id, tokenizer.end_id} & set(tokens)


def test_its_own_special_tokens_are_plain_text_in_a_text(tokenizer: Tokenizer) -> None:
    for special in ("<|endoftext|>", "<pad>", "</s>", "<unk>"):
        assert tokenizer.decode(tokenizer.encode(f"a{special}b")) == f"a{special}b"


def test_words_are_still_tokens(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("the the the")) <= 6


def test_padding_has_an_id_that_nothing_else_has(tmp_path: Path) -> None:
    own = HuggingFaceTokenizer(byte_level(tmp_path / "own", eos_token="<|endoftext|>", pad_token="<pad>"))
    assert (own.end_id, own.pad_id) == (0, 1)
    for name, config in (
        ("none", {"eos_token": "<|endoftext|>"}),
        ("same", {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}),
    ):
        added = HuggingFaceTokenizer(byte_level(tmp_path / name, **config))
        assert added.pad_id == own.vocab_size == added.vocab_size - 1
        assert added.fingerprint != own.fingerprint


def test_a_tokenizer_that_loses_text_is_refused(tmp_path: Path) -> None:
    lossy = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "[SEP]": 1, "a": 2}, unk_token="[UNK]"))
    lossy.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    with pytest.raises(DataError, match=r"loses text: .* use another tokenizer or train one"):
        HuggingFaceTokenizer(save(lossy, tmp_path / "lossy", eos_token="[SEP]"))


def test_the_place_where_text_is_lost_is_shown(tmp_path: Path) -> None:
    """A byte that the vocabulary has no token for may stand anywhere in a document."""
    folder = byte_level(tmp_path / "gap")
    document = json.loads((folder / "tokenizer.json").read_text())
    del document["model"]["vocab"]["\u0114"]  # how byte-level BPE spells the byte 0x14
    (folder / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = HuggingFaceTokenizer(folder)
    with pytest.raises(DataError, match=r"loses text: 'many words\\x14 and more' comes back as .*words and"):
        tokenizer.encode("many words " * 50 + "many words\x14 and more")


def test_a_base_must_embed_every_id(tmp_path: Path) -> None:
    folder = byte_level(tmp_path / "base")
    own = HuggingFaceTokenizer(folder)
    # Padding that is put behind the vocabulary is none of the base's business.
    assert own.pad_id == own.own_size == own.vocab_size - 1
    (folder / "config.json").write_text(json.dumps({"vocab_size": own.own_size}))
    expect_embedded(folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": own.own_size - 1}))
    with pytest.raises(DataError, match=rf"has {own.own_size} ids and its model embeds {own.own_size - 1}; "):
        expect_embedded(folder)


def test_ingest_cuts_text_by_the_tokenizer_of_a_base(
    tmp_path: Path, text_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = byte_level(tmp_path / "base")
    size = HuggingFaceTokenizer(base).own_size
    (base / "config.json").write_text(json.dumps({"vocab_size": size}))
    # As a fetched base has one, which does not make it a tokenizer of ours.
    (base / "manifest.json").write_text(json.dumps({"kind": "fetched"}))
    arguments = ["ingest", str(text_folder), "--out", str(tmp_path / "work"), "--base", str(base)]
    assert main(arguments) == 0
    work = CorpusFolder(tmp_path / "work")
    assert work.tokenizer().fingerprint == HuggingFaceTokenizer(base).fingerprint
    assert int(max(store.tokens.max() for store in work.corpus().stores().values())) < size
    capsys.readouterr()
    for more, message in (
        (["--tokenizer", "gpt2"], "brings its own tokenizer, and --tokenizer names gpt2; expected one of"),
        (["--vocab-size", "300"], "expected --vocab-size or --base, not both"),
    ):
        assert main([*arguments, *more]) != 0
        assert message in " ".join(capsys.readouterr().err.split())
    (base / "config.json").write_text(json.dumps({"vocab_size": 10}))
    assert main(["ingest", str(text_folder), "--out", str(tmp_path / "w"), "--base", str(base)]) == 1
    assert "its model embeds 10" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "w" / "text").exists()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"names no end token"):
        HuggingFaceTokenizer(byte_level(tmp_path / "endless", pad_token="<pad>"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no tokenizer.json"):
        copy_tokenizer(str(tmp_path / "empty"), tmp_path / "out")
    with pytest.raises(DataError, match=r"no tokenizer could be fetched for 'nobody/nothing'"):
        copy_tokenizer("nobody/nothing", tmp_path / "out")


def test_a_corpus_is_cut_by_it(tmp_path: Path, text_folder: Path, texts: list[str]) -> None:
    """The ids of padding and document ends are the tokenizer's own, and reach the stores."""
    work = CorpusFolder(tmp_path / "work")
    corpus = ingest(
        work, [str(text_folder)], CorpusConfig(tokenizer=str(byte_level(tmp_path / "hf")), test_fraction=0.1)
    )
    opened = Tokenizer.open(work.tokenizer_path)
    store = corpus.train
    assert (store.pad_id, store.end_id) == (opened.pad_id, opened.end_id) == (opened.vocab_size - 1, 0)
    for index in range(len(store)):
        tokens = store.document(index)
        assert tokens[-1] == opened.end_id
        assert opened.decode(tokens.tolist()) in texts
        assert int(opened.token_lengths[np.asarray(tokens)].sum()) == store.num_bytes[index]
