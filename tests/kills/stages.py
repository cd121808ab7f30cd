"""The stages that are killed, in the order of a workspace's life, and what each promises to end with.

Another stage is one more entry of `stages`: its command, and which of its files are the same in every run.
"""

import shlex
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from retro.retrieval.datastore.ledger import FILE as LEDGER
from retro.stages.files import file_checksum
from retro.training.metrics import METRICS, read_metrics

Results = Callable[[Path], dict[str, object]]
"""What must be equal, by name, of a finished workspace."""
MODEL = shlex.split(
    """--model.d-model 16 --model.num-layers 2 --model.num-heads 2 --model.head-dim 8 --model.ffw-dim 32
--model.chunk-len 16 --model.retrieval.cross-attention-layers 2 --model.retrieval.encoder.d-model 16
--model.retrieval.encoder.num-layers 1 --model.retrieval.encoder.num-heads 2
--model.retrieval.encoder.head-dim 8 --model.retrieval.encoder.ffw-dim 32"""
)
FIT = [word.replace("--model.retrieval.", "--fit.") for word in MODEL[-12:]]
STEPS = shlex.split(
    """--seq-len 64 --batch-size 2 --num-steps 40 --warmup-steps 2 --log-every 1 --validate-every 10
--validate-batches 1 --checkpoint-every 4"""
)
SCORING = shlex.split("--window 64 --stride 32 --num-neighbours 1 2")


@dataclass(frozen=True)
class Stage:
    """A command that is killed, and again, and then finishes."""

    name: str
    command: list[str]
    results: Results
    changes_datastore: bool = False
    """Then a version that was committed may be all that a second run finds, and says so."""
    replaces: tuple[str, ...] = ()
    """Finished folders that it makes anew: after a kill all of them are as before, or all as at the end."""
    happens_once: bool = False
    """Run again after its end, it would do more, as an extension does: it is not, then."""
    prepare: Callable[[], None] = lambda: None
    """What the user does before the command."""
    shards: str = ""
    """Names of files of which it writes many: it is killed when some of them are there, and others not."""


def files_of(*patterns: str) -> Results:
    """The checksums of files below the workspace."""

    def results(work: Path) -> dict[str, object]:
        found = {file for pattern in patterns for file in work.glob(pattern) if file.is_file()}
        assert found, f"{work} holds no {patterns}"
        return {str(file.relative_to(work)): file_checksum(file) for file in sorted(found)}

    return results


def datastore(work: Path) -> dict[str, object]:
    """Segments file by file, without the speeds measured with each, and the documents of the ledger."""
    folder = work / "datastore"
    found = {
        file
        for part in ("segments", "indexes")
        for file in (folder / part).rglob("*")
        if file.is_file() and file.name != "index.json"
    }
    results: dict[str, object] = {str(file.relative_to(work)): file_checksum(file) for file in sorted(found)}
    connection = sqlite3.connect(folder / LEDGER)
    try:
        columns = "number, segment, id, source, content_hash, first_chunk, num_chunks, deleted IS NULL"
        results["documents"] = connection.execute(
            f"SELECT {columns} FROM documents ORDER BY number"
        ).fetchall()
        results["segments"] = connection.execute("SELECT name FROM segments ORDER BY name").fetchall()
        results["lineage"] = connection.execute(
            "SELECT lineage FROM versions ORDER BY version DESC LIMIT 1"
        ).fetchall()
    finally:
        connection.close()
    return results


def run_of(name: str) -> Results:
    """Weights, record and tokenizer of a run, and every loss on the way."""

    def results(work: Path) -> dict[str, object]:
        folder = work / "runs" / name
        found = files_of(
            f"runs/{name}/model.safetensors", f"runs/{name}/run.json", f"runs/{name}/tokenizer/*"
        )(work)
        rows = read_metrics(folder / METRICS)
        found["losses"] = [[row["step"], row.get("loss"), row.get("valid_on")] for row in rows]
        return found

    return results


