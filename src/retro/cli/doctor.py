"""retro doctor"""

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from retro import catalogue
from retro.cli.console import CONSOLE, parse, print_table

# Optional packages, each with the extra that installs it.
EXTRAS = {"matplotlib": "eval"}
CORE = ("torch", "transformers", "faiss-cpu", "sentencepiece", "safetensors", "numpy")


@dataclass(frozen=True)
class Options:
    """Say what is installed, fetched and missing, or whether a workspace's corpus is whole."""

    work: Path | None = None
    """A workspace whose corpus files are compared with their checksums."""
    mend: bool = False
    """Take broken files out, so that `retro ingest` makes those alone again."""


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
    CONSOLE.print(
        f"now run: retro ingest … --out {path}" if broken else f"{path}: nothing is broken", soft_wrap=True
    )


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "doctor")
    if options.work is not None:
        check_corpus(options.work, options.mend)
        return
    rows = [["python", platform.python_version()], ["cores", str(os.cpu_count())]]
    rows += [[name, importlib.metadata.version(name)] for name in CORE]
    for name, extra in EXTRAS.items():
        installed = importlib.util.find_spec(name) is not None
        missing = f"missing; run: pip install 'retro-lm[{extra}]'"
        rows.append([name, importlib.metadata.version(name) if installed else missing])
    rows.append(["cache", str(catalogue.cache_dir())])
    for name in catalogue.ENTRIES:
        fetched = catalogue.folder_of(name).exists()
        rows.append([name, "fetched" if fetched else f"not fetched; run: retro fetch {name}"])
    print_table("retro doctor", ["what", "found"], rows)
