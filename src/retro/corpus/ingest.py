"""The stages of a corpus in order, from sources to token stores. They need no torch."""

import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from retro import catalogue
from retro.config import FILE_BYTES, CorpusConfig
from retro.config.as_json import from_dict
from retro.corpus import readers
from retro.corpus.documents import SPLITS
from retro.corpus.encode import EncodedStore, encode_text
from retro.corpus.folder import CorpusFolder
from retro.corpus.gathering import ReadingProgress
from retro.corpus.pack import REPORT, against_fingerprint, pack
from retro.corpus.readers import FieldMap, Problems
from retro.corpus.readers.records import split_fields
from retro.corpus.readers.sources import fingerprint_of, read_raw, size_of
from retro.corpus.reading import plan_reading
from retro.corpus.renewal import CHANGES, PLACE, Changes, begin, commit, compare
from retro.corpus.text import look_at, write_text
from retro.corpus.tokenizers.training import make_tokenizer, take_tokenizer
from retro.corpus.tokens import Corpus
from retro.stages.executor import Executor, LocalExecutor
from retro.stages.progress import Progress, at_step, no_progress
from retro.stages.redo import Removal, removal_of
from retro.stages.stage import open_artifact, partial_of, recorded_inputs, reopen_broken
from retro.wording import counted


def ingest(
    folder: CorpusFolder,
    sources: Sequence[str],
    config: CorpusConfig,
    fields: FieldMap | None = None,
    strict: bool = True,
    names: frozenset[str] = frozenset(),
    executor: Executor | None = None,
    progress: Progress = no_progress,
    told: Callable[[Changes], None] = lambda changes: None,
    file_bytes: int = FILE_BYTES,
) -> Corpus:
    """Read the sources, make a tokenizer, and write the token stores; what is finished is only opened.

    Sources of the catalogue are fetched first. Unless `strict`, what cannot be read is left out; all that is
    left out is listed in `text/left-out.jsonl`. Training documents whose title or id is among `names` are
    removed. Where the sources have changed since they were ingested, the tokenizer stays, only new text is
    cut into tokens, and `told` is called with what has changed. `file_bytes` bounds the files of tokens.
    """
    folder.expect_outside(sources)
    problems = Problems(strict)
    for source in sources:
        catalogue.fetch_if_missing(source, progress)
    # Nothing is read yet: if the text is finished, it never will be.
    plan = partial(plan_reading, sources, fields)
    # What the corpus was made from counts where a source cannot be asked now.
    recorded = recorded_inputs(folder.text_path)
    inputs = {source: fingerprint_of(source, recorded.get(source, "")) for source in sources}
    inputs |= _named_fields(fields or FieldMap())
    reading = _reading(sources, progress)
    renewal = begin(folder.path, inputs, config, against_fingerprint(names), _command(folder, sources))
    place = CorpusFolder(renewal) if renewal is not None else folder
    # Before the text is read: a name may be wrong, or a hub out of reach.
    taken = take_tokenizer(config.tokenizer, folder.tokenizer_path) if config.tokenizer else None
    # The processes are let go before the rest, which needs none.
    with closing(executor or LocalExecutor()) as workers:
        workers.needs(folder.path, *_named_paths(sources))
        text = write_text(plan, place.text_path, config, inputs, workers, problems, reading)
        if renewal is None and taken is None:
            progress(0, 0, "Learning a tokenizer")
        tokenizer = taken or make_tokenizer(text, folder.tokenizer_path, config)
        former = folder.encoded_path if renewal is not None and folder.is_finished else None
        changes = Changes()
        if renewal is not None and former is not None:
            changes = compare(EncodedStore(open_artifact(former, "encoded", folder.command)), text)
            if not changes:  # files were touched, and nothing was written into them
                shutil.rmtree(renewal)
                told(changes)
                return folder.corpus()
        encoding = at_step(progress, "Cutting text into tokens")
        encoding(0, 0)  # the first shard may take long
        encoded = encode_text(text, folder.tokenizer_path, place.encoded_path, workers, encoding, former)
    progress(0, 0, "Removing duplicates and contamination")
    replaced = folder.tokens_path if renewal is not None else None
    corpus = pack(
        encoded, tokenizer, place.tokens_path, config, names, former=replaced, file_bytes=file_bytes
    )
    if renewal is None:
        return corpus
    changes.write(place.tokens_path / CHANGES)
    commit(renewal, folder.path)
    told(changes)
    return folder.corpus()