def stages(source: Path, more: Path, embedder: str, file_bytes: int = 0) -> list[Stage]:
    """Every stage, each going on from where the one before it ended.

    With `file_bytes`, tokens and neighbours are cut into files of so many bytes at most.
    """
    bound = ["--file-bytes", str(file_bytes)] if file_bytes else []
    tokens, found = ("tokens-*.npy", "[dn]*s-*.npy") if file_bytes else ("", "")
    settings = f"--embedder {embedder} --chunk-len 16 --num-neighbours 4 --workers 1".split()
    small = shlex.split("--vocab-size 512 --valid-fraction 0.1 --test-fraction 0.1")
    neighbours = files_of("neighbours/*/*")
    corpus = files_of("text/*", "tokenizer/*", "encoded/*", "tokens/*", "tokens/*/*")
    scores = files_of("evaluations/retrofit/test/results.json", "evaluations/retrofit/test/scores.npz")
    ingest = ["ingest", str(source), "--out", "WORK", *small, *bound]
    return [
        Stage("fetch", ["fetch", "little"], files_of("cache/little-1.0/*")),
        Stage(
            "ingest",
            ingest,
            corpus,
            shards=tokens,
        ),
        Stage("build", ["build", "WORK", *settings], datastore),
        Stage("neighbours", ["neighbours", "WORK", *bound], neighbours, shards=found),
        Stage("train --baseline", ["train", "WORK", "--baseline", *MODEL, *STEPS], run_of("baseline")),
        Stage("train", ["train", "WORK", *MODEL, *STEPS], run_of("retro")),
        Stage(
            "fit",
            ["fit", "WORK", "--baseline", "baseline", "--name", "retrofit", *FIT, *STEPS],
            run_of("retrofit"),
        ),
        Stage("evaluate", ["evaluate", "WORK", "retrofit", *SCORING], scores),
        Stage("db add", ["db", "add", "WORK", str(more)], datastore, changes_datastore=True),
        Stage("neighbours, brought up to date", ["neighbours", "WORK", *bound], neighbours, shards=found),
        Stage(
            "db delete",
            ["db", "delete", "WORK", "--source", more.name],
            datastore,
            changes_datastore=True,
        ),
        Stage("db compact", ["db", "compact", "WORK"], datastore, changes_datastore=True),
        Stage(
            "evaluate, another k",
            ["evaluate", "WORK", "retrofit", *SCORING, "4"],
            scores,
            replaces=("evaluations/retrofit/test",),
        ),
        Stage(
            "ingest, after changes",
            ingest,
            corpus,
            replaces=("text", "encoded", "tokens"),
            prepare=partial(change_files, source),
            shards=tokens,
        ),
        Stage("db sync", ["db", "sync", "WORK"], datastore, changes_datastore=True),
        Stage("neighbours, after sync", ["neighbours", "WORK"], neighbours),
        Stage(
            "train --extend",
            ["train", "WORK", "--name", "retro", "--extend", "20"],
            run_of("retro"),
            replaces=("runs/retro",),
            happens_once=True,
        ),
    ]


def change_files(source: Path) -> None:
    """Add, change and remove some documents of a folder."""
    files = sorted(source.glob("*.txt"))
    for number, file in enumerate(files[:60]):
        if number % 3 == 0:
            file.unlink()
        elif number % 3 == 1:
            file.write_text(f"{file.read_text()}\nchanged {number}")
        else:
            (source / f"new-{number}.txt").write_text(f"new {number}\n\n{file.read_text()[::-1]}")


def versions(work: Path) -> list[tuple[int, str, str]]:
    """The versions that were committed: number, action and lineage."""
    connection = sqlite3.connect(work / "datastore" / LEDGER)
    try:
        return connection.execute("SELECT version, action, lineage FROM versions ORDER BY version").fetchall()
    finally:
        connection.close()
