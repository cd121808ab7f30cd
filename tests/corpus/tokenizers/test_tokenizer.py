from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retro.corpus.tokenizers.sentencepiece import SentencePieceTokenizer, train_model, train_tokenizer
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ArtifactError, DataError
from retro.stages.stage import Stage, run_stage

TEXTS = [
    "def f(x):\n\treturn  x + 1\n",
    "    four spaces, then words\n" * 5,
    "the cat sat on the mat\n" * 20,
    "naïve café ☕ déjà vu\n" * 3,
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return SentencePieceTokenizer(train_model(TEXTS, 330))


ANY_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text(st.sampled_from(" \t\n\r\x00\x0b▁é☕a<0x41>")),
    st.lists(
        st.sampled_from(["<s>", "</s>", "<unk>", "<pad>", "<0x0A>", "  ", "\t\t", "\n\n", "the ", "🏳️‍🌈"])
    ).map("".join),
)


@given(ANY_TEXT)
@example("")
@example("▁literal▁marks▁ and spaces")
@example("<unk></s><0x41>\x00\x07")
@settings(max_examples=300, deadline=None)
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.num_bytes(tokens) == len(text.encode())
    assert not {0, 1, 2} & set(tokens)


@given(ANY_TEXT, st.integers(0, 50))
@settings(max_examples=50, deadline=None)
def test_bytes_of_a_span_are_exact(tokenizer: Tokenizer, text: str, cut: int) -> None:
    """A character may be split across tokens; its bytes are still counted once."""
    tokens = tokenizer.encode(text)
    assert tokenizer.decode_bytes(tokens[:cut]) + tokenizer.decode_bytes(tokens[cut:]) == text.encode()


def test_runs_of_spaces_and_newlines_have_tokens_of_their_own(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("    four")) < len("    four")
    assert len(tokenizer.encode("\n")) == len(tokenizer.encode("\t")) == 1


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, tmp_path / "tokenizer", 330, "bpe", {})
    opened = Tokenizer.open(tmp_path / "tokenizer")
    assert opened.fingerprint == SentencePieceTokenizer(train_model(TEXTS, 330)).fingerprint
    with pytest.raises(ArtifactError, match=r"was made with tokenizer 123; expected .*; run: retro build"):
        opened.expect("123", "work/datastore", "retro build")


def test_too_little_text_for_the_vocabulary_says_how_much_fits() -> None:
    with pytest.raises(
        DataError, match=r"vocabulary of 5000 cannot be learned.*at most (\d+).*--vocab-size \1"
    ):
        train_model(["a few words only"], 5000)


def test_no_text_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="no text"):
        train_model(["", "  \n "], 300)


@pytest.mark.parametrize("content", [b"", b"no model"])
def test_a_damaged_model_is_one_clear_line(tmp_path: Path, texts: list[str], content: bytes) -> None:
    """Damaged since it was finished; or as it was finished, which its checksum cannot tell."""
    train_tokenizer(texts, tmp_path / "tokenizer", 320, "bpe", {})
    (tmp_path / "tokenizer" / "tokenizer.model").write_bytes(content)
    with pytest.raises(
        ArtifactError, match=r"tokenizer.model does not match its checksum; remove .*"
    ) as found:
        Tokenizer.open(tmp_path / "tokenizer")
    assert f"run: retro doctor --work {tmp_path} --mend" in str(found.value)
    assert "\n" not in str(found.value)

    def work(stage: Stage) -> None:
        with stage.write("tokenizer.model") as file:
            file.write(content)

    folder = tmp_path / "as finished" / "tokenizer"
    run_stage(folder, "tokenizer", {"vocab_size": 320, "kind": "bpe"}, {}, work, "retro ingest")
    message = r"tokenizer.model is empty or damaged; expected a SentencePiece model; remove .* and run: "
    with pytest.raises(ArtifactError, match=message) as found:
        Tokenizer.open(folder)
    assert str(found.value).endswith(f"run: retro ingest SOURCE --out '{folder.parent}'")
    assert "\n" not in str(found.value)


def test_a_vocabulary_is_advised_that_can_be_learned(texts: list[str]) -> None:
    for wrong in (9, 9_000):
        with pytest.raises(DataError, match="cannot be learned") as caught:
            train_model(texts, wrong)
        assert "character_coverage" not in str(caught.value)
        advised = int(str(caught.value).partition("--vocab-size ")[2].split()[0])
        assert SentencePieceTokenizer(train_model(texts, advised)).vocab_size == advised
