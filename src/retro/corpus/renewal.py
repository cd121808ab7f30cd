"""Ingesting again after the sources have changed: the new corpus beside the old one, and then in its place.

Whatever follows from the text is written below `renewal.partial`, while the corpus stays as it is. Once all
of it is finished, that folder is renamed to `renewal`: from this moment on the new corpus is the one that
counts, and whoever opens the corpus next brings into place what a kill has left there. The tokenizer is not
part of this: it stays, and so do datastores and runs that were made with it.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from retro.config import CorpusConfig
from retro.config.as_json import to_dict
from retro.corpus.encode import EncodedStore
from retro.corpus.pack import AGAINST
from retro.corpus.readers.records import split_fields
from retro.corpus.text import SETTINGS, TextStore
from retro.errors import ArtifactError
from retro.stages.files import locked, write_json
from retro.stages.hints import FIELDS
from retro.stages.stage import (
    Artifact,
    differences,
    open_artifact,
    partial_of,
    put_in_place,
    recorded_inputs,
    way_out,
)
from retro.wording import counted

PLACE = "renewal"
FOLDERS = ("text", "encoded", "tokens")
"""What is renewed together."""
CHANGES = "changes.json"
"""What the last renewal added, changed and removed; it lies beside the token stores."""

Key = tuple[str, str]
"""A document's source and id."""


@dataclass
class Changes:
    """How the documents of two corpora differ; those that are named are sources and ids."""

    added: list[Key] = field(default_factory=list)
    changed: list[Key] = field(default_factory=list)
    removed: list[Key] = field(default_factory=list)
    unchanged: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def __str__(self) -> str:
        return (
            f"{counted(len(self.added), 'document')} added, {len(self.changed):,} changed, "
            f"{len(self.removed):,} removed, {self.unchanged:,} unchanged"
        )

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))


def begin(
    work: Path, inputs: dict[str, str], config: CorpusConfig, against: str, command: str
) -> Path | None:
    """The folder in which changed sources are ingested; none if they are those that were ingested before.

    `inputs` are the fingerprints of the sources, and `against` is that of what training documents are
    compared with besides. Other settings than those of the corpus are refused, and so is a missing source.
    """
    settle(work)
    text = work / "text"
    place = partial_of(work / PLACE)
    recorded = recorded_inputs(text)
    if recorded in ({}, inputs):
        shutil.rmtree(place, ignore_errors=True)  # of a state of the sources that is gone again
        return None
    _expect_same_settings(work, inputs, recorded, config, against, command)
    if not _are_files(name for name in inputs if inputs[name] != recorded.get(name)):
        return None  # refused by the stage: what is named by its revision does not change unnoticed
    if not text.exists():
        # Begun and not finished, its shards are those of other files; unless they are being mended.
        if not (work / "encoded").exists():
            with locked(partial_of(text)):
                shutil.rmtree(partial_of(text))
        return None
    if recorded_inputs(place / "text") not in ({}, inputs):
        shutil.rmtree(place)  # begun for a state of the sources that is gone
    # One that was begun and not finished would be refused, as it was begun with the old text.
    shutil.rmtree(partial_of(work / "tokenizer"), ignore_errors=True)
    return place


def commit(place: Path, work: Path) -> None:
    """Let the finished renewal count, and bring it into place."""
    place.replace(work / PLACE)
    settle(work)


def settle(work: Path) -> None:
    """Bring a renewal into place that was finished; one rename a folder, so that a kill can be made good."""
    renewal = work / PLACE
    if not renewal.exists():
        return
    with locked(renewal):
        for name in FOLDERS:
            if (renewal / name).exists():
                shutil.rmtree(partial_of(work / name), ignore_errors=True)
                put_in_place(renewal / name, work / name)
        shutil.rmtree(renewal)


def compare(former: EncodedStore, text: TextStore) -> Changes:
    """What is new, other or gone in a text, document by document."""
    known: dict[Key, list[tuple[str, ...]]] = defaultdict(list)
    for row in former.rows():
        known[row["source"], row["id"]].append(
            (row["content_hash"], row["title"], row["language"], row["split"])
        )
    changes = Changes()
    for document in text.documents():
        key = (document.source, document.id)
        # A list, as the ids of some sources are not unique; the first stands for the first.
        before = known[key].pop(0) if known.get(key) else None
        if before is None:
            changes.added.append(key)
        elif before != (document.content_hash, document.title, document.language, document.split):
            changes.changed.append(key)
        else:
            changes.unchanged += 1
    changes.removed = [key for key, rows in known.items() for _ in rows]
    return changes


def _expect_same_settings(
    work: Path,
    inputs: dict[str, str],
    recorded: dict[str, str],
    config: CorpusConfig,
    against: str,
    command: str,
) -> None:
    """Refuse what would make another corpus, and not the same one of other text."""
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    packed = _finished(work / "tokens" / "train", "tokens", command)
    if packed is not None:
        # It has all settings, with which a corpus is told from every other.
        old |= {key: value for key, value in packed.config.items() if key not in ("split", "sources")}
        new |= {key: value for key, value in to_dict(config).items() if key != "sources"}
        old["remove_names"] = packed.inputs.get(AGAINST, "")
        new["remove_names"] = against
    else:
        text = _finished(work / "text", "text", command)
        old |= text.config if text is not None else {}
        new |= {key: to_dict(config)[key] for key in (SETTINGS if text is not None else ())}
    old |= {name: value for name, value in recorded.items() if name.startswith(FIELDS)}
    new |= {name: value for name, value in inputs.items() if name.startswith(FIELDS)}
    # A file that is read with another field map is another text.
    own = {_place(name).resolve(): split_fields(name)[1] for name in inputs if not name.startswith(FIELDS)}
    for name in recorded:
        if not name.startswith(FIELDS) and (given := own.get(_place(name).resolve())) is not None:
            old[name] = split_fields(name)[1]
            new[name] = given
    if changed := differences(old, new):
        raise ArtifactError(
            f"{work} was made with other settings ({', '.join(changed)} differ); {way_out(command)}"
        )
    _expect_all_sources(work, list(inputs), list(recorded), command)


def _expect_all_sources(work: Path, given: Sequence[str], recorded: Sequence[str], command: str) -> None:
    """Refuse a command that lacks a source: it would remove all of its documents."""
    places = {_place(name).resolve() for name in given}
    names = {place.name for place in places}

    def is_given(name: str) -> bool:
        # One folder may be written in several ways, or lie elsewhere now; then its name tells.
        place = _place(name).resolve()
        return name in given or place in places or (place.name in names and not place.exists())

    missing = [name for name in recorded if not name.startswith(FIELDS) and not is_given(name)]
    if missing:
        raise ArtifactError(
            f"{work} was made of {', '.join(missing)} as well, which is not named now; expected all of its "
            f"sources, and new ones beside them; {way_out(command)}"
        )


def _are_files(names: Iterable[str]) -> bool:
    """Whether all of these sources are files or folders, whose changes are followed."""
    return all(_place(name).exists() for name in names if not name.startswith(FIELDS))


def _place(source: str) -> Path:
    """A source's path, without the field map that may follow it."""
    return Path(split_fields(source)[0])


def _finished(path: Path, kind: str, command: str) -> Artifact | None:
    return open_artifact(path, kind, command) if path.exists() else None
