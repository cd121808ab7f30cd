"""retro doctor"""

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from retro import catalogue, shipped
from retro.cli.console import CONSOLE, parse, print_table
from retro.errors import ConfigError
from retro.stages.hints import with_paths

PACKAGE = "retro-lm"
CORE = ("torch", "transformers", "faiss-cpu", "sentencepiece", "safetensors", "numpy", "pyarrow")
PURPOSES = {
    "bases": "the base model smollm2",
    "bm25": "indexes bm25 and hybrid, answers by --bm25",
    "eval": "figures of reports",
    "harness": "tasks of lm-evaluation-harness",
    "html": "web pages as sources",
    "hf": "datasets of the hub as sources, hf:NAME",
    "milvus": "Milvus as a search engine, retro db engine",
    "pdf": "PDF files as sources",
    "s3": "workspaces at s3:// addresses",
    "scale": "Ray clusters, --executor ray",
    "scann": "index scann",
    "serve": "the server, retro serve",
    "tensorboard": "metrics for TensorBoard",
    "wikipedia": "Wikipedia dumps as sources",
    "dev": "tests and checks of retro itself",
}
"""What each extra is for. Which ones there are, the package itself says."""


@dataclass(frozen=True)
class Options:
    """Say what is installed, fetched and missing, or whether a workspace's corpus is whole."""

    work: Path | None = None
    """A workspace whose corpus files are compared with their checksums."""
    mend: bool = False
    """Take broken files out, so that `retro ingest` makes those alone again."""


@dataclass(frozen=True)
class OptionalPackage:
    """A package that an extra installs."""

    name: str
    extra: str
    version: str
    """Empty if it is not installed."""

    @property
    def found(self) -> str:
        return self.version or f"missing; run: pip install '{PACKAGE}[{self.extra}]'"


def optional_packages() -> Iterator[OptionalPackage]:
    """Every package of every extra, as the metadata of the installed package lists them."""
    if not _version(PACKAGE):  # run from a folder of sources that was never installed
        return
    about = importlib.metadata.metadata(PACKAGE)
    requirements = [Requirement(text) for text in importlib.metadata.requires(PACKAGE) or ()]
    for extra in about.get_all("Provides-Extra") or ():
        for requirement in requirements:
            # A marker such as `extra == "hf"` holds with its extra alone; one of the system always or never.
            marker = requirement.marker
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                yield OptionalPackage(requirement.name, extra, _version(requirement.name))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_corpus(path: Path, mend: bool) -> None:
    from retro.corpus import ingest
    from retro.corpus.folder import CorpusFolder

    work = CorpusFolder(path)
    if not mend:
        # Raises if a file does not match.
        ingest.check(work)
        CONSOLE.print(f"{path}: every file of the corpus matches its checksum", soft_wrap=True)
        return
    broken = ingest.mend(work)
    for name in broken:
        CONSOLE.print(f"{name} was broken and has been taken out", soft_wrap=True)
    next_step = f"now run: {with_paths(work.command, work.text_path)}"
    CONSOLE.print(next_step if broken else f"{path}: nothing is broken", soft_wrap=True)


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "doctor")
    if options.work is not None:
        check_corpus(options.work, options.mend)
        return
    if options.mend:
        raise ConfigError("--mend mends the corpus of a workspace; expected --work WORK with it")
    rows = [["python", platform.python_version()], ["cores", str(os.cpu_count())]]
    rows += [[name, _version(name) or "missing"] for name in CORE]
    rows.append(["cache", str(catalogue.cache_dir())])
    rows.append(["models that come with it", ", ".join(shipped.names()) or "none"])
    print_table("retro doctor", ["what", "found"], rows)
    optional = [[item.name, item.found, PURPOSES.get(item.extra, item.extra)] for item in optional_packages()]
    print_table("optional packages", ["package", "found", "for"], optional)
    fetched = []
    for entry in catalogue.ENTRIES.values():
        here = catalogue.folder_of(entry.name).exists()
        fetched.append([entry.name, "fetched" if here else f"not fetched; run: retro fetch {entry.name}"])
    print_table("catalogue", ["name", "found"], fetched)
