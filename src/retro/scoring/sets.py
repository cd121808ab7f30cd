"""Evaluation sets: any documents, as tokens and neighbours for a workspace that was made without them.

A model may have seen such documents before, so those that are also in the training text or the
datastore are counted: this is leakage of whole documents, and it is reported.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retro.corpus.decontamination import find_pairs
from retro.corpus.documents import Document
from retro.corpus.encode import EncodedDocument, row_of
from retro.corpus.readers import READERS, FieldMap, read
from retro.corpus.readers.records import split_fields
from retro.corpus.readers.sources import fingerprint_of
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore, write_tokens
from retro.errors import DataError
from retro.retrieval.chunks import content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.finding import find_neighbours
from retro.retrieval.neighbours import Neighbours
from retro.stages.executor import Executor
from retro.stages.files import make_fingerprint, write_json
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Stage, open_artifact, run_stage
from retro.wording import counted

COMMAND = "retro evaluate WORK RUN --on SOURCE"


@dataclass(frozen=True)
class Seen:
    """How many documents of a set are also in the datastore or the training text."""

    documents: int
    """All documents of the set."""
    exact: int
    """Documents whose text is there, character for character."""
    near: int
    """Other documents with a 13-gram Jaccard similarity of at least 0.8 to one there."""
    ids: tuple[str, ...]
    """The ids of exact and near ones."""

    @staticmethod
    def read(record: dict[str, Any]) -> "Seen":
        """From results, which keep it with the scores."""
        return Seen(**{**record, "ids": tuple(record["ids"])})

    @property
    def count(self) -> int:
        return self.exact + self.near

    def __str__(self) -> str:
        verb = "is" if self.documents == 1 else "are"
        return (
            f"{self.count} of {counted(self.documents, 'document')} {verb} in the training text "
            f"or the datastore ({self.exact} exactly, {self.near} nearly)"
        )


@dataclass(frozen=True)
class EvaluationSet:
    """Documents that are ready to be scored, and which of them were seen before."""

    name: str
    neighbours: Neighbours
    seen: Seen
    source: str = ""
    """What was named to make it."""

    @property
    def store(self) -> TokenStore:
        return self.neighbours.store


def name_of(source: str) -> str:
    """The name of a set's folder: its catalogue name, or its file's or folder's name and digits of a hash."""
    if source.partition("@")[0] in READERS:
        return _plain(source)
    # Files with the same name in different folders are different sets; one file is one set,
    # however its path is written. A source that is not a path, such as a name on the hub, must
    # not depend on the folder the command is run in.
    path = split_fields(source)[0]
    address = str(Path(path).resolve()) if Path(path).exists() else path
    # A path need not be UTF-8; Python spells what is not as lone surrogates.
    digits = hashlib.sha256(address.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{_former_name_of(source)}-{digits}"


def _former_name_of(source: str) -> str:
    """The name of a set's folder from before files with the same name were told apart."""
    source, _ = split_fields(source)
    is_listed = source.partition("@")[0] in READERS
    return _plain(source if is_listed else Path(source).resolve().name.partition(".")[0])


def _plain(name: str) -> str:
    return re.sub(r"[^\w@-]+", "-", name).strip("-") or "set"


def set_folder(sets: Path, source: str, fields: FieldMap | None = None) -> Path:
    """The folder of a source below `sets`, or the one with its former name if it holds these documents."""
    # The folder may have been made for another file with the same name, so the documents must
    # match.
    former = sets / _former_name_of(source)
    if (former / "tokens").exists():
        found = TokenStore.open(former / "tokens").artifact.inputs["documents"]
        if found == source_fingerprint(source, fields):
            return former
    return sets / name_of(source)


def documents_of(source: str, fields: FieldMap | None = None) -> Iterator[Document]:
    """The documents of a source; for a corpus of the catalogue, a split can be named: `wikitext-2@test`."""
    name, split = _without_split(source)
    found = False
    for document in read(name, fields):
        if document.text and split in ("", document.split):
            found = True
            yield document
    if not found:
        of_split = f" of a split {split!r}" if split else ""
        raise DataError(f"{source} holds no document{of_split}; expected at least one; name another source")


def source_fingerprint(source: str, fields: FieldMap | None = None) -> str:
    """A fingerprint that changes with the documents."""
    name, split = _without_split(source)
    _, fields = split_fields(name, fields)
    return make_fingerprint(fingerprint_of(name), split, asdict(fields))


def _without_split(source: str) -> tuple[str, str]:
    # Only catalogue names have splits; a file's name may contain an @ of its own.
    name, _, split = source.partition("@")
    return (name, split) if name in READERS else (source, "")


def make_set(
    source: str,
    path: Path,
    datastore: Datastore,
    training: TokenStore | None,
    fields: FieldMap | None = None,
    progress: Progress = no_progress,
    command: str = COMMAND,
    executor: Executor | None = None,
) -> EvaluationSet:
    """Encode the documents, find their neighbours, and compare them with the training text.

    Finished stages below `path` are reused. `command` is what a user runs for it.
    """
    store = write_set(source, path / "tokens", datastore.tokenizer, fields, command)
    neighbours = find_neighbours(store, datastore, path / "neighbours", progress, executor)
    seen = _compare(store, datastore, training, path / "seen")
    return EvaluationSet(path.name, neighbours, seen, source)


def write_set(
    source: str, path: Path, tokenizer: Tokenizer, fields: FieldMap | None = None, command: str = COMMAND
) -> TokenStore:
    """The token store of a set, in the source's order."""
    inputs = {"documents": source_fingerprint(source, fields)}
    # If the set has been encoded before, its tokens are reused and the source is not read
    # again.
    if path.exists():
        store = TokenStore.open(path)
        if store.artifact.inputs == {**inputs, "tokenizer": tokenizer.fingerprint}:
            return store

    def encoded() -> Iterator[EncodedDocument]:
        for number, document in enumerate(documents_of(source, fields)):
            tokens = np.array(tokenizer.encode(document.text), dtype=tokenizer.dtype)
            yield EncodedDocument(number, row_of(document, len(tokens)), tokens)

    return write_tokens(encoded(), path, tokenizer, {}, inputs, command)


def _compare(store: TokenStore, datastore: Datastore, training: TokenStore | None, path: Path) -> Seen:
    """Which documents of the store were seen before; compared again when the datastore has changed."""
    inputs = {
        "tokens": store.fingerprint,
        "datastore": datastore.snapshot().version.lineage,
    }
    if training is not None:
        inputs["training"] = training.fingerprint
    # The answer depends on the datastore as it is now, and comparing again is quick.
    if path.exists() and open_artifact(path, "seen", COMMAND).inputs != inputs:
        shutil.rmtree(path)

    def work(stage: Stage) -> None:
        ids = store.documents.column("id").tolist()
        documents = [store.document(number) for number in range(len(store))]
        seen = find_seen(ids, content_hashes(store), documents, datastore, training)
        write_json(stage.file("seen.json"), seen.ids)
        stage.counts.update(documents=seen.documents, exact=seen.exact, near=seen.near)

    artifact = run_stage(path, "seen", {}, inputs, work, COMMAND)
    return Seen(**artifact.counts, ids=tuple(json.loads(artifact.file("seen.json").read_text())))


def find_seen(
    ids: Sequence[str],
    hashes: np.ndarray,
    documents: Sequence[np.ndarray],
    datastore: Datastore,
    training: TokenStore | None,
) -> Seen:
    """Compare documents with everything that was trained on or can be retrieved.

    Documents are given by ids, short content hashes and tokens. Only whole documents are
    compared: a passage from a longer document is not found this way; the overlap of chunks
    shows those. Without the training text, as with a run from elsewhere, documents are compared
    with the datastore alone.
    """
    trained_on = [] if training is None else [content_hashes(training)]
    known = np.concatenate([*trained_on, _live_hashes(datastore)])
    exact = np.isin(hashes, known)
    # An exact copy is also near, and is counted only as exact.
    near = np.zeros(len(ids), dtype=bool)
    near[[pair.held_out for pair in find_pairs(_known_documents(datastore, training), documents)]] = True
    found = np.array(ids, dtype=object)[near | exact]
    return Seen(len(ids), int(exact.sum()), int((near & ~exact).sum()), tuple(found.tolist()))


def _live_hashes(datastore: Datastore) -> np.ndarray:
    """Short content hashes of the documents that the datastore holds now."""
    snapshot = datastore.snapshot()
    # `live` marks the documents of a segment that are not deleted.
    parts = zip(snapshot.segments, snapshot.live, strict=True)
    return np.concatenate(
        [np.zeros(0, dtype=np.uint64), *(segment.documents["content_hash"][live] for segment, live in parts)]
    )


def _known_documents(datastore: Datastore, training: TokenStore | None) -> Iterator[np.ndarray]:
    """The datastore's documents, and those of the training text that are not among them."""
    snapshot = datastore.snapshot()
    for segment, live in zip(snapshot.segments, snapshot.live, strict=True):
        for document in segment.documents[live]:
            yield segment.tokens[document["start"] : document["end"]]
    if training is None:
        return
    for number in np.flatnonzero(~np.isin(content_hashes(training), _live_hashes(datastore))):
        yield training.document(int(number))
