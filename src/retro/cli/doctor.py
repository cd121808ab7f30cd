"""retro doctor"""

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass

from retro.cli.console import parse, print_table
from retro.corpus import catalogue

EXTRAS = {"matplotlib": "eval"}
CORE = ("torch", "transformers", "faiss-cpu", "sentencepiece", "safetensors", "numpy")


@dataclass(frozen=True)
class Options:
    """Say what is installed, what has been fetched, and what is missing."""


def main(arguments: list[str]) -> None:
    parse(Options, arguments, "doctor")
    rows = [["python", platform.python_version()], ["cores", str(os.cpu_count())]]
    rows += [[name, importlib.metadata.version(name)] for name in CORE]
    for name, extra in EXTRAS.items():
        installed = importlib.util.find_spec(name) is not None
        rows.append([name, importlib.metadata.version(name) if installed else f"missing; run: pip install 'retro-lm[{extra}]'"])
    rows.append(["cache", str(catalogue.cache_dir())])
    for name in catalogue.ENTRIES:
        rows.append([name, "fetched" if catalogue.folder_of(name).exists() else f"not fetched; run: retro fetch {name}"])
    print_table("retro doctor", ["what", "found"], rows)
