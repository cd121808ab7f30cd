"""Starting: importing, help, opening a datastore, loading a run, the first search, the first token.

What begins in a process of its own is timed from outside, as a user waits for it. The limit is what no
program can go without: Python itself, torch where a model is needed, and reading the files once.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import transformers
from sampling import medium
from training_step import SETTINGS

import retro
from retro.config import ModelConfig
from retro.model.retro import Retro
from retro.retrieval.datastore import Datastore
from speed.limits import reading_files
from speed.neighbours import TEXTS, prepared
from speed.rows import Rounds, Row
from speed.training import gpt2_config

ROUNDS = 7
NOTHING, TORCH = "Python itself", "Python and torch"
SEARCH = """
import sys, retro
datastore = retro.Datastore.open(sys.argv[1])
assert datastore.search([sys.argv[2]], 2)[0]
"""
TOKEN = """
import sys, retro, torch
model = retro.load(sys.argv[1])
decoding = model.begin()
decoding.prefill([[5] * 63])
"""
RIVAL_TOKEN = """
import sys, torch, transformers
model = transformers.GPT2LMHeadModel.from_pretrained(sys.argv[1])
with torch.inference_mode():
    model(torch.full((1, 63), 5))
"""


def measure(work: Path, quick: bool) -> list[Row]:
    rounds = 1 if quick else ROUNDS
    texts = {"licences": 0.1} if quick else TEXTS
    rows = [*_commands(rounds), *_runs(rounds, quick)]
    for source, fraction in texts.items():
        prepared(work, source, fraction)
        rows += _datastores(work / f"{source}-{fraction:g}" / "datastore", source, rounds)
    return rows


def process(*arguments: str) -> Callable[[], object]:
    return partial(subprocess.run, [sys.executable, *arguments], check=True, capture_output=True)


def code(text: str, *arguments: str) -> Callable[[], object]:
    return process("-c", text, *arguments)


def _rows(
    calls: dict[str, Callable[[], object]], rounds: int, lines: Sequence[tuple[str, str, str, str, str]]
) -> Iterator[Row]:
    """A row for each line: candidate, what, size, rival and limit; the last two are candidates, or empty."""
    found = Rounds(calls, rounds, warmup=1)
    for name, what, size, rival, limit in lines:
        yield found.seconds_row(name, what=what, size=size, rival=rival, limit=limit)


def _commands(rounds: int) -> Iterator[Row]:
    calls = {
        NOTHING: code("pass"),
        "import retro": code("import retro"),
        "import transformers": code("import transformers"),
        "retro --help": process("-m", "retro", "--help"),
        "retro train --help": process("-m", "retro", "train", "--help"),
        "hf --help": code("from huggingface_hub.cli.hf import main; main()", "--help"),
    }
    lines = [
        ("import retro", "import retro", "", "import transformers", NOTHING),
        ("retro --help", "retro --help", "", "hf --help", NOTHING),
        ("retro train --help", "retro train --help", "", "hf --help", NOTHING),
    ]
    return _rows(calls, rounds, lines)


def _runs(rounds: int, quick: bool) -> Iterator[Row]:
    """Loading a model and its first token, at two sizes."""
    sizes: dict[str, ModelConfig] = {"8 × 512": medium()}
    if not quick:
        sizes["12 × 768"] = SETTINGS[-1].config()
    for title, config in sizes.items():
        with tempfile.TemporaryDirectory() as name:
            ours, theirs = Path(name) / "ours", Path(name) / "theirs"
            Retro(config).save(ours)
            transformers.GPT2LMHeadModel(gpt2_config(config, 512)).save_pretrained(theirs)
            files = [path for path in ours.rglob("*") if path.is_file()]
            megabytes = sum(path.stat().st_size for path in files) / 1e6
            size = f"{title}, {megabytes:.0f} MB"
            rival = f"GPT-2 of this size, transformers {transformers.__version__}"
            loads: dict[str, Callable[[], object]] = {
                "ours": partial(retro.load, ours),
                rival: partial(transformers.GPT2LMHeadModel.from_pretrained, theirs),
                "its files read once": reading_files(files),
            }
            yield from _rows(loads, rounds, [("ours", "loading a run", size, rival, "its files read once")])
            tokens = {
                "ours": code(TOKEN, str(ours)),
                rival: code(RIVAL_TOKEN, str(theirs)),
                TORCH: code("import torch"),
            }
            what = "the first token, from the start of Python"
            yield from _rows(tokens, rounds, [("ours", what, size, rival, TORCH)])


def _datastores(path: Path, source: str, rounds: int) -> Iterator[Row]:
    """Opening a datastore, and its first search from the start of Python."""
    files = [file for file in path.rglob("*") if file.is_file()]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    num_chunks = len(Datastore.open(path).snapshot().segments[0].keys)
    size = f"{num_chunks:,} chunks ({source}), {megabytes:.0f} MB"
    reading = "its files read once"
    opening: dict[str, Callable[[], object]] = {
        "ours": partial(Datastore.open, path),
        "first": lambda: Datastore.open(path).snapshot().segments[0].index,
        reading: reading_files(files),
    }
    lines = [
        ("ours", "opening a datastore", size, "", reading),
        ("first", "opening a datastore with its index", size, "", reading),
    ]
    yield from _rows(opening, rounds, lines)
    searching = {"ours": code(SEARCH, str(path), "the licence"), TORCH: code("import torch")}
    what = "the first search, from the start of Python"
    yield from _rows(searching, rounds, [("ours", what, size, "", TORCH)])
