"""Peak memory of `retro ingest`, parent and workers together: enwik8's dump, its articles, and twice as
many articles.

    python benchmarks/ingest_memory.py

The second half of the doubled text is of the same kind as the first and repeats no document: articles are
drawn in pairs and exchange every other paragraph. Each run is a command of its own, with two workers; its
resident memory is read from /proc every 20 ms and summed over its processes, which counts what they share
more than once. Linux only.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from retro import catalogue
from retro.corpus.documents import Document
from retro.corpus.readers import read

OPTIONS = ("--vocab-size", "16000", "--max-document-bytes", "0", "--workers", "2")
INTERVAL = 0.02


def exchanged(first: str, second: str) -> tuple[str, str]:
    """Two texts of the paragraphs of both: of each text the even ones here, the odd ones there."""
    paragraphs = [text.split("\n\n") for text in (first, second)]
    here, there = (
        "\n\n".join([*paragraphs[0][start::2], *paragraphs[1][1 - start :: 2]]) for start in (0, 1)
    )
    return here, there


def variants(documents: list[Document]) -> Iterator[Document]:
    """As many documents again, with the same words and other texts."""
    shuffled = random.Random(0).sample(documents, len(documents))
    for first, second in zip(shuffled[::2], shuffled[1::2], strict=False):
        for document, text in zip((first, second), exchanged(first.text, second.text), strict=True):
            yield Document(id=f"{document.id} exchanged", text=text, source=document.source)


def write_jsonl(documents: list[Document], path: Path) -> Path:
    path.write_text(
        "".join(json.dumps({"id": document.id, "text": document.text}) + "\n" for document in documents)
    )
    return path


def peak_of(source: str, folder: Path) -> tuple[int, float]:
    """The most bytes that the command's processes held together, and the seconds it took."""
    started, peak = time.monotonic(), 0
    command = [sys.executable, "-m", "retro", "ingest", source, "--out", str(folder), *OPTIONS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(resident_bytes, tree(process.pid))))
            time.sleep(INTERVAL)
    if process.returncode:
        raise SystemExit(process.returncode)
    return peak, time.monotonic() - started


def tree(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue  # it ended meanwhile
        for child in children:
            yield from tree(int(child))


def resident_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS")), 0)


def main() -> None:
    catalogue.fetch("enwik8")
    documents = list(read("enwik8"))
    doubled = [*documents, *variants(documents)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        once, twice = (
            write_jsonl(documents, folder / "once.jsonl"),
            write_jsonl(doubled, folder / "twice.jsonl"),
        )
        del documents, doubled
        peaks: dict[str, int] = {}
        for label, source in (
            ("dump", "enwik8"),
            ("articles", str(once)),
            ("twice the articles", str(twice)),
        ):
            peaks[label], seconds = peak_of(source, folder / f"work of {label}")
            print(
                f"enwik8, {label}: peak {peaks[label] / 2**20:,.0f} MiB in {seconds:.0f} s (aim ≤ 1,024 MiB)",
                flush=True,
            )
    print(
        f"twice the text takes {peaks['twice the articles'] / peaks['articles']:.2f} times the memory (aim "
        "≤ 1.2)"
    )


if __name__ == "__main__":
    main()
