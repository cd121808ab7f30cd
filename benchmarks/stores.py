"""Token stores of very many tiny documents: what writing, opening and walking them takes, in memory and time.

    python benchmarks/stores.py --documents 2000000

Every step is a process of its own. *Own memory* is what a step had at most beyond its imports and cannot give
back (anonymous pages, asked every 10 ms); pages of mapped files, which the system takes away as it likes, are
not counted. Seconds are of the processor, of one thread. The last row reads the same table as earlier
versions kept it, one JSON object a line, into memory. Linux only.
"""

import argparse
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from retro.corpus.encode import EncodedDocument
from retro.corpus.table import LINES, DocumentTable
from retro.corpus.table import NAME as TABLE
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore, write_tokens
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.training.batches import PackedBatches

CHUNK_LEN = 8


class Numbers(Tokenizer):
    """A stand-in: the tokens are drawn, and no text is cut."""

    def __init__(self) -> None:
        super().__init__([b"x"] * 258, pad_id=0, end_id=1, fingerprint="numbers")

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError


def documents(number: int) -> Iterator[EncodedDocument]:
    for index in range(number):
        row = {
            "id": f"articles/{index:012d}",
            "source": f"source {index % 7}",
            "title": f"The title of document {index}",
            "language": "en",
            "content_hash": f"{index * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}",
            "num_bytes": 3 + index % 5,
        }
        yield EncodedDocument(index, row, np.full(3 + index % 5, 2 + index % 250, dtype=np.uint16))


def own_bytes() -> int:
    """Memory of this process that is not a file's."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


@contextmanager
def watched(found: dict[str, float]) -> Iterator[None]:
    """The seconds and the most own memory of a block."""
    peak, done = own_bytes(), threading.Event()
    before = peak

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, own_bytes())

    thread = threading.Thread(target=watch)
    started = time.process_time()
    thread.start()
    yield
    found["seconds"] = time.process_time() - started
    found["MB"] = (max(peak, own_bytes()) - before) / 1e6
    done.set()
    thread.join()


def write(folder: Path, number: int) -> None:
    write_tokens(documents(number), folder, Numbers(), {}, {}, file_bytes=1 << 20)


def write_lines(folder: Path, number: int) -> None:
    with (folder.parent / LINES).open("w") as file:
        for row in DocumentTable.open(folder / TABLE, ""):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_as_before(folder: Path, number: int) -> None:
    with (folder.parent / LINES).open() as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == number


def open_store(folder: Path, number: int) -> TokenStore:
    store = TokenStore.open(folder)
    assert len(store) == number
    return store


def one_row(folder: Path, number: int) -> None:
    assert open_store(folder, number).documents[number // 2]["title"].endswith(str(number // 2))


def walk(folder: Path, number: int) -> None:
    assert sum(1 for row in open_store(folder, number).documents if row["id"]) == number


def walk_tokens(folder: Path, number: int) -> None:
    store = open_store(folder, number)
    assert sum(len(store.document(index)) for index in range(number)) == len(store.tokens)


def sources(folder: Path, number: int) -> None:
    assert len(open_store(folder, number).by_source()) == 7


def hashes(folder: Path, number: int) -> None:
    assert len(content_hashes(open_store(folder, number))) == number


def chunks(folder: Path, number: int) -> None:
    assert len(ChunkTable(open_store(folder, number), CHUNK_LEN)) == number


def batch(folder: Path, number: int) -> None:
    PackedBatches(open_store(folder, number), CHUNK_LEN, 64, 8, seed=0)[0]


STEPS: dict[str, Callable[[Path, int], object]] = {
    "write, in files of 1 MB of tokens": write,
    "open": open_store,
    "open, and one row": one_row,
    "walk all rows": walk,
    "walk all tokens": walk_tokens,
    "sizes by source": sources,
    "content hashes": hashes,
    "table of chunks": chunks,
    "the first training batch": batch,
    "write as lines of JSON": write_lines,
    "rows as earlier versions read them": read_as_before,
}


def take(step: str, folder: Path, number: int, answer: "multiprocessing.Queue[dict[str, float]]") -> None:
    found: dict[str, float] = {}
    with watched(found):
        STEPS[step](folder, number)
    answer.put(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--documents", type=int, default=2_000_000)
    number = parser.parse_args().documents
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "store"
        for step in STEPS:
            answer: multiprocessing.Queue[dict[str, float]] = context.Queue()
            process = context.Process(target=take, args=(step, folder, number, answer))
            process.start()
            found = answer.get()
            process.join()
            print(f"{step:<36} {found['seconds']:9.3f} s {found['MB']:9.1f} MB", flush=True)
        files = sorted(folder.iterdir())
        size = sum(file.stat().st_size for file in files) / 1e6
        print(f"{number:,} documents: {len(files)} files, {size:,.0f} MB")
        print(f"the table: {(folder / TABLE).stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