def decontaminate(
    folder: CorpusFolder, out: Path, against: Sequence[str], names: frozenset[str] = frozenset()
) -> Corpus:
    """Write the token stores again below `out`, without training documents close to `against` or named."""
    # The settings that the corpus was packed with, which its training store has kept.
    settings = folder.corpus().train.artifact.config
    config = from_dict(CorpusConfig, {key: value for key, value in settings.items() if key != "split"})
    encoded = EncodedStore(open_artifact(folder.encoded_path, "encoded", folder.command))
    tokenizer = folder.tokenizer()
    documents = (document for source in against for document in readers.read(source))
    given = [np.array(tokenizer.encode(document.text), dtype=tokenizer.dtype) for document in documents]
    return pack(encoded, tokenizer, out, config, names, given)


def look(
    sources: Sequence[str],
    config: CorpusConfig,
    fields: FieldMap | None = None,
    strict: bool = False,
    executor: Executor | None = None,
    progress: Progress = no_progress,
    kept: list[dict[str, Any]] | None = None,
) -> Iterator[tuple[str, Counter[str], Problems]]:
    """Every source with what ingesting would count and leave out of it; writes nothing.

    `kept` receives a row of every document that is kept, among which `duplicates` finds copies. Only
    contamination is not known yet, as it is found among the tokens.
    """
    executor = executor or LocalExecutor()
    for source in sources:
        catalogue.fetch_if_missing(source, progress)
        problems = Problems(strict)
        plan = partial(plan_reading, [source], fields)
        counts = look_at(plan, config, executor, problems, _reading([source], progress), kept)
        yield source, counts, problems


def removal(folder: CorpusFolder, sources: Sequence[str], fields: FieldMap | None = None) -> Removal:
    """What ingesting anew removes: tokens, tokenizer and text, but nothing that was made from them.

    Sources that cannot be read are refused now, and not when there is no corpus any more.
    """
    for source in sources:
        next(iter(read_raw(source, fields, Problems(strict=False))), None)
    tokens = [folder.tokens_path / split for split in SPLITS]
    # The last stage first: what a kill leaves are then stages whose inputs are there.
    stages = [*tokens, folder.encoded_path, folder.tokenizer_path, folder.text_path]
    files = [folder.tokens_path / name for name in (REPORT, CHANGES)]
    renewals = [partial_of(folder.path / PLACE), folder.path / PLACE]
    dependents = [folder.path / "datastore", folder.path / "neighbours"]
    dependents += sorted((folder.path / "runs").glob("*")) + sorted((folder.path / "evaluations").glob("*"))
    return removal_of(stages, [*files, *renewals], dependents)


def check(folder: CorpusFolder) -> None:
    """Compare every file of the finished stages with its checksum."""
    for path, kind in folder.finished_stages().items():
        open_artifact(path, kind, folder.command).check()


def mend(folder: CorpusFolder) -> list[str]:
    """Remove damaged files from the finished stages and name them; ingesting again makes those alone."""
    return [name for path in folder.finished_stages() for name in reopen_broken(path)]


def _command(folder: CorpusFolder, sources: Sequence[str]) -> str:
    return f"retro ingest {' '.join(map(shlex.quote, sources))} --out {shlex.quote(str(folder.path))}"


def _reading(sources: Sequence[str], progress: Progress) -> ReadingProgress:
    """Reading as a step; where all sources are files, the total is their size."""
    sizes = [size_of(source) for source in sources]
    total = sum(sizes) if all(sizes) else 0

    def reading(num_documents: int, text_bytes: int, position: int) -> None:
        note = f"{counted(num_documents, 'document')}, {text_bytes / 1e6:,.1f} MB"
        progress(min(position, total), total, "Reading", note)

    return reading


def _named_paths(sources: Sequence[str]) -> list[Path]:
    """The sources that are files or folders, which workers have to see."""
    names = (split_fields(source)[0] for source in sources)
    return [Path(name) for name in names if Path(name).exists()]


def _named_fields(fields: FieldMap) -> dict[str, str]:
    """The fields that are not called as usual: with other names the same files make another corpus."""
    usual = asdict(FieldMap())
    return {f"fields.{name}": value for name, value in asdict(fields).items() if value != usual[name]}
