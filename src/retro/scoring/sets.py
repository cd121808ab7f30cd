"""Evaluation sets: any documents, as tokens and neighbours of a workspace that was made without them."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from retro.corpus.documents import Document
from retro.corpus.encode import EncodedDocument, row_of
from retro.corpus.readers import READERS, FieldMap, read
from retro.corpus.readers.sources import fingerprint_of
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore, write_tokens
from retro.errors import DataError
from retro.retrieval.chunks import content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.neighbours import Neighbours, find_neighbours
from retro.scoring.seen import Seen, find_seen
from retro.stages.files import make_fingerprint, write_json
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Stage, open_artifact, run_stage

COMMAND = "retro evaluate WORK RUN --on SOURCE"


@dataclass(frozen=True)
class EvaluationSet:
    """Documents that are ready to be scored, and which of them are no news."""

    name: str
    neighbours: Neighbours
    seen: Seen

    @property
    def store(self) -> TokenStore:
        return self.neighbours.store


def name_of(source: str) -> str:
    """What a set's folder is called: the catalogue's name, or that of the file or folder without its endings."""
    base = source if source.partition("@")[0] in READERS else Path(source).resolve().name.partition(".")[0]
    return re.sub(r"[^\w@-]+", "-", base).strip("-") or "set"


def documents_of(source: str, fields: FieldMap | None = None) -> Iterator[Document]:
    """Whatever the readers read; of a corpus of the catalogue one split alone, if it is named: `wikitext-2@test`."""
    name, split = _without_split(source)
    found = False
    for document in read(name, fields):
        if document.text and split in ("", document.split):
            found = True
            yield document
    if not found:
        raise DataError(
            f"{source} holds no document{f' of a split {split!r}' * bool(split)}; expected at least one; name another source"
        )


def source_fingerprint(source: str, fields: FieldMap | None = None) -> str:
    """Changes with the documents."""
    name, split = _without_split(source)
    return make_fingerprint(fingerprint_of(name), split, asdict(fields or FieldMap()))


def _without_split(source: str) -> tuple[str, str]:
    name, _, split = source.partition("@")
    return (name, split) if name in READERS else (source, "")


def make_set(
    source: str,
    path: Path,
    datastore: Datastore,
    training: TokenStore | None,
    fields: FieldMap | None = None,
    progress: Progress = no_progress,
) -> EvaluationSet:
    """Encode the documents, find their neighbours, and compare them with the training text; what is finished below `path` is kept."""
    store = write_set(source, path / "tokens", datastore.tokenizer, fields)
    neighbours = find_neighbours(store, datastore, path / "neighbours", progress)
    return EvaluationSet(path.name, neighbours, _compare(store, datastore, training, path / "seen"))


def write_set(source: str, path: Path, tokenizer: Tokenizer, fields: FieldMap | None = None) -> TokenStore:
    """The token store of a set, in the order of the source. Memory holds the tokens of the set, not its text."""
    inputs = {"documents": source_fingerprint(source, fields)}
    if path.exists() and TokenStore.open(path).artifact.inputs == {
        **inputs,
        "tokenizer": tokenizer.fingerprint,
    }:
        return TokenStore.open(path)
    encoded = []
    for number, document in enumerate(documents_of(source, fields)):
        tokens = np.array(tokenizer.encode(document.text), dtype=tokenizer.dtype)
        encoded.append(EncodedDocument(number, row_of(document, len(tokens)), tokens))
    return write_tokens(encoded, [document.row for document in encoded], path, tokenizer, {}, inputs)


def _compare(store: TokenStore, datastore: Datastore, training: TokenStore | None, path: Path) -> Seen:
    """What of the store is known; done again when the datastore has changed."""
    inputs = {
        "tokens": store.fingerprint,
        "datastore": datastore.snapshot().version.lineage,
    }
    if training is not None:
        inputs["training"] = training.fingerprint
    if path.exists() and open_artifact(path, "seen", COMMAND).inputs != inputs:
        shutil.rmtree(path)

    def work(stage: Stage) -> None:
        documents = [store.document(number) for number in range(len(store))]
        seen = find_seen(
            [row["id"] for row in store.documents], content_hashes(store), documents, datastore, training
        )
        write_json(stage.file("seen.json"), seen.ids)
        stage.counts.update(documents=seen.documents, exact=seen.exact, near=seen.near)

    artifact = run_stage(path, "seen", {}, inputs, work, COMMAND)
    return Seen(**artifact.counts, ids=tuple(json.loads(artifact.file("seen.json").read_text())))
