"""Small datastores for the tests: real tokens, real keys, a real ledger."""

from collections.abc import Sequence
from pathlib import Path

from retro.config import CorpusConfig, DatastoreConfig
from retro.corpus.documents import Document
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.build import build_datastore


def make_documents(texts: Sequence[str], source: str = "more", first: int = 0) -> list[Document]:
    return [
        Document(f"{source}-{number}", text, source, f"Title {number}")
        for number, text in enumerate(texts, start=first)
    ]


def corpus_of(folder: Path, source: Path, vocab_size: int = 320) -> CorpusFolder:
    """All documents of a folder as training tokens."""
    work = CorpusFolder(folder)
    ingest(work, [str(source)], CorpusConfig(vocab_size=vocab_size, valid_fraction=0.0, test_fraction=0.0))
    return work


def config_of(encoder: str, **settings: object) -> DatastoreConfig:
    return DatastoreConfig(**{"embedder": encoder, "chunk_len": 8, "num_neighbours": 4, **settings})


def build(work: CorpusFolder, path: Path, encoder: str, **settings: object) -> Datastore:
    return build_datastore([work.store("train")], work.tokenizer_path, path, config_of(encoder, **settings))


def held(datastore: Datastore) -> set[str]:
    """Ids of the documents that a search for everything returns."""
    return {neighbour.document for neighbour in datastore.search(["anything"], 100_000)[0]}
