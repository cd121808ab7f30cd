import json
from pathlib import Path

import numpy as np
import pytest

from retro.config import CorpusConfig
from retro.corpus.documents import Document, split_of
from retro.corpus.ingest import Corpus, ingest, select, train_corpus_tokenizer
from retro.corpus.tokenizer import END_ID
from retro.errors import ArtifactError, DataError

CONFIG = CorpusConfig(vocab_size=320, valid_fraction=0.2, test_fraction=0.2)


def documents(texts: list[str]) -> list[Document]:
    return [Document(id=str(number), text=text, source="test", title=f"T{number}") for number, text in enumerate(texts)]


def make(texts: list[str], folder: Path) -> Corpus:
    splits = select(documents(texts), CONFIG)
    return ingest(splits, train_corpus_tokenizer(splits, folder / "tokenizer", CONFIG), folder / "tokens", CONFIG)


def test_splits_depend_on_the_document_alone(texts: list[str]) -> None:
    whole = {document.id: split_of(document, CONFIG) for document in documents(texts)}
    assert set(whole.values()) == {"train", "valid", "test"}
    assert all(split_of(document, CONFIG) == whole[document.id] for document in reversed(documents(texts)[::3]))
    assert split_of(Document("1", "x", "test", split="valid"), CONFIG) == "valid"


def test_stores_hold_every_document_exactly(texts: list[str], tmp_path: Path) -> None:
    corpus = make(texts, tmp_path)
    from retro.corpus.tokenizer import Tokenizer

    tokenizer = Tokenizer.open(tmp_path / "tokenizer")
    seen = []
    for store in Corpus.open(tmp_path / "tokens").stores().values():
        assert store.tokens.dtype == np.uint16
        for index, row in enumerate(store.documents):
            tokens = store.document(index)
            assert tokens[-1] == END_ID
            assert tokenizer.decode(tokens.tolist()) == texts[int(row["id"])]
            assert store.num_bytes[index] == len(texts[int(row["id"])].encode())
            assert row["title"] == f"T{row['id']}"
            seen.append(row["id"])
    assert sorted(seen) == sorted(map(str, range(len(texts))))
    assert corpus.train.fingerprint != corpus.test.fingerprint  # type: ignore[union-attr]


def test_duplicates_and_near_duplicates_of_held_out_documents_leave_the_training_set(texts: list[str], tmp_path: Path) -> None:
    split = {document.id: split_of(document, CONFIG) for document in documents(texts)}
    held_out = next(text for text, name in zip(texts, split.values(), strict=True) if name == "test" and len(text) > 400)
    copies, position = [held_out, held_out + "One more word."], len(texts)
    while len(copies) < 20:  # enough copies for some to be drawn for training
        copies.append(held_out + f"{len(copies)}")
    corpus = make([*texts, *copies], tmp_path)
    ids = {row["id"] for row in corpus.train.documents}
    removed = {row["document"] for row in json.loads((tmp_path / "tokens" / "contaminated.json").read_text())}
    drawn = {
        str(position + n)
        for n in range(20)
        if split_of(Document(str(position + n), "", "test"), CONFIG) == "train" and copies[n] != held_out
    }
    assert drawn
    assert drawn <= removed
    assert not removed & ids


def test_ingesting_again_reuses_and_other_text_is_refused(texts: list[str], tmp_path: Path) -> None:
    first = make(texts, tmp_path)
    assert make(texts, tmp_path).train.fingerprint == first.train.fingerprint
    with pytest.raises(ArtifactError, match="documents differ"):
        make(texts[:-1], tmp_path)


def test_documents_that_are_too_long_or_empty_are_left_out() -> None:
    config = CorpusConfig(max_document_bytes=5, valid_fraction=0, test_fraction=0)
    kept = select(documents(["short", "too long", "", " \n"]), config)
    assert [document.text for document in kept["train"]] == ["short"]


@pytest.mark.parametrize("texts", [[], ["", "\n"]])
def test_an_empty_corpus_is_refused(texts: list[str]) -> None:
    with pytest.raises(DataError, match="no training document with text"):
        select(documents(texts), CONFIG)
