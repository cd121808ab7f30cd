"""The stages of a corpus in order, from sources to token stores. They need no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from retro.config import CorpusConfig
from retro.config.as_json import from_dict
from retro.corpus import readers
from retro.corpus.encode import EncodedStore, encode_text
from retro.corpus.folder import CorpusFolder
from retro.corpus.pack import pack
from retro.corpus.readers import FieldMap, Problems
from retro.corpus.readers.sources import fingerprint_of, read_raw, size_of
from retro.corpus.text import ReadingProgress, raw_text, write_text
from retro.corpus.tokenizers.training import make_tokenizer
from retro.corpus.tokens import Corpus
from retro.stages.executor import Executor, LocalExecutor
from retro.stages.files import write_json
from retro.stages.progress import Progress, at_step, no_progress
from retro.stages.stage import open_artifact, recorded_inputs, reopen_broken


def ingest(
    folder: CorpusFolder,
    sources: Sequence[str],
    config: CorpusConfig,
    fields: FieldMap | None = None,
    strict: bool = True,
    names: frozenset[str] = frozenset(),
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> Corpus:
    """Read the sources, make a tokenizer, and write the token stores; what is finished is only opened.

    Unless `strict`, records that cannot be read are skipped and listed in `skipped.json`. Training documents
    whose title or id is among `names` are removed.
    """
    executor = executor or LocalExecutor()
    problems = Problems(strict)
    # Nothing is read yet: if the text is finished, it never will be.
    items = (item for source in sources for item in read_raw(source, fields, problems))
    # What the corpus was made from counts where a source cannot be asked now.
    recorded = recorded_inputs(folder.text_path)
    inputs = {source: fingerprint_of(source, recorded.get(source, "")) for source in sources}
    inputs |= _named_fields(fields or FieldMap())
    reading = _reading(sources, progress)
    text = write_text(items, folder.text_path, config, inputs, executor, problems, reading)
    if problems.count:
        write_json(folder.skipped_path, {"skipped": problems.count, "first": problems.rows})
    progress(0, 0, "Learning a tokenizer")
    tokenizer = make_tokenizer(text, folder.tokenizer_path, config)
    encoding = at_step(progress, "Cutting text into tokens")
    encoded = encode_text(text, folder.tokenizer_path, folder.encoded_path, executor, encoding)
    progress(0, 0, "Removing duplicates and contamination")
    return pack(encoded, tokenizer, folder.tokens_path, config, names)


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
    sources: Sequence[str], fields: FieldMap | None = None, strict: bool = False
) -> Iterator[tuple[str, int, int, Problems]]:
    """Every source with its documents and bytes before cleaning and what would be skipped; writes nothing."""
    for source in sources:
        problems = Problems(strict)
        num_documents = 0
        num_bytes = 0
        for item in read_raw(source, fields, problems):
            num_documents += 1
            num_bytes += len(raw_text(item).encode())
        yield source, num_documents, num_bytes, problems


def check(folder: CorpusFolder) -> None:
    """Compare every file of the finished stages with its checksum."""
    for path, kind in folder.finished_stages().items():
        open_artifact(path, kind, folder.command).check()


def mend(folder: CorpusFolder) -> list[str]:
    """Remove damaged files from the finished stages and name them; ingesting again makes those alone."""
    return [name for path in folder.finished_stages() for name in reopen_broken(path)]


def _reading(sources: Sequence[str], progress: Progress) -> ReadingProgress:
    """Reading as a step; where all sources are files, the total is their size."""
    sizes = [size_of(source) for source in sources]
    total = sum(sizes) if all(sizes) else 0

    def reading(num_documents: int, text_bytes: int, position: int) -> None:
        note = f"{num_documents:,} documents, {text_bytes / 1e6:,.1f} MB"
        progress(min(position, total), total, "Reading", note)

    return reading


def _named_fields(fields: FieldMap) -> dict[str, str]:
    """The fields that are not called as usual: with other names the same files make another corpus."""
    usual = asdict(FieldMap())
    return {f"fields.{name}": value for name, value in asdict(fields).items() if value != usual[name]}
